"""What ended rollouts are worth: asked while others grow, written down when all of a round have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline.score.rewards.calling import apply
from trunkline.tree.trajectory import Trajectory
from trunkline.types import UNSCORED, Termination

if TYPE_CHECKING:
    from trunkline.score.rewards import Reward
    from trunkline.tree.tree import Tree

__all__ = ["Scores"]


class Scores:
    """The rewards of one tree.

    Args:
        tree: The tree.
        reward: Scores rollouts that have an outcome; None leaves them unscored.
        value: Says what a rollout is worth that took all the steps it was given; None leaves it unscored.
    """

    def __init__(self, tree: Tree, reward: Reward | None, value: Reward | None) -> None:
        self._tree = tree
        self._reward = reward
        self._value = value
        self._worth: dict[int, float] = {}

    async def ask(self, number: int, termination: Termination, *, spent: bool) -> None:
        """Ask what an ended rollout is worth.

        Args:
            number: Its id.
            termination: Why it ended.
            spent: Whether it took all the steps it was given.
        """
        judge = self._value if spent else self._reward
        if judge is not None and (spent or termination not in UNSCORED):
            self._worth[number] = await apply(judge, Trajectory(self._tree, number), cut=spent)

    def write(self) -> None:
        """Score a round in logical order: sums of rewards, which decide ties, must not depend on who was faster."""
        for number in sorted(self._worth):
            self._tree.core.score(number, self._worth[number])
        self._worth.clear()
