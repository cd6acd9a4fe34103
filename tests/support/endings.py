"""Ended rollouts, made without a run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trunkline.scoring.rewards.grading import AT_ONCE, Grader
from trunkline.tree.views import Tree
from trunkline.types import Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.scoring.rewards import Reward, Scored
    from trunkline.tree.views import Trajectory


def ending(answer: str | None, *references: str, termination: str = "answer", **metadata: Any) -> Trajectory:
    """The one rollout of a task with some reference answers, which answered so."""
    asked = {"role": "user", "content": "?"}
    tree = Tree(Task(id="t", messages=[asked], reference=references, metadata=metadata))
    point = tree.core.append(0, 1, json.dumps(asked).encode())
    tree.core.close(tree.core.open(point, [0, 0]), termination, answer)
    return tree.rollouts[0]


async def grade(reward: Reward, trajectories: Sequence[Trajectory], *, at_once: int = AT_ONCE) -> list[Scored]:
    """Ask a reward about ended rollouts, all of which are there."""
    async with Grader(reward) as grader:
        return await grader.score_all(trajectories, at_once=at_once)
