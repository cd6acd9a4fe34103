"""Policies over one verb, fork: which rollouts start, and where."""
