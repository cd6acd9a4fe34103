"""Environments that give a reward for each step, may end the rollout, and leave facts; importable by workers.

All of it is a function of the words that were written, so that a test can work it out from the conversation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from trunkline.tools.environment import Environment
from trunkline.tools.tool import tool
from trunkline.tree.views import Kind, Trajectory
from trunkline.types import Task


def step_of(words: Sequence[str]) -> tuple[float | None, bool, bool] | None:
    """What the environment says of a step after so many words."""
    luck = sum(map(ord, words)) + len(words)
    if luck % 5 == 0:
        return None
    return None if luck % 3 == 0 else luck / 7, luck % 11 == 0, luck % 13 == 0


class Walk(Environment):
    """Goes where words lead; forks by replay."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.open = False

    async def fresh(self, task: Task) -> None:
        self.open = True

    async def stepped(self) -> tuple[float | None, bool, bool] | None:
        return step_of(self.words)

    async def final_info(self) -> dict[str, Any]:
        return {"words": self.words}

    async def close(self) -> None:
        self.open = False


class SnappedWalk(Walk):
    """The same with snapshots."""

    async def snapshot(self) -> bytes:
        return json.dumps(self.words).encode()

    async def restore(self, snapshot: bytes) -> None:
        self.words, self.open = json.loads(snapshot), True


class SilentWalk(Walk):
    """The same, which gives no rewards and leaves nothing."""

    stepped = Environment.stepped
    final_info = Environment.final_info


@tool
async def look(what: str, walk: Walk) -> str:
    """Go one step.

    Args:
        what: Where.
    """
    walk.words.append(what)
    return f"seen {what}"


def length_walked(trajectory: Trajectory, environment: Walk) -> float:
    """A reward that looks at the environment, which must be open."""
    assert environment.open
    return len(environment.words) + (trajectory.answer == "1") / 2


def steps_walked(trajectory: Trajectory) -> list[list[str]]:
    """The words that were written before and in each turn with a call, by the conversation."""
    words: list[str] = []
    found = []
    turns = [node for node in trajectory.nodes if node.kind in {Kind.TURN, Kind.OBSERVATION}]
    for node, after in zip(turns, [*turns[1:], None], strict=True):
        if node.kind is Kind.TURN and after is not None and after.kind is Kind.OBSERVATION:
            words += [json.loads(call["function"]["arguments"])["what"] for call in node.message["tool_calls"]]
            found.append(list(words))
    return found


def expected_rewards(trajectory: Trajectory) -> list[float]:
    """The step reward of each turn, NaN where none was given."""
    said = [step_of(words) for words in steps_walked(trajectory)]
    given = [math.nan if one is None or one[0] is None else one[0] for one in said]
    return given + [math.nan] * (trajectory.turns - len(given))
