"""The controller of a run."""
