"""Strategies compared on the simulator: what is run, at which budget, against which truth, and the tables."""
