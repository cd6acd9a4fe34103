"""An arm beside chains of the same budget, question by question."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from studies.budget import chains_measure, chains_worth, cost_curve
from studies.cell import POOL
from studies.interval import Interval, mean, ratio
from studies.tries import Measures, measure, price

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from studies.answers.cell import Asked
    from studies.cell import Group
    from studies.tries import Prices, Try

__all__ = ["FEWEST", "Comparison", "Effective", "by_preset", "comparable", "compare", "effective", "of_arm"]

FEWEST = 3
"""Questions of a kind in the other worlds from which its number of chains is read; with fewer, all kinds are."""

_Key = tuple[str, int, str]
_Of = TypeVar("_Of", "Group", "Asked")


class Comparison(NamedTuple):
    """An arm in one preset, at one budget.

    Attributes:
        arm: Its name.
        cost: What it costs a question, in generated tokens.
        chains: How many chains cost as much, on average.
        own: What it shows.
        gain: What it shows beyond those chains, in intervals that hold together with all others of the study.
    """

    arm: str
    cost: Interval
    chains: float
    own: dict[str, Interval]
    gain: dict[str, Interval]


class Effective(NamedTuple):
    """How many independent tries the rollouts of an arm are worth.

    Attributes:
        rho: Correlation of the rewards of two rollouts of one question beyond the question's own difficulty.
        tries: ``n / (1 + (n - 1) rho)`` with n the rollouts of a question.
    """

    rho: Interval
    tries: Interval


def of_arm(groups: Iterable[Group], arm: str) -> dict[_Key, Group]:
    """The groups of one arm, by preset, world and question."""
    return {(group.preset, group.seed, group.question): group for group in groups if group.arm == arm}


def compare(groups: Sequence[Group], arm: str, prices: Prices, family: int = 1) -> Comparison:
    """Compare an arm with chains of equal cost.

    Args:
        groups: Of one preset, from at least two worlds.
        arm: The arm.
        prices: What the budget counts.
        family: How many gains are to hold together with 95 %.

    Raises:
        ConfigError: The arm costs less than one chain, or more than all that were run.
    """
    trees, pools = of_arm(groups, arm), of_arm(groups, POOL)
    worth = _exchange(trees, pools, prices)
    own, chains = [], []
    for key, tree in trees.items():
        own.append(measure(tree.tries))
        chains.append(chains_measure(pools[key].tries, worth[key]))
    return Comparison(
        arm,
        mean([price(tree.tries, prices) for tree in trees.values()]),
        math.fsum(worth.values()) / len(worth),
        {name: mean([getattr(each, name) for each in own]) for name in Measures._fields},
        {
            name: mean(
                [getattr(one, name) - getattr(other, name) for one, other in zip(own, chains, strict=True)], family
            )
            for name in Measures._fields
        },
    )


def _exchange(trees: dict[_Key, Group], pools: dict[_Key, Group], prices: Prices) -> dict[_Key, float]:
    """For each question how many chains the arm is worth, by what both cost in other worlds."""
    known: dict[tuple[int, str], float] = {}
    for tree in trees.values():
        place = tree.seed, tree.stratum
        if place not in known:
            others = [other for other in trees if other[1] != tree.seed]
            alike = [other for other in others if trees[other].stratum == tree.stratum]
            used = alike if len(alike) >= FEWEST else others
            curve = cost_curve([pools[other].tries for other in used], prices)
            budget = math.fsum(price(trees[other].tries, prices) for other in used) / len(used)
            known[place] = chains_worth(budget, curve)
    return {key: known[tree.seed, tree.stratum] for key, tree in trees.items()}


def effective(groups: Sequence[Group], arm: str) -> Effective:
    """Measure what shared trunks cost: rollouts that share one err alike.

    ``rho`` is the covariance of two rollouts' rewards given the question, over the variance of one. The question's
    own mean is known from independent chains, by products of two different ones, so that nothing is biased by how few
    there are.

    Args:
        groups: Of one preset.
        arm: The arm.
    """
    trees, pools = of_arm(groups, arm), of_arm(groups, POOL)
    above, below, sizes = [], [], []
    for key, tree in trees.items():
        rewards, chains = _rewards(tree.tries), _rewards(pools[key].tries)
        if len(rewards) < 2 or len(chains) < 2:
            continue
        average = math.fsum(chains) / len(chains)
        both = _products(chains)
        above.append(_products(rewards) - 2 * average * math.fsum(rewards) / len(rewards) + both)
        below.append(average - both)
        sizes.append(len(rewards))
    rho = ratio(above, below)
    size = math.fsum(sizes) / len(sizes) if sizes else math.nan
    tries = Interval(_tries(size, rho.value), _tries(size, rho.high), _tries(size, rho.low), rho.questions)
    return Effective(rho, tries)


def _tries(size: float, rho: float) -> float:
    design = 1 + (size - 1) * rho
    return size / design if design > 0 else math.inf


def _rewards(tries: Sequence[Try]) -> list[float]:
    return [each.reward for each in tries if not math.isnan(each.reward)]


def _products(values: Sequence[float]) -> float:
    """The mean product of two different ones."""
    total = math.fsum(values)
    squares = math.fsum(value * value for value in values)
    return (total * total - squares) / (len(values) * (len(values) - 1))


def by_preset(found: Iterable[_Of]) -> dict[str, list[_Of]]:
    """What came of questions by preset, in the order it comes."""
    presets: dict[str, list[_Of]] = defaultdict(list)
    for one in found:
        presets[one.preset].append(one)
    return dict(presets)


def comparable(found: Iterable[_Of]) -> dict[str, list[_Of]]:
    """The same, where there are two worlds or more: a budget is measured in the other worlds."""
    return {preset: own for preset, own in by_preset(found).items() if len({one.seed for one in own}) > 1}
