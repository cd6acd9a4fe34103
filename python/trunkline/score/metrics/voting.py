"""What the answer with the most votes is worth."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trunkline.errors import UsageError
from trunkline.score.metrics.estimate import Estimate, Rewards, estimate, inside, scored
from trunkline.tree.vote import vote

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["majority_at_n"]


def _majority(answers: Sequence[str | None], rewards: Sequence[float]) -> float | None:
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
    return estimate(means, len(means), tries, bounded=inside(rewards))
