"""Estimates over tasks with clustered intervals. NaN marks an unscored try; without a scored try a result is None."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from statistics import NormalDist

import msgspec

from trunkline.errors import UsageError

Ends = tuple[float, float] | tuple[None, None]
"""Both ends of an interval, or neither."""


def student(freedom: int) -> float:
    """The 97.5 % point of Student's t distribution.

    The first two are closed forms; the others the expansion around the normal point in Abramowitz and Stegun,
    26.7.5, which is within 0.2 % from three degrees of freedom on.

    Args:
        freedom: Degrees of freedom, at least 1.
    """
    if freedom < 3:
        return 12.706204736 if freedom == 1 else 4.302652730
    z = NormalDist().inv_cdf(0.975)
    terms: tuple[float, ...] = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / float(freedom) ** (power + 1) for power, term in enumerate(terms))


def around(means: Sequence[float], tries: int, *, bounded: bool) -> Ends:
    """The interval of a mean over tasks: Wilson's for rewards between 0 and 1, else the t interval."""
    if len(means) < 2:
        return None, None
    return wilson(means, tries) if bounded else t_interval(means)


def t_interval(means: Sequence[float]) -> tuple[float, float]:
    """Student's t interval of a mean."""
    mean, error = _moments(means)
    half = student(len(means) - 1) * math.sqrt(error)
    return mean - half, mean + half


def wilson(means: Sequence[float], tries: int) -> tuple[float, float]:
    """Wilson's score interval (Wilson 1927) of a mean of values between 0 and 1, on the effective sample size.

    Student's t replaces the normal point (Korn and Graubard 1998; compared by Dean and Pagano 2015).
    """
    count = len(means)
    mean, error = _moments(means)
    t = student(count - 1)
    # How many independent tries would have given this error between tasks. Where tasks agree completely the
    # data hold no estimate of it: then the tasks are the sample if all rewards are equal, else the tries.
    spread = mean * (1 - mean)
    size = float(count) if spread <= 0 else min(float(tries), spread / error) if error > 0 else float(tries)
    weight = t * t / size
    centre = (mean + weight / 2) / (1 + weight)
    half = t / (1 + weight) * math.sqrt(max(spread, 0.0) / size + weight / (4 * size))
    return max(0.0, min(mean, centre - half)), min(1.0, max(mean, centre + half))


def _moments(means: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the square of its standard error."""
    count = len(means)
    mean = math.fsum(means) / count
    return mean, math.fsum([(value - mean) ** 2 for value in means]) / (count - 1) / count


def correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Pearson's correlation of two columns; 0 where one of them does not vary."""
    middle, centre = math.fsum(first) / len(first), math.fsum(second) / len(second)
    above, below = array("d", (value - middle for value in first)), array("d", (value - centre for value in second))
    size = math.sqrt(math.fsum(x * x for x in above)) * math.sqrt(math.fsum(y * y for y in below))
    if size <= 0:
        return 0.0
    return max(-1.0, min(1.0, math.fsum(x * y for x, y in zip(above, below, strict=True)) / size))


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


def check_k(name: str, k: int) -> None:
    if k < 1:
        raise UsageError(f"{name}{k} has no meaning: k must be at least 1")


def scored(rewards: Sequence[float]) -> list[float]:
    """The rewards of the tries of a task that were scored."""
    return [reward for reward in rewards if not math.isnan(reward)]


def inside(rewards: Rewards) -> bool:
    """Whether every reward lies between 0 and 1."""
    return all(0.0 <= reward <= 1.0 for task in rewards for reward in scored(task))


def estimate(
    means: Sequence[float], independent: int, tries: int, *, bounded: bool, scored: int | None = None
) -> Estimate | None:
    """The mean of one value per task; its interval is that of so many independent tries (``scored`` unless given)."""
    if not means:
        return None
    low, high = around(means, independent, bounded=bounded)
    behind = independent if scored is None else scored
    return Estimate(math.fsum(means) / len(means), low, high, len(means), behind, tries)


class RewardCounter:
    """Counts the rewards of a run for its accuracy and its best of n, one task at a time.

    ``bounded`` says whether every reward lies between 0 and 1.
    """

    def __init__(self) -> None:
        self._means, self._best = array("d"), array("d")
        self._scored = self._tries = 0
        self.bounded = True

    @classmethod
    def of(cls, rewards: Rewards) -> RewardCounter:
        """Count the rewards of all tasks."""
        counter = cls()
        for task in rewards:
            counter.add(task)
        return counter

    def add(self, rewards: Sequence[float]) -> int:
        """Add the tries of a task; returns how many were scored."""
        self._tries += len(rewards)
        match scored(rewards):
            case []:
                return 0
            case found:
                count, least, best = len(found), min(found), max(found)
                mean = math.fsum(found) / count
        self._scored += count
        self._means.append(mean)
        self._best.append(best)
        self.bounded = self.bounded and least >= 0.0 and best <= 1.0
        return count

    def add_single(self, tries: int, rewards: Sequence[float]) -> None:
        """Add tasks of one try each, and the rewards of those that were scored."""
        self._tries += tries
        self._scored += len(rewards)
        self._means.extend(rewards)
        self._best.extend(rewards)
        if rewards:
            self.bounded = self.bounded and min(rewards) >= 0.0 and max(rewards) <= 1.0

    def accuracy(self) -> Estimate | None:
        """See ``accuracy``."""
        return estimate(self._means, self._scored, self._tries, bounded=self.bounded)

    def best_of_n(self) -> Estimate | None:
        """See ``best_of_n``; for the interval each task is one try."""
        return estimate(self._best, len(self._best), self._tries, bounded=self.bounded, scored=self._scored)


def accuracy(rewards: Rewards) -> Estimate | None:
    """Accuracy of one try: the mean over tasks of the mean over their scored tries.

    The interval treats tasks as the sample and tries of a task as one cluster. Rewards between 0 and 1 get
    Wilson's score interval on the effective sample size (``wilson``); other
    rewards the t interval of the task means.

    Args:
        rewards: For each task the rewards of its tries.

    Returns:
        The estimate, or None if nothing is scored.
    """
    return RewardCounter.of(rewards).accuracy()


def avg_at_k(rewards: Rewards, k: int) -> Estimate | None:
    """avg@k: the mean reward of k tries of a task, over tasks.

    Every subset of k tries is as good as any other, so the estimate without bias is the mean of all of them; k says
    only which tasks count.

    Args:
        rewards: For each task the rewards of its tries.
        k: Tries, at least 1.

    Returns:
        The estimate over the tasks with at least k scored tries, or None if there is none.
    """
    check_k("avg@", k)
    counted = accuracy([task for task in rewards if len(scored(task)) >= k])
    return None if counted is None else msgspec.structs.replace(counted, tries=sum(map(len, rewards)))


def best_of_n(rewards: Rewards) -> Estimate | None:
    """The mean over tasks of the best reward among their scored tries, as a perfect choice would reach it.

    Args:
        rewards: For each task the rewards of its tries.

    Returns:
        The estimate, or None if nothing is scored.
    """
    return RewardCounter.of(rewards).best_of_n()
