"""Environments that are ready to use."""
