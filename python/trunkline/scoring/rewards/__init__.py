"""Rewards: what a trajectory is worth."""

from __future__ import annotations

import warnings
from typing import Any, Final

from trunkline._internal.registry import Registry
from trunkline.scoring.rewards.base import Reward, RewardPart, Scored, step_sum
from trunkline.scoring.rewards.grading import WeightedRewards, weighted
from trunkline.scoring.rewards.matching import F1, Choice, Numeric, contains, exact_match, numeric_match
from trunkline.scoring.rewards.maths import Maths

__all__ = [
    "F1",
    "REWARDS",
    "Choice",
    "Maths",
    "Numeric",
    "Reward",
    "RewardPart",
    "Scored",
    "WeightedRewards",
    "contains",
    "exact_match",
    "find",
    "numeric_match",
    "step_sum",
    "weighted",
]


REWARDS: Final[Registry[Any]] = Registry(
    "reward",
    {
        "exact_match": exact_match,
        "contains": contains,
        "numeric_match": numeric_match,
        "f1": F1,
        "choice": Choice,
        "maths": Maths,
        "step_sum": step_sum,
        "judge": "trunkline.scoring.rewards.judge:Judge",
        "code": "trunkline.scoring.rewards.code:Code",
    },
    configured={"numeric_match": Numeric},
)

find = REWARDS.find


def __getattr__(name: str) -> Any:
    if name == "Part":
        warnings.warn("rewards.Part is called rewards.RewardPart now", DeprecationWarning, stacklevel=2)
        return RewardPart
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
