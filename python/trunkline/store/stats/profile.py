"""Where the time of a run went: by agent, by tool, and in the slowest rollouts. All of it is from its rows."""

from __future__ import annotations

import heapq
from array import array
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from trunkline.store.busy import Spans, union
from trunkline.store.calls import Times, cached, times
from trunkline.store.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trunkline.store.schema import CallRow, RolloutRow, ToolRow

__all__ = ["AgentProfile", "Profile", "SlowRollout", "Stretch", "profile"]

_SLOWEST = 10

_AnyStretch = TypeVar("_AnyStretch", bound="Stretch")


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """The time that went into one agent's model calls, or one tool's calls.

    Attributes:
        name: The agent or the tool.
        calls: How many; replies out of a cache are in no figure.
        failed: How many of them failed.
        seconds: What they took together, waits included.
        at_once: How many ran at once, on the average over the run's wall time: ``seconds`` divided by that.
        share: Their share of all time in models and tools.
        times: Percentiles of single calls, in seconds; None without any.
    """

    name: str
    calls: int
    failed: int
    seconds: float
    at_once: float
    share: float
    times: Times | None


class AgentProfile(Stretch, frozen=True, kw_only=True):
    """What one agent of a run came to: the agent of the run, one that a program asks, or a role of a team.

    Attributes:
        prompt: Prompt tokens of its calls, cached ones included.
        cached: Cached ones among them.
        generated: Generated tokens.
        unreported: Calls that were answered without usage; their tokens are in no figure.
        busy: The share of the run's wall time in which at least one of its calls was out. One is out from when it has
            its slot until it is answered.
        rows: The rows of a team's role; None for an agent that is none.
    """

    prompt: int
    cached: int
    generated: int
    unreported: int
    busy: float
    rows: Rows | None = None


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
        busy: The share of it in which at least one model call was out, which is how long engines had something to do.
        out: How many model calls were out, on the average over it.
        agents: Model calls by agent, the longest first.
        tools: Tool calls by tool, the longest first.
        slowest: The slowest rollouts of finished tasks.
    """

    seconds: float
    busy: float
    out: float
    agents: list[AgentProfile]
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

    def figures(self, name: str, wall: float, every: int) -> dict[str, Any]:
        """What a stretch says of them."""
        total = sum(self.micros)
        return {
            "name": name,
            "calls": len(self.micros),
            "failed": self.failed,
            "seconds": total / 1e6,
            "at_once": _part(total, wall),
            "share": total / every if every else 0.0,
            "times": times(self.micros),
        }


class _Asked(_Sum):
    """Adds up model calls of one agent."""

    def __init__(self) -> None:
        super().__init__()
        self.spans = Spans()
        self.prompt = self.cached = self.generated = self.unreported = 0

    def call(self, call: CallRow) -> None:
        self.add(call.micros, failed=call.failed)
        self.spans.add(call.started + min(call.queue, call.micros), call.started + call.micros)
        if call.reported:
            self.prompt += call.prompt
            self.cached += cached(call)
            self.generated += call.generated
        else:
            self.unreported += not call.failed


def profile(
    agent: str,
    seconds: float,
    calls: Iterable[tuple[int, CallRow]],
    uses: Iterable[tuple[int, ToolRow]],
    rollouts: Iterable[tuple[int, RolloutRow]],
    names: Sequence[str],
    rows: Mapping[str, Rows] | None = None,
) -> Profile:
    """Add up where the time of a run went.

    Args:
        agent: Who plays: the agent of calls that name none.
        seconds: Wall time of the run.
        calls: Its model calls, each with its task's number; so are the tool calls and the rollouts.
        uses: Its tool calls.
        rollouts: Its rollouts.
        names: Ids of the tasks, by their numbers.
        rows: What became of a team's rows, by role.
    """
    asked: dict[str, _Asked] = {name: _Asked() for name in rows or {}}
    for _, call in calls:
        if call.attempts:
            asked.setdefault(call.agent or agent, _Asked()).call(call)
    used: dict[str, _Sum] = {}
    for _, use in uses:
        used.setdefault(use.tool, _Sum()).add(use.micros, failed=use.failed)
    every = sum(sum(found.micros) for found in (*asked.values(), *used.values()))
    spans = [one.spans for one in asked.values()]
    return Profile(
        seconds=seconds,
        busy=min(1.0, _part(union(*spans), seconds)),
        out=_part(sum(one.length for one in spans), seconds),
        agents=_longest(_agent(name, one, seconds, every, (rows or {}).get(name)) for name, one in asked.items()),
        tools=_longest(Stretch(**one.figures(name, seconds, every)) for name, one in used.items()),
        slowest=_slowest(rollouts, names),
    )


def _agent(name: str, asked: _Asked, wall: float, every: int, rows: Rows | None) -> AgentProfile:
    return AgentProfile(
        **asked.figures(name, wall, every),
        prompt=asked.prompt,
        cached=asked.cached,
        generated=asked.generated,
        unreported=asked.unreported,
        busy=min(1.0, _part(union(asked.spans), wall)),
        rows=rows,
    )


def _part(micros: int, wall: float) -> float:
    """Microseconds as a share of seconds."""
    return micros / 1e6 / wall if wall > 0 else 0.0


def _longest(stretches: Iterable[_AnyStretch]) -> list[_AnyStretch]:
    return sorted(stretches, key=lambda stretch: (-stretch.seconds, stretch.name))


def _slowest(rollouts: Iterable[tuple[int, RolloutRow]], names: Sequence[str]) -> list[SlowRollout]:
    slow = heapq.nlargest(_SLOWEST, rollouts, key=lambda one: one[1].llm_micros + one[1].tool_micros)
    return [
        SlowRollout(
            names[number],
            row.rollout,
            (row.llm_micros + row.tool_micros) / 1e6,
            row.llm_micros / 1e6,
            row.tool_micros / 1e6,
            row.turns,
        )
        for number, row in slow
    ]
