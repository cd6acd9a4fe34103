"""Rewards: what a trajectory is worth."""

from __future__ import annotations

import importlib
import warnings
from typing import Any, Final, NamedTuple

from trunkline.errors import ConfigError
from trunkline.scoring.rewards.base import Reward, RewardPart, Scored
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
    "weighted",
]


class RewardEntry(NamedTuple):
    """Where a reward is found.

    Attributes:
        module: Its module.
        plain: The reward, or its class.
        options: The class that takes options, where the plain one is a function.
    """

    module: str
    plain: str
    options: str = ""


_AT: Final = "trunkline.scoring.rewards."

REWARDS: Final[dict[str, RewardEntry]] = {
    "exact_match": RewardEntry(_AT + "matching", "exact_match"),
    "contains": RewardEntry(_AT + "matching", "contains"),
    "numeric_match": RewardEntry(_AT + "matching", "numeric_match", "Numeric"),
    "f1": RewardEntry(_AT + "matching", "F1"),
    "choice": RewardEntry(_AT + "matching", "Choice"),
    "maths": RewardEntry(_AT + "maths", "Maths"),
    "judge": RewardEntry(_AT + "judge", "Judge"),
    "code": RewardEntry(_AT + "code", "Code"),
}
"""Where rewards are found, by what they are called."""


def find(name: str, *, options: bool = False) -> Any:
    """Return the reward of a name, or its class.

    Args:
        name: One of ``REWARDS``.
        options: Whether it is to take options, so that a function's class is wanted.

    Raises:
        ConfigError: It cannot be imported.
    """
    entry = REWARDS[name]
    try:
        return getattr(importlib.import_module(entry.module), (options and entry.options) or entry.plain)
    except (ImportError, AttributeError) as problem:
        raise ConfigError(f"reward {name} cannot be imported: {problem}") from problem


def __getattr__(name: str) -> Any:
    if name == "Part":
        warnings.warn("rewards.Part is called rewards.RewardPart now", DeprecationWarning, stacklevel=2)
        return RewardPart
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
