"""Metrics by their names, as they are written on a command line: ``accuracy``, ``pass@4``, ``majority``."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

import msgspec

from trunkline.errors import UsageError
from trunkline.printable import quoted
from trunkline.score.metrics.averages import accuracy, avg_at_k, best_of_n
from trunkline.score.metrics.estimate import scored
from trunkline.score.metrics.passing import mean_pass_at_k, mean_pass_hat_k, pass_at_k, pass_hat_k
from trunkline.score.metrics.voting import majority_at_k, majority_at_n, majority_of, worth_of_k

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.score.metrics.estimate import Estimate, Rewards

__all__ = ["Metric", "metric"]

_PLAIN: Final = ("accuracy", "best", "majority")
_OF_K: Final = ("avg@", "pass@", "pass^", "majority@")
_NAME = re.compile(r"(avg@|pass@|pass\^|majority@)([0-9]{1,6})")


class Metric(msgspec.Struct, frozen=True):
    """A metric of the tries of tasks; make one with :func:`metric`.

    Attributes:
        kind: ``accuracy``, ``best``, ``majority``, or the part of the name before its number.
        k: The number; None for a metric without one.
    """

    kind: str
    k: int | None = None

    @property
    def name(self) -> str:
        """The name that :func:`metric` reads."""
        return self.kind if self.k is None else f"{self.kind}{self.k}"

    def value(self, answers: Sequence[str | None], rewards: Sequence[float]) -> float | None:
        """What the tries of one task come to.

        Args:
            answers: Their answers; None where a try has none.
            rewards: Their rewards; NaN where a try was not scored.

        Returns:
            The value, or None where this task does not count: too few of its tries are scored.
        """
        found = scored(rewards)
        if len(found) < (self.k or 1):
            return None
        if self.kind in ("accuracy", "avg@"):
            return math.fsum(found) / len(found)
        if self.kind == "best":
            return max(found)
        if self.kind == "majority":
            return majority_of(answers, rewards)
        assert self.k is not None
        if self.kind == "majority@":
            return worth_of_k(answers, rewards, self.k)
        chance = pass_at_k if self.kind == "pass@" else pass_hat_k
        return chance(len(found), sum(reward >= 1.0 for reward in found), self.k)

    def draws(self, tries: int) -> float:
        """How many independent values of it so many scored tries of a task could hold, at least 1.

        Args:
            tries: Scored tries.
        """
        if self.kind in ("best", "majority"):
            return 1.0
        each = 1 if self.kind == "avg@" else self.k or 1
        return max(1.0, tries / each)

    def estimate(self, answers: Sequence[Sequence[str | None]], rewards: Rewards) -> Estimate | None:
        """The metric over tasks, with its interval.

        Args:
            answers: For each task the answers of its tries.
            rewards: Their rewards.

        Returns:
            The estimate, or None if no task counts.
        """
        if self.k is None:
            if self.kind == "majority":
                return majority_at_n(answers, rewards)
            return accuracy(rewards) if self.kind == "accuracy" else best_of_n(rewards)
        if self.kind == "majority@":
            return majority_at_k(answers, rewards, self.k)
        of_k = {"avg@": avg_at_k, "pass@": mean_pass_at_k, "pass^": mean_pass_hat_k}[self.kind]
        return of_k(rewards, self.k)


def metric(name: str) -> Metric:
    """Read the name of a metric.

    Args:
        name: ``accuracy`` (the mean reward of one try), ``best``, ``majority``, or one with a number of tries, as
            ``avg@4``, ``pass@4``, ``pass^4`` and ``majority@4``.

    Raises:
        UsageError: There is no such metric; the message lists those that there are.
    """
    if name in _PLAIN:
        return Metric(name)
    found = _NAME.fullmatch(name)
    if found is None or int(found[2]) < 1:
        known = ", ".join([*_PLAIN, *(f"{kind}K" for kind in _OF_K)])
        raise UsageError(f"there is no metric {quoted(name, 40)}: it is one of {known}, with K tries, at least 1")
    return Metric(found[1], int(found[2]))
