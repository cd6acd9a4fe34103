"""Answers, rewards and metrics."""

from __future__ import annotations

from trunkline.score.answers import extract_answer, normalise, number
from trunkline.score.metrics import Estimate, accuracy, best_of_n, majority_at_n, mean_pass_at_k, pass_at_k
from trunkline.score.rewards import Reward, Verdict, apply, contains, exact_match, numeric_match, score

__all__ = [
    "Estimate",
    "Reward",
    "Verdict",
    "accuracy",
    "apply",
    "best_of_n",
    "contains",
    "exact_match",
    "extract_answer",
    "majority_at_n",
    "mean_pass_at_k",
    "normalise",
    "number",
    "numeric_match",
    "pass_at_k",
    "score",
]
