"""What a metric comes to, and what of a list of tries counts.

Everywhere a list holds one list of rewards for each task, NaN marks a try that was not scored (one that broke, say),
and a result without a single scored try behind it is None: nothing that was not measured is shown as 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from trunkline.score.metrics.interval import around

__all__ = ["Estimate", "Rewards", "estimate", "inside", "scored"]

Rewards = Sequence[Sequence[float]]
"""For each task the rewards of its tries; NaN for a try that was not scored."""


class Estimate(msgspec.Struct, frozen=True):
    """A mean over tasks, with a 95 % interval where one can be given.

    Attributes:
        value: The mean over tasks of each task's own value.
        low: Lower end of the interval; None if fewer than two tasks count.
        high: Upper end.
        tasks: Tasks that count.
        scored: Scored tries behind them.
        tries: All tries, also those of tasks that do not count, and those that broke and were not scored.
    """

    value: float
    low: float | None
    high: float | None
    tasks: int
    scored: int
    tries: int


def scored(rewards: Sequence[float]) -> list[float]:
    """The rewards of the tries of a task that were scored."""
    return [reward for reward in rewards if not math.isnan(reward)]


def inside(rewards: Rewards) -> bool:
    """Whether every reward lies between 0 and 1."""
    return all(0.0 <= reward <= 1.0 for task in rewards for reward in scored(task))


def estimate(means: Sequence[float], behind: int, tries: int, *, bounded: bool) -> Estimate | None:
    """Make an estimate of one value a task.

    Args:
        means: The values of the tasks that count.
        behind: Scored tries behind them, each of which says something of its own.
        tries: All tries.
        bounded: Whether every reward lies between 0 and 1.

    Returns:
        The estimate, or None without a task.
    """
    if not means:
        return None
    low, high = around(means, behind, bounded=bounded)
    return Estimate(math.fsum(means) / len(means), low, high, len(means), behind, tries)
