"""Aggregators compared on the simulator: many answers to one question into one, at the price of so many chains."""
