"""Rewards (``trunkline.rewards``): what a trajectory is worth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from trunkline._internal.exports import exports
from trunkline._internal.registry import Registry
from trunkline.scoring.rewards.base import Reward, RewardPart, Scored, step_sum
from trunkline.scoring.rewards.grading import WeightedRewards, weighted
from trunkline.scoring.rewards.matching import F1, Choice, Numeric, contains, exact_match, numeric_match
from trunkline.scoring.rewards.maths import Math

if TYPE_CHECKING:
    from trunkline.scoring.notes import Graded
    from trunkline.scoring.rewards.code import Code
    from trunkline.scoring.rewards.judge import Judge

__all__ = [
    "F1",
    "REWARDS",
    "Choice",
    "Code",
    "Graded",
    "Judge",
    "Math",
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
        "math": Math,
        "step_sum": step_sum,
        "judge": "trunkline.scoring.rewards.judge:Judge",
        "code": "trunkline.scoring.rewards.code:Code",
    },
    configured={"numeric_match": Numeric},
    former={"maths": "math"},
)
"""Rewards by name: iterating gives the names of the command line, ``REWARDS.find(name)`` what one is."""

find = REWARDS.find
"""Return the reward of a name, a function or a class: ``find("f1")``; ``ConfigError`` for an unknown one."""


__getattr__ = exports(
    __name__,
    """
scoring.notes: Graded
scoring.rewards.code: Code
scoring.rewards.judge: Judge
""",
    {"Part": "rewards.RewardPart", "Maths": "rewards.Math"},
)
