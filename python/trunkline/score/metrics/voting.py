"""What the answer with the most votes is worth."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from trunkline.errors import UsageError
from trunkline.score.metrics.estimate import Estimate, Rewards, estimate, inside, scored
from trunkline.score.metrics.shares import shares
from trunkline.tree.vote import vote

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["majority_at_k", "majority_at_n", "majority_of", "worth_of_k"]


def majority_of(answers: Sequence[str | None], rewards: Sequence[float]) -> float | None:
    """What the answer of a task with the most votes is worth; see :func:`majority_at_n`.

    Args:
        answers: The answers of its tries.
        rewards: The rewards of the same tries.

    Returns:
        The reward, or None where the leading answers are not scored.
    """
    classes = vote(answers)
    values: list[float] = []
    for votes in classes:
        if len(votes.voters) < len(classes[0].voters):
            break
        found = scored([rewards[voter] for voter in votes.voters])
        if not found:
            return None
        values.append(math.fsum(found) / len(found))
    if values:
        return math.fsum(values) / len(values)
    # Nobody answered: the vote fails, which is measured only if some try was scored.
    return 0.0 if scored(rewards) else None


def majority_at_n(answers: Sequence[Sequence[str | None]], rewards: Rewards) -> Estimate | None:
    """The mean over tasks of the reward of the answer with the most votes.

    This is self-consistency (Wang et al. 2023).
    Answers are compared after normalisation (:func:`trunkline.tree.vote.normalise`), and a class of equal answers is
    worth the mean reward of its scored members. A tie counts as its expectation under a fair draw between the classes
    in it. Aggregators join more answers than that, as 1/2 and 0.5, so one may find another majority.

    Args:
        answers: For each task the answers of its tries; None does not vote.
        rewards: The rewards of the same tries, in the same order.

    Returns:
        The estimate over the tasks whose leading answers are scored, or None if there is none.
    """
    means: list[float] = []
    tries = 0
    for said, worth in _matched(answers, rewards):
        tries += len(worth)
        mean = majority_of(said, worth)
        if mean is not None:
            means.append(mean)
    return estimate(means, len(means), tries, bounded=inside(rewards))


def worth_of_k(answers: Sequence[str | None], rewards: Sequence[float], k: int) -> float | None:
    """What a vote among k tries of a task is worth, in the mean over all subsets of k of its scored tries.

    Args:
        answers: The answers of its tries.
        rewards: The rewards of the same tries; what was not scored does not vote.
        k: Tries in a vote, at least 1.

    Returns:
        The mean, or None with fewer than k scored tries.
    """
    counted = [position for position, reward in enumerate(rewards) if not math.isnan(reward)]
    if len(counted) < k:
        return None
    worth = [rewards[position] for position in counted]
    classes = vote(answers[position] for position in counted)
    sizes = tuple(len(votes.voters) for votes in classes)
    won = shares(sizes, len(counted) - sum(sizes), k)
    # Which members of a class are in a subset is a fair draw too, so each class is worth the mean over its members.
    means = [math.fsum(worth[voter] for voter in votes.voters) / len(votes.voters) for votes in classes]
    value = math.fsum(share * mean for share, mean in zip(won, means, strict=True))
    # Chances that add up to 1 may do so but for a rounding.
    return max(min(0.0, *worth), min(max(0.0, *worth), value))


def majority_at_k(answers: Sequence[Sequence[str | None]], rewards: Rewards, k: int) -> Estimate | None:
    """The mean over tasks of what a vote among k of their tries is worth, over all subsets of k tries.

    It is what :func:`majority_at_n` would give in the mean if only k tries had been made, with answers compared alike:
    exact, as subsets are counted and not drawn, and with k the number of tries the same. Tries without an answer are
    tries, and do not vote; a subset without a vote is worth 0. Tries that were not scored are left out.

    Args:
        answers: For each task the answers of its tries.
        rewards: The rewards of the same tries, in the same order.
        k: Tries in a vote, at least 1.

    Returns:
        The estimate over the tasks with at least k scored tries, or None if there is none.
    """
    if k < 1:
        raise UsageError(f"majority@{k} has no meaning: k must be at least 1")
    means: list[float] = []
    tries = votes = behind = 0
    for said, worth in _matched(answers, rewards):
        tries += len(worth)
        mean = worth_of_k(said, worth, k)
        if mean is not None:
            means.append(mean)
            found = len(scored(worth))
            behind += found
            # As many votes of k could have been held with tries of their own.
            votes += found // k
    held = estimate(means, votes, tries, bounded=inside(rewards))
    return None if held is None else msgspec.structs.replace(held, scored=behind)


def _matched(
    answers: Sequence[Sequence[str | None]], rewards: Rewards
) -> Iterator[tuple[Sequence[str | None], Sequence[float]]]:
    for said, worth in zip(answers, rewards, strict=True):
        if len(said) != len(worth):
            raise UsageError(f"a task has {len(said)} answers but {len(worth)} rewards")
        yield said, worth
