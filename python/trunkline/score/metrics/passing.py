"""The chance that at least one of k tries is right."""

from __future__ import annotations

import math

from trunkline.errors import UsageError
from trunkline.score.metrics.estimate import Estimate, Rewards, estimate, scored

__all__ = ["mean_pass_at_k", "pass_at_k"]


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
    if not 1 <= k <= n:
        raise UsageError(f"pass@{k} cannot be computed from {n} tries: k must lie between 1 and the number of tries")
    if not 0 <= c <= n:
        raise UsageError(f"{c} right tries out of {n} are impossible")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


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
    if k < 1:
        raise UsageError(f"pass@{k} has no meaning: k must be at least 1")
    tasks = [found for found in map(scored, rewards) if len(found) >= k]
    means = [pass_at_k(len(task), sum(reward >= threshold for reward in task), k) for task in tasks]
    return estimate(means, sum(map(len, tasks)), sum(map(len, rewards)), bounded=True)
