"""What becomes one record of an export: a leaf, with all rollouts that ended there in the same way."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from trunkline.tree.trajectory import Trajectory
from trunkline.types import UNSCORED, Usage

if TYPE_CHECKING:
    from trunkline.tree.tree import Tree

__all__ = ["Leaf", "leaves"]


class Leaf(msgspec.Struct, frozen=True):
    """Rollouts of one tree that said the same to the end, and of which the same became.

    Attributes:
        first: The one that was opened first; it stands for all.
        rollouts: The numbers of all, ascending.
        reward: Their reward; None while unscored, and for those that no reward function sees.
        usage: What the calls of all of them cost, so that sums over an export are those of its run.
    """

    first: Trajectory
    rollouts: tuple[int, ...]
    reward: float | None
    usage: Usage

    @property
    def weight(self) -> int:
        """How many rollouts it stands for."""
        return len(self.rollouts)

    @property
    def references(self) -> tuple[str, ...]:
        """The accepted answers of its task."""
        return self.first.task.reference

    @property
    def report(self) -> str | None:
        """The compressed reasoning that was noted on its last node, if any was."""
        return self.first.leaf.compressed_reasoning

    @property
    def raw(self) -> msgspec.Raw:
        """Its conversation as the JSON that was sent."""
        return msgspec.Raw(self.first.tree.core.messages(self.first.leaf.id))


def leaves(tree: Tree) -> list[Leaf]:
    """The records of a tree, in the order in which their first rollouts were opened.

    Rollouts never merge, nodes do: several rollouts may end on one node. They are one record with their number as its
    weight where termination, answer, reward, error and note agree as well, since a record has one of each. Weights of
    a tree add up to its rollouts.

    Args:
        tree: The tree; it may still grow.
    """
    alike: dict[tuple[object, ...], list[Trajectory]] = {}
    rewards: dict[tuple[object, ...], float | None] = {}
    for number in range(tree.core.rollouts):
        facts = tree.core.rollout(number)
        reward = facts.reward if math.isfinite(facts.reward) and facts.termination not in UNSCORED else None
        key = (facts.leaf, facts.termination, facts.answer, reward, facts.error, facts.note)
        alike.setdefault(key, []).append(Trajectory(tree, number))
        rewards[key] = reward
    return [
        Leaf(
            first=rollouts[0],
            rollouts=tuple(rollout.id for rollout in rollouts),
            reward=rewards[key],
            usage=sum((rollout.usage for rollout in rollouts), Usage()),
        )
        for key, rollouts in alike.items()
    ]
