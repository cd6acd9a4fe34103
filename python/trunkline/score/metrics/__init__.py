"""Metrics over the rewards of several tries per task; every interval takes tasks as the sample."""

from __future__ import annotations

from trunkline.score.metrics.averages import accuracy, best_of_n
from trunkline.score.metrics.estimate import Estimate
from trunkline.score.metrics.interval import student
from trunkline.score.metrics.passing import mean_pass_at_k, pass_at_k
from trunkline.score.metrics.voting import majority_at_n

__all__ = ["Estimate", "accuracy", "best_of_n", "majority_at_n", "mean_pass_at_k", "pass_at_k", "student"]
