"""Aggregators: many answers to one question into one, with the evidence kept."""
