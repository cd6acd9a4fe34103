"""Metrics over the rewards of several tries per task.

Everywhere a list holds one list of rewards for each task, NaN marks a try that was not scored, and a result
without a single scored try behind it is None: nothing that was not measured is shown as 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import msgspec

from trunkline.errors import UsageError
from trunkline.tree.vote import vote

__all__ = ["Estimate", "accuracy", "best_of_n", "majority_at_n", "mean_pass_at_k", "pass_at_k"]

Rewards = Sequence[Sequence[float]]


class Estimate(msgspec.Struct, frozen=True):
    """A mean over tasks, with a 95 % interval where one can be given.

    Attributes:
        value: The mean over tasks of each task's own value.
        low: Lower end of the interval; None if fewer than two tasks count.
        high: Upper end.
        tasks: Tasks that count.
        scored: Scored tries behind them.
        tries: All tries, also those of tasks that do not count.
    """

    value: float
    low: float | None
    high: float | None
    tasks: int
    scored: int
    tries: int


def _scored(rewards: Sequence[float]) -> list[float]:
    return [reward for reward in rewards if not math.isnan(reward)]


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


def _interval(means: list[float], tries: int, bounded: bool) -> tuple[float, float] | tuple[None, None]:
    count = len(means)
    if count < 2:
        return None, None
    mean = math.fsum(means) / count
    error = math.fsum((value - mean) ** 2 for value in means) / (count - 1) / count
    t = student(count - 1)
    if not bounded:
        half = t * math.sqrt(error)
        return mean - half, mean + half
    # How many independent tries would have given this error between tasks. Where tasks agree completely the
    # data hold no estimate of it: then the tasks are the sample if all rewards are equal, else the tries.
    spread = mean * (1 - mean)
    size = float(count) if spread <= 0 else min(float(tries), spread / error) if error > 0 else float(tries)
    weight = t * t / size
    centre = (mean + weight / 2) / (1 + weight)
    half = t / (1 + weight) * math.sqrt(max(spread, 0.0) / size + weight / (4 * size))
    return max(0.0, min(mean, centre - half)), min(1.0, max(mean, centre + half))


def _estimate(means: list[float], scored: int, tries: int, bounded: bool) -> Estimate | None:
    if not means:
        return None
    low, high = _interval(means, scored, bounded)
    return Estimate(math.fsum(means) / len(means), low, high, len(means), scored, tries)


def _bounded(rewards: Rewards) -> bool:
    return all(0.0 <= reward <= 1.0 for task in rewards for reward in _scored(task))


def accuracy(rewards: Rewards) -> Estimate | None:
    """Accuracy of one try: the mean over tasks of the mean over their scored tries.

    The interval treats tasks as the sample and tries of a task as one cluster. Rewards between 0 and 1 get
    Wilson's score interval (Wilson 1927) on the effective sample size, with Student's t on tasks - 1 degrees
    of freedom (Korn and Graubard 1998; compared by Dean and Pagano 2015); other rewards the t interval of
    the task means.

    Args:
        rewards: For each task the rewards of its tries.

    Returns:
        The estimate, or None if nothing is scored.
    """
    tasks = [scored for scored in map(_scored, rewards) if scored]
    means = [math.fsum(scored) / len(scored) for scored in tasks]
    return _estimate(means, sum(map(len, tasks)), sum(map(len, rewards)), _bounded(rewards))


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
    tasks = [scored for scored in map(_scored, rewards) if len(scored) >= k]
    means = [pass_at_k(len(task), sum(reward >= threshold for reward in task), k) for task in tasks]
    return _estimate(means, sum(map(len, tasks)), sum(map(len, rewards)), bounded=True)


def best_of_n(rewards: Rewards) -> Estimate | None:
    """The mean over tasks of the best reward among their scored tries, as a perfect choice would reach it.

    Args:
        rewards: For each task the rewards of its tries.

    Returns:
        The estimate, or None if nothing is scored.
    """
    tasks = [scored for scored in map(_scored, rewards) if scored]
    # One value a task: for the interval each task is one try.
    estimate = _estimate([max(scored) for scored in tasks], len(tasks), sum(map(len, rewards)), _bounded(rewards))
    return None if estimate is None else msgspec.structs.replace(estimate, scored=sum(map(len, tasks)))


def _majority(answers: Sequence[str | None], rewards: Sequence[float]) -> float | None:
    classes = vote(answers)
    values: list[float] = []
    for votes in classes:
        if len(votes.voters) < len(classes[0].voters):
            break
        scored = _scored([rewards[voter] for voter in votes.voters])
        if not scored:
            return None
        values.append(math.fsum(scored) / len(scored))
    if values:
        return math.fsum(values) / len(values)
    # Nobody answered: the vote fails, which is measured only if some try was scored.
    return 0.0 if _scored(rewards) else None


def majority_at_n(answers: Sequence[Sequence[str | None]], rewards: Rewards) -> Estimate | None:
    """The mean over tasks of the reward of the answer with the most votes.

    This is self-consistency (Wang et al. 2023).
    Answers are compared after normalisation, and a class of equal answers is worth the mean reward of its
    scored members. A tie counts as its expectation under a fair draw between the classes in it.

    Args:
        answers: For each task the answers of its tries; None does not vote.
        rewards: The rewards of the same tries, in the same order.

    Returns:
        The estimate over the tasks whose leading answers are scored, or None if there is none.
    """
    means: list[float] = []
    tries = 0
    for said, worth in zip(answers, rewards, strict=True):
        if len(said) != len(worth):
            raise UsageError(f"a task has {len(said)} answers but {len(worth)} rewards")
        tries += len(worth)
        mean = _majority(said, worth)
        if mean is not None:
            means.append(mean)
    return _estimate(means, len(means), tries, _bounded(rewards))
