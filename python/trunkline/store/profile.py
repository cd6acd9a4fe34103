"""Where the time of a run went: by agent, by tool, and in the slowest rollouts. All of it is from its rows."""

from __future__ import annotations

import heapq
import math
from array import array
from typing import TYPE_CHECKING

import msgspec

from trunkline.store.calls import Times

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trunkline.store.schema import CallRow, RolloutRow, ToolRow

__all__ = ["Profile", "SlowRollout", "Stretch", "profile"]

_SLOWEST = 10


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """The time that went into one agent's model calls, or one tool's calls.

    Attributes:
        name: The agent or the tool.
        calls: How many; replies out of a cache are in no figure.
        failed: How many of them failed.
        seconds: What they took together, waits included.
        at_once: How many ran at once, on the average over the run's wall time: ``seconds`` divided by that.
        share: Their share of all time in models and tools.
        times: Percentiles of single calls, in seconds.
    """

    name: str
    calls: int
    failed: int
    seconds: float
    at_once: float
    share: float
    times: Times


class SlowRollout(msgspec.Struct, frozen=True):
    """A rollout that took long.

    Attributes:
        task: Id of its task.
        rollout: Its number in the tree.
        seconds: What it spent in models and tools.
        llm_seconds: In models.
        tool_seconds: In tools; calls that ran side by side count one by one.
        turns: Model turns on its path.
    """

    task: str
    rollout: int
    seconds: float
    llm_seconds: float
    tool_seconds: float
    turns: int


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a run went.

    Attributes:
        seconds: Wall time of the run.
        agents: Model calls by agent, the longest first.
        tools: Tool calls by tool, the longest first.
        slowest: The slowest rollouts of finished tasks.
    """

    seconds: float
    agents: list[Stretch]
    tools: list[Stretch]
    slowest: list[SlowRollout]


class _Sum:
    """Adds up calls of one name."""

    def __init__(self) -> None:
        self.micros = array("q")
        self.failed = 0

    def add(self, micros: int, *, failed: bool) -> None:
        self.micros.append(micros)
        self.failed += failed


def profile(
    agent: str,
    seconds: float,
    calls: Iterable[tuple[int, CallRow]],
    uses: Iterable[tuple[int, ToolRow]],
    rollouts: Iterable[tuple[int, RolloutRow]],
    names: Sequence[str],
) -> Profile:
    """Add up where the time of a run went.

    Args:
        agent: Who plays.
        seconds: Wall time of the run.
        calls: Its model calls, each with its task's number; so are the tool calls and the rollouts.
        uses: Its tool calls.
        rollouts: Its rollouts.
        names: Ids of the tasks, by their numbers.
    """
    asked: dict[str, _Sum] = {}
    for _, call in calls:
        if call.attempts:
            asked.setdefault(agent, _Sum()).add(call.micros, failed=call.failed)
    used: dict[str, _Sum] = {}
    for _, use in uses:
        used.setdefault(use.tool, _Sum()).add(use.micros, failed=use.failed)
    every = sum(sum(found.micros) for found in (*asked.values(), *used.values()))
    slow = heapq.nlargest(_SLOWEST, rollouts, key=lambda one: one[1].llm_micros + one[1].tool_micros)
    return Profile(
        seconds=seconds,
        agents=_stretches(asked, seconds, every),
        tools=_stretches(used, seconds, every),
        slowest=[
            SlowRollout(
                names[number],
                row.rollout,
                (row.llm_micros + row.tool_micros) / 1e6,
                row.llm_micros / 1e6,
                row.tool_micros / 1e6,
                row.turns,
            )
            for number, row in slow
        ],
    )


def _stretches(sums: dict[str, _Sum], wall: float, every: int) -> list[Stretch]:
    found = []
    for name, one in sums.items():
        ordered = sorted(one.micros)
        seconds = sum(ordered) / 1e6
        found.append(
            Stretch(
                name=name,
                calls=len(ordered),
                failed=one.failed,
                seconds=seconds,
                at_once=seconds / wall if wall > 0 else 0.0,
                share=sum(ordered) / every if every else 0.0,
                times=Times(_rank(ordered, 0.5), _rank(ordered, 0.95), ordered[-1] / 1e6),
            )
        )
    return sorted(found, key=lambda stretch: (-stretch.seconds, stretch.name))


def _rank(ordered: Sequence[int], share: float) -> float:
    """The nearest rank, in seconds."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] / 1e6
