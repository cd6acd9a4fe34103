"""Arms beside one try and beside the majority, at the price of one number of chains, question by question.

The budget is what the largest group of chains costs. An arm with calls of its own gets fewer chains, so that both
together cost the same on average. That number is real, and is measured in the *other* worlds among questions of the
same kind and length: it depends on nothing that the compared groups drew. Between two whole numbers stands the lottery
between them, by its expectation.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from studies.answers.arms import ARMS, MAJORITY, ONE
from studies.answers.cell import Point
from studies.compare import FEWEST
from studies.interval import Interval, mean
from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from studies.answers.cell import Asked

__all__ = ["Compared", "Paid", "compare", "paid"]


class Paid(NamedTuple):
    """What an arm shows on one question for the budget.

    Attributes:
        chains: How many it was given; between two whole numbers a lottery.
        point: What it made of them.
    """

    chains: float
    point: Point


class Compared(NamedTuple):
    """An arm in one preset.

    Attributes:
        arm: Its name.
        chains: How many chains the budget leaves it, on average.
        tokens: Generated tokens a question, its own calls included.
        cost: What it costs a question.
        right: Its accuracy.
        to_one: The same less that of one try.
        to_majority: The same less that of the majority.
    """

    arm: str
    chains: float
    tokens: Interval
    cost: Interval
    right: Interval
    to_one: Interval
    to_majority: Interval


def compare(asked: Sequence[Asked], family: int = 1) -> list[Compared]:
    """Compare all arms in one preset.

    Args:
        asked: Its questions, from at least two worlds.
        family: How many differences are to hold together with 95 %.
    """
    shown = {name: paid(asked, name) for name in ARMS}
    return [_compared(name, own, shown[ONE], shown[MAJORITY], family) for name, own in shown.items()]


def _compared(name: str, own: Sequence[Paid], one: Sequence[Paid], majority: Sequence[Paid], family: int) -> Compared:
    return Compared(
        name,
        math.fsum(each.chains for each in own) / len(own),
        mean([each.point.tokens for each in own]),
        mean([each.point.cost for each in own]),
        mean([each.point.right for each in own]),
        _less(own, one, family),
        _less(own, majority, family),
    )


def _less(own: Sequence[Paid], other: Sequence[Paid], family: int) -> Interval:
    return mean([mine.point.right - theirs.point.right for mine, theirs in zip(own, other, strict=True)], family)


def paid(asked: Sequence[Asked], arm: str) -> list[Paid]:
    """What an arm shows on each question for the budget, in their order.

    Args:
        asked: Questions of one preset, from at least two worlds.
        arm: The arm.

    Raises:
        ConfigError: There is one world, or the budget does not pay for one chain and the arm's calls.
    """
    known: dict[tuple[int, str], float] = {}
    found = []
    for one in asked:
        points = one.points[arm]
        place = one.seed, one.stratum
        if place not in known:
            known[place] = 1.0 if ARMS[arm].single else _affordable(_others(asked, one), arm)
        found.append(Paid(known[place], _between(points, known[place])))
    return found


def _others(asked: Sequence[Asked], one: Asked) -> list[Asked]:
    """Questions of other worlds that are like one, or all of them where those are few."""
    others = [other for other in asked if other.seed != one.seed]
    if not others:
        raise ConfigError("a budget is measured in other worlds: give two or more")
    alike = [other for other in others if other.stratum == one.stratum]
    return alike if len(alike) >= FEWEST else others


def _affordable(others: Sequence[Asked], arm: str) -> float:
    """How many chains the budget leaves an arm beside its own calls."""
    budget = math.fsum(other.points[MAJORITY][-1].cost for other in others)
    sizes = range(len(others[0].points[arm]))
    curve = [math.fsum(other.points[arm][size].cost for other in others) for size in sizes]
    if curve[0] > budget:
        raise ConfigError(f"{arm}: one chain and its calls cost more than {len(curve)} chains; give more chains")
    below = max(size for size in sizes if curve[size] <= budget * (1 + 1e-9))
    if below + 1 == len(curve):
        return float(below + 1)
    return below + 1 + (budget - curve[below]) / (curve[below + 1] - curve[below])


def _between(points: Sequence[Point], chains: float) -> Point:
    below = math.floor(chains)
    share = chains - below
    low = points[below - 1]
    if share == 0:
        return low
    return Point(*((1 - share) * one + share * other for one, other in zip(low, points[below], strict=True)))
