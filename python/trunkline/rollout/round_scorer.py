"""Scores of the rollouts of one tree, written round by round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trunkline.scoring.notes import as_noted, grade
from trunkline.scoring.rewards import Reward
from trunkline.scoring.rewards.base import OpenTrajectory, Scored, full_name
from trunkline.scoring.rewards.grading import Grader, report, score
from trunkline.tree.views import Trajectory, Tree
from trunkline.types import UNSCORED

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from trunkline.tools.environment import Environment
    from trunkline.types import Termination


class RoundScorer(msgspec.Struct, eq=False):
    """Asks the reward about the rollouts of one tree, and a strategy's value function about those out of steps."""

    tree: Tree
    grader: Grader | None
    value: Reward | None
    earlier: int  # how many rollouts may have grades
    _scored: dict[int, tuple[str, Scored]] = {}

    def ask(
        self, number: int, termination: Termination, environment: Environment | None = None, *, spent: bool
    ) -> Awaitable[None] | None:
        """Score an ended rollout, which ``spent`` all the steps it was given; returns what to wait for, if anything."""
        trajectory = Trajectory(self.tree, number)
        if environment is not None:
            trajectory = OpenTrajectory(self.tree, number, environment)
        said: Scored | Awaitable[Scored]
        if spent and self.value is not None:
            name, said = full_name(self.value), score(self.value, trajectory, cut=True)
        elif not spent and self.grader is not None and termination not in UNSCORED:
            name, said = self.grader.name, self.grader.ask(trajectory)
        else:
            return None
        if not isinstance(said, Scored):
            return self._wait(trajectory, name, said)
        self._keep(trajectory, name, said)
        return None

    async def _wait(self, trajectory: Trajectory, name: str, said: Awaitable[Scored]) -> None:
        self._keep(trajectory, name, await said)

    def _keep(self, trajectory: Trajectory, name: str, said: Scored) -> None:
        if said.problem is not None:
            report(trajectory, said)
        self._scored[trajectory.id] = name, said

    def write(self) -> bool:
        """Write a round's scores in logical order, as sums of rewards decide ties and must not depend on timing."""
        if not self._scored:
            return False
        core, scored, self._scored = self.tree.core, self._scored, {}
        for number, (name, said) in sorted(scored.items()):
            value, problem, parts = said
            core.score(number, value)
            if parts or problem is not None or number < self.earlier:
                grade(core, number, *as_noted(name, said))
        return True
