"""Rewards that compare an answer with the accepted ones: the same, contained in it, or close in number."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from trunkline.bounds import number as amount
from trunkline.score.answers import number, tail
from trunkline.tree.vote import fold, normalise

if TYPE_CHECKING:
    from trunkline.tree.trajectory import Trajectory

__all__ = ["Numeric", "contains", "exact_match", "numeric_match"]

_CONTAINS = 50_000  # characters at the end of an answer that are searched


def exact_match(trajectory: Trajectory) -> float | None:
    """1.0 if the answer equals an accepted one after normalisation, else 0.0.

    Args:
        trajectory: An ended rollout.

    Returns:
        The reward; None if the task has no accepted answer.
    """
    accepted = {normalise(reference) for reference in trajectory.task.reference}
    if not accepted:
        return None
    answer = trajectory.answer
    return float(answer is not None and normalise(answer) in accepted)


class Numeric(msgspec.Struct, frozen=True):
    """:func:`numeric_match` with differences of your own.

    Args:
        relative: Largest difference as a share of the larger number.
        absolute: Largest difference that is always accepted.

    Raises:
        ConfigError: One is negative, or no number.
    """

    relative: float = 1e-6
    absolute: float = 1e-9

    def __post_init__(self) -> None:
        amount("Numeric: relative", self.relative, 0)
        amount("Numeric: absolute", self.absolute, 0)

    def __call__(self, trajectory: Trajectory) -> float | None:
        """Return 1.0 if the numbers are close enough, else 0.0; None if no accepted answer states a number.

        Args:
            trajectory: An ended rollout.
        """
        return numeric_match(trajectory, relative=self.relative, absolute=self.absolute)


def _searched(text: str) -> str:
    return fold(tail(text.strip(), _CONTAINS))


def contains(trajectory: Trajectory) -> float | None:
    """1.0 if an accepted answer stands in the answer as whole words after normalisation, else 0.0.

    Of an answer of more than 50,000 characters only the last ones are searched.

    Args:
        trajectory: An ended rollout.

    Returns:
        The reward; None if the task has no accepted answer.
    """
    accepted = [_searched(reference) for reference in trajectory.task.reference]
    if not any(accepted):
        return None
    answer = f" {_searched(trajectory.answer or '')} "
    return float(any(f" {reference} " in answer for reference in accepted if reference))


def numeric_match(trajectory: Trajectory, *, relative: float = 1e-6, absolute: float = 1e-9) -> float | None:
    """1.0 if the number in the answer is close to the number in an accepted one, else 0.0.

    Args:
        trajectory: An ended rollout.
        relative: Largest difference as a share of the larger number.
        absolute: Largest difference that is always accepted.

    Returns:
        The reward; None if no accepted answer states a number.
    """
    accepted = [value for value in map(number, trajectory.task.reference) if value is not None]
    if not accepted:
        return None
    found = number(trajectory.answer or "")
    if found is None:
        return 0.0
    return float(any(math.isclose(found, value, rel_tol=relative, abs_tol=absolute) for value in accepted))
