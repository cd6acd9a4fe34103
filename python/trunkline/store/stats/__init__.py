"""Figures computed from a run file."""
