"""Rewards for tests; importable by workers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

import trunkline as tl

if TYPE_CHECKING:
    from trunkline.tree.views import Trajectory


@tl.reward(batch=4)
async def lengths(trajectories: list[Trajectory]) -> list[float]:
    """Letters of each answer."""
    assert 1 <= len(trajectories) <= 4
    return [float(len(one.answer or "")) for one in trajectories]


@tl.reward(thread=True, timeout=0.2, name="patience")
def patient(trajectory: Trajectory) -> float:
    """Takes too long over Japan."""
    if trajectory.task.id == "Japan":
        time.sleep(0.6)
    return 1.0


class Counting(msgspec.Struct, frozen=True):
    """Counts how often a letter stands in the answers of a batch."""

    letter: str = "a"
    batch: int = 8

    def __call__(self, trajectories: list[Trajectory]) -> list[float]:
        return [float((one.answer or "").count(self.letter)) for one in trajectories]
