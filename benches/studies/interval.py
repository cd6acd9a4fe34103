"""Intervals over questions, which are the sample: what is measured on one question is one value."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

from trunkline.scoring.metrics import student

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Interval", "known", "mean", "ratio"]


class Interval(NamedTuple):
    """A figure with an interval.

    Attributes:
        value: The figure; NaN where nothing was measured.
        low: Lower end; NaN where fewer than two questions count.
        high: Upper end.
        questions: Questions behind it.
    """

    value: float
    low: float
    high: float
    questions: int

    def holds(self, value: float) -> bool:
        """Whether a value lies in the interval."""
        return self.low <= value <= self.high


def mean(values: Sequence[float], family: int = 1) -> Interval:
    """The mean of one value a question.

    Args:
        values: The values.
        family: How many intervals are to hold together with 95 %: each is as wide as Bonferroni's inequality asks.
    """
    return ratio(values, [1.0] * len(values), family)


def ratio(above: Sequence[float], below: Sequence[float], family: int = 1) -> Interval:
    """A ratio of two sums over questions, with the interval of its linear approximation.

    Args:
        above: For each question its part of the upper sum.
        below: For each question its part of the lower sum.
        family: As for :func:`mean`.
    """
    count, total = len(above), math.fsum(below)
    if not count or total == 0:
        return Interval(math.nan, math.nan, math.nan, count)
    value = math.fsum(above) / total
    if count < 2:
        return Interval(value, math.nan, math.nan, count)
    rest = math.fsum((up - value * down) ** 2 for up, down in zip(above, below, strict=True))
    error = math.sqrt(rest * count / (count - 1)) / abs(total)
    # Student's point at 95 %, widened as the normal one is where several intervals are to hold together.
    half = error * student(count - 1) * _point(family) / _point(1)
    return Interval(value, value - half, value + half, count)


def known(value: float, error: float, questions: int, family: int = 1) -> Interval:
    """The interval around a figure whose standard error is known, and not read off the data.

    Args:
        value: The figure.
        error: Its standard error.
        questions: Questions behind it.
        family: As for :func:`mean`.
    """
    half = error * _point(family)
    return Interval(value, value - half, value + half, questions)


def _point(family: int) -> float:
    return NormalDist().inv_cdf(1 - 0.025 / family)
