"""Limits of endpoints: rates, windows, routing."""
