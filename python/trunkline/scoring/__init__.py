"""Answers, rewards and metrics: what an answer is, what a trajectory is worth, and what many of them say."""
