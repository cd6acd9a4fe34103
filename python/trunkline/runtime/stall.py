"""A stall: nothing has got into the run file for a while. What is waited for, since when, and what comes next."""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trunkline.runtime.snapshot import Snapshot

__all__ = ["STALLED", "Stalls", "explain"]

logger = logging.getLogger(__name__)

STALLED = 30.0
"""Seconds without progress that are explained."""

_SILENT = 5.0
"""Seconds of silence of a worker that are told of."""


class Stalls:
    """Says in the log what a run waits for: after 30 seconds without progress, and each time that has doubled."""

    def __init__(self) -> None:
        self._next = STALLED

    def look(self, snapshot: Snapshot) -> None:
        """Look at a run; once a second is enough."""
        if snapshot.quiet < STALLED:
            self._next = STALLED
        elif snapshot.quiet >= self._next:
            self._next = 2 * snapshot.quiet
            logger.warning("%s", explain(snapshot))


def explain(snapshot: Snapshot) -> str | None:
    """Say why nothing goes on, in one printable line; None while something does."""
    if snapshot.quiet < STALLED:
        return None
    idle = "no request and no tool call is out" if snapshot.engines else "no worker has said yet how it is"
    reasons = list(_reasons(snapshot)) or [idle]
    retries = [state.retry for state in snapshot.engines.values() if state.retry is not None]
    if retries:
        reasons.append(f"next retry in {max(0.0, min(retries)):.0f} s")
    return f"no progress for {snapshot.quiet:.0f} s: " + "; ".join(reasons)


def _reasons(snapshot: Snapshot) -> Iterator[str]:
    states = snapshot.engines.values()
    out: dict[str, int] = defaultdict(int)
    waiting: dict[str, int] = defaultdict(int)
    shut: dict[str, str] = {}
    for state in states:
        for door in state.doors:
            out[door.endpoint] += door.out
            waiting[door.endpoint] += door.waiting
            if door.shut:
                shut[door.endpoint] = door.shut
    oldest = max((state.request for state in states), default=0.0)
    at = " and ".join(endpoint for endpoint, number in out.items() if number)
    requests = sum(state.requests for state in states)
    if requests:
        where = f" at {at}" if at else ""
        yield f"{_count(requests, 'request waits', 'requests wait')}{where}, the oldest for {oldest:.0f} s"
    for endpoint, number in waiting.items():
        if number:
            yield f"{_count(number, 'of them waits', 'of them wait')} to be let in at {endpoint}"
    yield from (f"{endpoint} gets no requests for now: {why}" for endpoint, why in shut.items())
    tools = sum(state.tools for state in states)
    if tools:
        longest = max(states, key=lambda state: state.tool_seconds)
        yield f"{_count(tools, 'tool call runs', 'tool calls run')}, {longest.tool} for {longest.tool_seconds:.0f} s"
    for seat, silent in snapshot.silent.items():
        if silent >= _SILENT:
            yield f"worker {seat} has not answered for {silent:.0f} s"
    if snapshot.workers == 0:
        yield "no worker is up"


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
