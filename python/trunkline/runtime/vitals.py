"""How an engine is: what it answers to a ping."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline.llm.http import HttpLLM
from trunkline.llm.names import named
from trunkline.runtime.logs import safe
from trunkline.runtime.memory import resident

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trunkline.rollout.draws import Draws
    from trunkline.rollout.session import Session
    from trunkline.rollout.switchboard import Switchboard

__all__ = ["Door", "EngineState", "Slow", "feel"]

_SLOWEST = 3
"""How many of the slowest rollouts are told of."""

_NAME = 100
"""Characters of a name that are told."""


class Slow(msgspec.Struct, array_like=True, frozen=True):
    """A rollout that has been growing for long: the oldest of its task.

    Attributes:
        task: Id of its task, printable.
        rollout: Its number in the tree.
        seconds: For how long it has been growing here.
        place: What it waits for: ``model``, ``tool``, ``budget``, ``strategy``, ``run file`` or ``program``.
    """

    task: str
    rollout: int
    seconds: float
    place: str


class Door(msgspec.Struct, array_like=True, frozen=True):
    """An endpoint, as one engine sees it.

    Attributes:
        endpoint: Its base URL, without secrets.
        out: Requests that are out there.
        waiting: Requests that wait for a slot or a limit.
        shut: Why it gets no requests for now; empty while it does.
    """

    endpoint: str
    out: int
    waiting: int
    shut: str = ""


class EngineState(msgspec.Struct, array_like=True):
    """How an engine is.

    Attributes:
        lag: Seconds that its event loop was late at most, since the last answer.
        memory: Bytes that its process holds.
        rollouts: Rollouts that grow.
        requests: Requests that are out.
        request: Seconds that the oldest of them is.
        tools: Tool calls that run.
        tool: Name of the tool that runs longest; empty for none.
        tool_seconds: How long that is.
        slow: The slowest rollouts.
        doors: The endpoints.
        retry: Seconds until the next request is sent again; None where none waits for that.
    """

    lag: float
    memory: int
    rollouts: int
    requests: int
    request: float
    tools: int
    tool: str
    tool_seconds: float
    slow: list[Slow] = msgspec.field(default_factory=list)
    doors: list[Door] = msgspec.field(default_factory=list)
    retry: float | None = None


def feel(
    lag: float, draws: Draws | Switchboard, llms: Mapping[str, Any], sessions: Iterable[Session], now: float
) -> EngineState:
    """Look at an engine.

    Args:
        lag: Seconds that its event loop was late.
        draws: Who asks for its rollouts.
        llms: Who answers, by name.
        sessions: Its trees.
        now: The reading of :func:`time.monotonic`.
    """
    lanes, underway = draws.lanes, draws.underway
    requests, request = underway.requests
    tools, tool, seconds = underway.tools
    spoken_to = {name: llm for name, llm in llms.items() if isinstance(llm, HttpLLM)}
    return EngineState(
        lag,
        resident(),
        lanes.running + lanes.asking + lanes.away,
        requests,
        request,
        tools,
        safe(tool, _NAME),
        seconds,
        _slowest(sessions, now),
        [
            Door(
                safe(named(name, door.base_url), 2 * _NAME),
                door.gate.in_flight,
                door.gate.waiting,
                safe(door.trouble.message, 2 * _NAME) if door.until > now and door.trouble is not None else "",
            )
            for name, llm in spoken_to.items()
            for door in llm.endpoints
        ],
        min((left for llm in spoken_to.values() if (left := llm.next_try) is not None), default=None),
    )


def _slowest(sessions: Iterable[Session], now: float) -> list[Slow]:
    ages = ((rollout.began, rollout.id, session) for session in sessions if (rollout := session.oldest) is not None)
    found = heapq.nsmallest(_SLOWEST, ages, key=lambda age: age[:2])
    return [
        Slow(safe(session.tree.task.id, _NAME), number, now - began, session.place(number))
        for began, number, session in found
    ]
