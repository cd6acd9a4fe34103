"""What ended rollouts are worth: asked while others grow, written down when all of a round have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline.score.notes import as_noted
from trunkline.score.rewards.calling import report, score
from trunkline.score.rewards.grading import Grader
from trunkline.score.rewards.naming import full_name
from trunkline.score.verdicts import grade
from trunkline.tree.trajectory import Trajectory
from trunkline.types import UNSCORED, Termination

if TYPE_CHECKING:
    from trunkline.score.rewards import Reward, Scored
    from trunkline.tree.tree import Tree

__all__ = ["Scores"]


class Scores:
    """The rewards of one tree.

    Args:
        tree: The tree.
        reward: Scores rollouts that have an outcome, with those of other trees where a grader is shared; None leaves
            them unscored.
        value: Says what a rollout is worth that took all the steps it was given; None leaves it unscored.
    """

    def __init__(self, tree: Tree, reward: Reward | Grader | None, value: Reward | None) -> None:
        self._tree = tree
        self._grader = reward if reward is None or isinstance(reward, Grader) else Grader(reward)
        self._value = value
        self._worth: dict[int, tuple[str, Scored]] = {}

    async def ask(self, number: int, termination: Termination, *, spent: bool) -> None:
        """Ask what an ended rollout is worth.

        Args:
            number: Its id.
            termination: Why it ended.
            spent: Whether it took all the steps it was given.
        """
        trajectory = Trajectory(self._tree, number)
        if spent and self._value is not None:
            name, said = full_name(self._value), await score(self._value, trajectory, cut=True)
        elif not spent and self._grader is not None and termination not in UNSCORED:
            name, said = self._grader.name, await self._grader.score(trajectory)
        else:
            return
        report(trajectory, said)
        self._worth[number] = name, said

    def write(self) -> None:
        """Score a round in logical order: sums of rewards, which decide ties, must not depend on who was faster.

        What rewards are made of, and why there is none, stands in the rollouts' notes.
        """
        for number in sorted(self._worth):
            name, said = self._worth[number]
            self._tree.core.score(number, said.value)
            grade(self._tree.core, number, *as_noted(name, said))
        self._worth.clear()
