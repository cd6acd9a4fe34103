"""Metrics over the rewards of several tries per task; every interval takes tasks as the sample."""

from __future__ import annotations

from trunkline.score.metrics.averages import accuracy, avg_at_k, best_of_n
from trunkline.score.metrics.estimate import Estimate
from trunkline.score.metrics.interval import student
from trunkline.score.metrics.naming import Metric, metric
from trunkline.score.metrics.pairing import Paired, paired
from trunkline.score.metrics.passing import mean_pass_at_k, mean_pass_hat_k, pass_at_k, pass_hat_k
from trunkline.score.metrics.reliability import Bin, Calibration, calibration
from trunkline.score.metrics.solving import PerSolved, per_solved
from trunkline.score.metrics.voting import majority_at_k, majority_at_n

__all__ = [
    "Bin",
    "Calibration",
    "Estimate",
    "Metric",
    "Paired",
    "PerSolved",
    "accuracy",
    "avg_at_k",
    "best_of_n",
    "calibration",
    "majority_at_k",
    "majority_at_n",
    "mean_pass_at_k",
    "mean_pass_hat_k",
    "metric",
    "paired",
    "pass_at_k",
    "pass_hat_k",
    "per_solved",
    "student",
]
