"""How good estimators are: bias, error and sign of the advantages they give, against the truth."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from studies.estimators import ESTIMATORS
from studies.interval import Interval, ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from studies.cell import Group
    from studies.estimators import Guess

__all__ = ["LEAST", "Quality", "qualities"]

LEAST: Final = 0.1
"""The sign of a step counts where its true advantage is at least this far from 0."""


class Quality(NamedTuple):
    """What one estimator is worth on the trees of one arm. Questions are the sample, since steps of a path are alike.

    Attributes:
        estimator: Its name.
        target: What it estimates.
        steps: How many steps were judged.
        bias: Mean of estimate less truth.
        error: Mean squared error, less what the truth itself is uncertain by.
        slope: How much of a true advantage it gives, on average: 1 keeps the scale, 0 says nothing.
        sign: Share of steps whose sign it has right, among those with a true advantage of at least ``LEAST``; an
            estimate of 0 is half right.
    """

    estimator: str
    target: str
    steps: int
    bias: Interval
    error: Interval
    slope: Interval
    sign: Interval


def qualities(groups: Sequence[Group], arm: str) -> list[Quality]:
    """Judge every estimator on the trees of one arm.

    Args:
        groups: Of one preset or of several.
        arm: The arm.
    """
    found: dict[str, list[list[Guess]]] = defaultdict(list)
    for group in groups:
        if group.arm == arm and group.guesses:
            for estimator in ESTIMATORS:
                own = [guess for guess in group.guesses if guess.estimator == estimator.name]
                found[estimator.name].append(own)
    return [_quality(estimator.name, estimator.target, found[estimator.name]) for estimator in ESTIMATORS]


def _quality(name: str, target: str, questions: Sequence[Sequence[Guess]]) -> Quality:
    def per_step(value: Callable[[Guess], float], weight: Callable[[Guess], float] = lambda _: 1.0) -> Interval:
        above = [math.fsum(map(value, guesses)) for guesses in questions]
        below = [math.fsum(map(weight, guesses)) for guesses in questions]
        return ratio(above, below)

    return Quality(
        name,
        target,
        sum(map(len, questions)),
        per_step(lambda guess: guess.value - guess.true),
        per_step(lambda guess: (guess.value - guess.true) ** 2 - guess.error),
        per_step(lambda guess: guess.value * guess.true, lambda guess: guess.true**2 - guess.error),
        per_step(_signed, _counts),
    )


def _counts(guess: Guess) -> float:
    return float(abs(guess.true) >= LEAST)


def _signed(guess: Guess) -> float:
    if not _counts(guess):
        return 0.0
    if abs(guess.value) < 1e-9:
        return 0.5
    return float((guess.value > 0) == (guess.true > 0))
