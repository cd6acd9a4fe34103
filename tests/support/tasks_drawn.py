"""Tries of tasks of uneven difficulty, drawn so that the truth behind every metric is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from trunkline.scoring.metrics import (
    Estimate,
    accuracy,
    calibration,
    majority_at_k,
    mean_pass_at_k,
    mean_pass_hat_k,
    paired,
    per_solved,
)

__all__ = ["FIGURES", "Ends", "covered", "paired_cover"]

Ends = tuple[float | None, float | None]


class Spread(NamedTuple):
    """A beta distribution of how likely tasks are to be solved."""

    a: float
    b: float

    @property
    def mean(self) -> float:
        return self.a / (self.a + self.b)

    def rising(self, rights: int, wrongs: int) -> float:
        """The chance that certain tries of a task are right, and certain others wrong."""
        parts = [self.a + step for step in range(rights)] + [self.b + step for step in range(wrongs)]
        return math.prod(parts) / math.prod(self.a + self.b + step for step in range(rights + wrongs))


def _ends(found: Estimate | None) -> Ends:
    assert found is not None
    return found.low, found.high


def _tries(dice: Random, spread: Spread, tasks: int, tries: int) -> list[list[float]]:
    chances = [dice.betavariate(*spread) for _ in range(tasks)]
    return [[float(dice.random() < chance) for _ in range(tries)] for chance in chances]


def _accuracy(dice: Random, spread: Spread, tasks: int, tries: int) -> Ends:
    return _ends(accuracy(_tries(dice, spread, tasks, tries)))


def _unbounded(dice: Random, spread: Spread, tasks: int, tries: int) -> Ends:
    """Rewards of 3 less a cost that every try of a task shares: they get the t interval."""
    rewards = []
    for task in _tries(dice, spread, tasks, tries):
        own = dice.gauss(0, 1)
        rewards.append([3 * reward - own for reward in task])
    return _ends(accuracy(rewards))


def _pass_at(k: int) -> Callable[[Random, Spread, int, int], Ends]:
    return lambda dice, spread, tasks, tries: _ends(mean_pass_at_k(_tries(dice, spread, tasks, tries), k))


def _pass_hat(k: int) -> Callable[[Random, Spread, int, int], Ends]:
    return lambda dice, spread, tasks, tries: _ends(mean_pass_hat_k(_tries(dice, spread, tasks, tries), k))


def _majority(dice: Random, spread: Spread, tasks: int, tries: int) -> Ends:
    rewards = _tries(dice, spread, tasks, tries)
    answers = [["yes" if reward else "no" for reward in task] for task in rewards]
    return _ends(majority_at_k(answers, rewards, 3))


def _of_three(spread: Spread) -> float:
    return spread.rising(3, 0) + 3 * spread.rising(2, 1)


def _solved(dice: Random, spread: Spread, tasks: int, _tries: int) -> Ends:
    """What a task costs has a heavy tail, and those that are not solved cost half as much again."""
    won = [dice.random() < spread.mean for _ in range(tasks)]
    found = per_solved([dice.lognormvariate(0, 0.8) * (1 if solved else 1.5) for solved in won], won)
    return (0.0, math.inf) if found is None else (found.low, found.high)


def _worth(spread: Spread) -> float:
    return math.exp(0.32) * (spread.mean + 1.5 * (1 - spread.mean)) / spread.mean


SURE = {1.0: ((0.8, 0.6), (0.5, 0.3), (0.2, 0.1)), 0.0: ((0.8, 0.2), (0.5, 0.3), (0.2, 0.5))}
"""How likely each confidence is, of right tries and of wrong ones."""


def _pairs(dice: Random, spread: Spread, tasks: int, tries: int) -> tuple[list[list[float]], list[list[float]]]:
    """Tries with confidences; in four tasks of ten, tries that are alike have one confidence."""
    rewards = _tries(dice, spread, tasks, tries)

    def draw(right: float) -> float:
        values, weights = zip(*SURE[right], strict=True)
        return dice.choices(values, weights)[0]

    confidences = []
    for task in rewards:
        alike = {right: draw(right) for right in SURE} if dice.random() < 0.4 else None
        confidences.append([draw(right) if alike is None else alike[right] for right in task])
    return confidences, rewards


def _calibrated(name: str) -> Callable[[Random, Spread, int, int], Ends]:
    def measure(dice: Random, spread: Spread, tasks: int, tries: int) -> Ends:
        found = calibration(*_pairs(dice, spread, tasks, tries))
        assert found is not None
        ratio = getattr(found, name)
        # Where all tries are right, or the two kinds do not overlap, there is no interval that could be wrong.
        return (-math.inf, math.inf) if ratio is None or ratio.low is None else (ratio.low, ratio.high)

    return measure


def _sure(power: int, right: float, less: float) -> float:
    return sum((value - less) ** power * weight for value, weight in SURE[right])


FIGURES: dict[str, tuple[Callable[[Random, Spread, int, int], Ends], Callable[[Spread], float]]] = {
    "accuracy": (_accuracy, lambda spread: spread.mean),
    "unbounded": (_unbounded, lambda spread: 3 * spread.mean),
    "pass@2": (_pass_at(2), lambda spread: 1 - spread.rising(0, 2)),
    "pass@4": (_pass_at(4), lambda spread: 1 - spread.rising(0, 4)),
    "pass^2": (_pass_hat(2), lambda spread: spread.rising(2, 0)),
    "pass^4": (_pass_hat(4), lambda spread: spread.rising(4, 0)),
    "majority@3": (_majority, _of_three),
    "solved": (_solved, _worth),
    "auroc": (_calibrated("auroc"), lambda _spread: 0.76),
    "brier": (
        _calibrated("brier"),
        lambda spread: spread.mean * _sure(2, 1.0, 1.0) + (1 - spread.mean) * _sure(2, 0.0, 0.0),
    ),
    "gap": (
        _calibrated("gap"),
        lambda spread: spread.mean * _sure(1, 1.0, 0.0) + (1 - spread.mean) * _sure(1, 0.0, 0.0) - spread.mean,
    ),
}
"""How each figure is measured, and what it is in truth."""


def covered(figure: str, spread: tuple[float, float], tasks: int, tries: int, times: int) -> float:
    """How often the interval of a figure holds the truth.

    Args:
        figure: One of :data:`FIGURES`.
        spread: How likely tasks are to be solved, as a beta distribution.
        tasks: Tasks of a run.
        tries: Tries of a task.
        times: Runs to draw.
    """
    dice, drawn = Random(11), Spread(*spread)
    measure, truth = FIGURES[figure]
    wanted, held = truth(drawn), 0
    for _ in range(times):
        low, high = measure(dice, drawn, tasks, tries)
        held += low is not None and high is not None and low - 1e-12 <= wanted <= high + 1e-12
    return held / times


def paired_cover(
    spread: tuple[float, float], redrawn: float, gain: float, tasks: int, tries: tuple[int, int], times: int
) -> float:
    """How often the interval of a paired difference holds the truth.

    Args:
        spread: How likely tasks are to be solved by the first, as a beta distribution.
        redrawn: The share of tasks on which the second is unlike the first.
        gain: The share of what is missing to 1 that the second gains on every task.
        tasks: Tasks in both.
        tries: Tries of a task in the first, and in the second.
        times: Comparisons to draw.
    """
    dice, drawn = Random(5), Spread(*spread)
    wanted, held = gain * (1 - drawn.mean), 0
    one, other = tries
    draws = 2 / (1 / one + 1 / other)
    for _ in range(times):
        first, second = [], []
        for _ in range(tasks):
            chance = dice.betavariate(*drawn)
            later = dice.betavariate(*drawn) if dice.random() < redrawn else chance
            later += gain * (1 - later)
            first.append(sum(dice.random() < chance for _ in range(one)) / one)
            second.append(sum(dice.random() < later for _ in range(other)) / other)
        found = paired(first, second, draws=draws)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low - 1e-12 <= wanted <= found.high + 1e-12
    return held / times
