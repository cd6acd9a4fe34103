"""Metrics over the rewards of several tries per task; every interval takes tasks as the sample."""

from __future__ import annotations

from trunkline.scoring.metrics.at_k import (
    Metric,
    PerSolved,
    majority_at_k,
    majority_at_n,
    mean_pass_at_k,
    mean_pass_hat_k,
    metric,
    pass_at_k,
    pass_hat_k,
    per_solved,
)
from trunkline.scoring.metrics.comparison import Bin, Calibration, Paired, calibration, paired
from trunkline.scoring.metrics.intervals import Estimate, accuracy, avg_at_k, best_of_n, student

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
