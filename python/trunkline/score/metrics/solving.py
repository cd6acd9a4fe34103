"""What a solved task costs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from trunkline.errors import UsageError
from trunkline.score.metrics.interval import Ends, correlation, student, wilson

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PerSolved", "per_solved"]


class PerSolved(msgspec.Struct, frozen=True):
    """What was spent on all tasks for each that was solved.

    Attributes:
        value: All that was spent over the number of solved tasks.
        low: Lower end of its 95 % interval; None with fewer than two tasks, or where nothing was spent.
        high: Upper end.
        tasks: Tasks, solved or not.
        solved: Solved ones.
    """

    value: float
    low: float | None
    high: float | None
    tasks: int
    solved: int


def per_solved(spent: Sequence[float], solved: Sequence[bool]) -> PerSolved | None:
    """Return what was spent for each solved task, what was spent on others included.

    It is a ratio of two means over tasks. On the scale of logarithms its interval joins the interval of each (Zou and
    Donner 2008): the delta method's for what was spent, Wilson's for the share that was solved, less what the two have
    in common by their correlation. So it is never below 0, and has a width where every task was solved.

    Args:
        spent: What was spent on each task: tokens, money, seconds; 0 or more.
        solved: Whether the task was solved.

    Returns:
        The ratio, or None if nothing was solved.

    Raises:
        UsageError: The columns differ in length, or an amount is below 0 or not finite.
    """
    if len(spent) != len(solved):
        raise UsageError(f"{len(spent)} amounts do not fit {len(solved)} tasks")
    if not all(math.isfinite(amount) and amount >= 0 for amount in spent):
        raise UsageError("what was spent on a task must be a number from 0 on")
    wins = sum(map(bool, solved))
    if not wins:
        return None
    value = math.fsum(spent) / wins
    low, high = _interval(spent, [float(won) for won in solved], value)
    return PerSolved(value, low, high, len(spent), wins)


def _interval(spent: Sequence[float], solved: Sequence[float], value: float) -> Ends:
    count = len(spent)
    mean = math.fsum(spent) / count
    if count < 2 or mean <= 0:
        return None, None
    error = math.sqrt(math.fsum((amount - mean) ** 2 for amount in spent) / (count - 1) / count) / mean
    half = student(count - 1) * error
    rate = math.fsum(solved) / count
    least, most = wilson(solved, count)
    down, up = math.log(rate / least), math.log(most / rate)
    shared = correlation(spent, solved)
    return value * math.exp(-_joined(half, up, shared)), value * math.exp(_joined(half, down, shared))


def _joined(one: float, other: float, shared: float) -> float:
    return math.sqrt(max(0.0, one * one + other * other - 2 * shared * one * other))
