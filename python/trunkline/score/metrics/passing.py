"""The chance that at least one of k tries is right, and the chance that all of them are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from trunkline.errors import UsageError
from trunkline.score.metrics.estimate import Estimate, Rewards, estimate, scored

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["mean_pass_at_k", "mean_pass_hat_k", "pass_at_k", "pass_hat_k"]


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of k tries is right, without bias, from n tries of which c were right.

    It is ``1 - C(n - c, k) / C(n, k)`` (Chen et al. 2021, "Evaluating Large Language Models Trained on
    Code"): the share of all subsets of k tries that hold a right one.

    Args:
        n: Tries made.
        c: Right ones among them.
        k: Tries allowed, from 1 to n.

    Returns:
        A number from 0 to 1.

    Raises:
        UsageError: The numbers do not fit together; fewer than k tries give no unbiased estimate.
    """
    _fitting("pass@", n, c, k)
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """pass^k: the chance that all of k tries are right, without bias, from n tries of which c were right.

    It is ``C(c, k) / C(n, k)`` (Yao et al. 2024, "tau-bench"): the share of all subsets of k tries in which every one
    is right.

    Args:
        n: Tries made.
        c: Right ones among them.
        k: Tries that are to be right, from 1 to n.

    Returns:
        A number from 0 to 1.

    Raises:
        UsageError: The numbers do not fit together; fewer than k tries give no unbiased estimate.
    """
    _fitting("pass^", n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def _fitting(name: str, n: int, c: int, k: int) -> None:
    if not 1 <= k <= n:
        raise UsageError(f"{name}{k} cannot be computed from {n} tries: k must lie between 1 and the number of tries")
    if not 0 <= c <= n:
        raise UsageError(f"{c} right tries out of {n} are impossible")


def mean_pass_at_k(rewards: Rewards, k: int, *, threshold: float = 1.0) -> Estimate | None:
    """pass@k over tasks; see :func:`pass_at_k`.

    Args:
        rewards: For each task the rewards of its tries.
        k: Tries allowed, at least 1.
        threshold: A try is right if its reward is at least this.

    Returns:
        The estimate over the tasks with at least k scored tries (its ``tasks`` says how many), or None if
        there is none.
    """
    return _mean("pass@", pass_at_k, rewards, k, threshold)


def mean_pass_hat_k(rewards: Rewards, k: int, *, threshold: float = 1.0) -> Estimate | None:
    """pass^k over tasks; see :func:`pass_hat_k`.

    Args:
        rewards: For each task the rewards of its tries.
        k: Tries that are to be right, at least 1.
        threshold: A try is right if its reward is at least this.

    Returns:
        The estimate over the tasks with at least k scored tries (its ``tasks`` says how many), or None if
        there is none.
    """
    return _mean("pass^", pass_hat_k, rewards, k, threshold)


def _mean(
    name: str, chance: Callable[[int, int, int], float], rewards: Rewards, k: int, threshold: float
) -> Estimate | None:
    if k < 1:
        raise UsageError(f"{name}{k} has no meaning: k must be at least 1")
    tasks = [found for found in map(scored, rewards) if len(found) >= k]
    means = [chance(len(task), sum(reward >= threshold for reward in task), k) for task in tasks]
    # As many sets of k could have been drawn with tries of their own; more would make the interval too narrow where few
    # tasks agree by chance.
    found = estimate(means, sum(len(task) // k for task in tasks), sum(map(len, rewards)), bounded=True)
    return None if found is None else msgspec.structs.replace(found, scored=sum(map(len, tasks)))
