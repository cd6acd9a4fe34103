"""What one try is worth, and what the best of several is."""

from __future__ import annotations

import math

import msgspec

from trunkline.errors import UsageError
from trunkline.score.metrics.estimate import Estimate, Rewards, estimate, inside, scored

__all__ = ["accuracy", "avg_at_k", "best_of_n"]


def accuracy(rewards: Rewards) -> Estimate | None:
    """Accuracy of one try: the mean over tasks of the mean over their scored tries.

    The interval treats tasks as the sample and tries of a task as one cluster. Rewards between 0 and 1 get
    Wilson's score interval on the effective sample size (:func:`~trunkline.score.metrics.interval.wilson`); other
    rewards the t interval of the task means.

    Args:
        rewards: For each task the rewards of its tries.

    Returns:
        The estimate, or None if nothing is scored.
    """
    tasks = [found for found in map(scored, rewards) if found]
    means = [math.fsum(found) / len(found) for found in tasks]
    return estimate(means, sum(map(len, tasks)), sum(map(len, rewards)), bounded=inside(rewards))


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
    if k < 1:
        raise UsageError(f"avg@{k} has no meaning: k must be at least 1")
    counted = accuracy([task for task in rewards if len(scored(task)) >= k])
    return None if counted is None else msgspec.structs.replace(counted, tries=sum(map(len, rewards)))


def best_of_n(rewards: Rewards) -> Estimate | None:
    """The mean over tasks of the best reward among their scored tries, as a perfect choice would reach it.

    Args:
        rewards: For each task the rewards of its tries.

    Returns:
        The estimate, or None if nothing is scored.
    """
    tasks = [found for found in map(scored, rewards) if found]
    # One value a task: for the interval each task is one try.
    best = estimate([max(found) for found in tasks], len(tasks), sum(map(len, rewards)), bounded=inside(rewards))
    return None if best is None else msgspec.structs.replace(best, scored=sum(map(len, tasks)))
