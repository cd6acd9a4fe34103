"""A worker's state, and a watchdog that names code which blocks its event loop."""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from trunkline._internal.frames import users_function
from trunkline._internal.resources import resident
from trunkline.llm.http.client import HttpLLM
from trunkline.llm.pricing import named
from trunkline.observability.logging import safe
from trunkline.protocol.messages import EndpointState, OldestRollout, WorkerState
from trunkline.tools.executor import TOOL_THREAD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import FrameType

    from trunkline.rollout.sampling.completions import CompletionClient, CompletionClients
    from trunkline.rollout.tree_runner import TreeRunner
    from trunkline.tools.environment_pool import PoolCounts


_SLOWEST = 3
"""The number of oldest rollouts that are reported."""

_NAME = 100
"""Characters of a name that are reported."""


def collect_state(
    lag: float,
    client: CompletionClient | CompletionClients,
    llms: Mapping[str, Any],
    runners: Iterable[TreeRunner],
    now: float,
    environments: PoolCounts | None = None,
) -> WorkerState:
    """Return a worker's state at this reading of ``time.monotonic``."""
    turn_gate, runners = client.turn_gate, list(runners)
    requests, request = turn_gate.requests
    tools, tool, seconds = turn_gate.tools
    spoken_to = {name: llm for name, llm in llms.items() if isinstance(llm, HttpLLM)}
    return WorkerState(
        lag,
        resident(),
        sum(len(runner.tree.core.growing) for runner in runners),
        requests,
        request,
        tools,
        safe(tool, _NAME),
        seconds,
        _slowest(runners, now),
        [
            EndpointState(
                safe(named(name, endpoint.base_url), 2 * _NAME),
                endpoint.queue.in_flight,
                endpoint.queue.waiting,
                safe(endpoint.trouble.message, 2 * _NAME)
                if endpoint.until > now and endpoint.trouble is not None
                else "",
                endpoint.until - now if now < endpoint.until < math.inf else 0.0,
            )
            for name, llm in spoken_to.items()
            for endpoint in llm.endpoints
        ],
        min((left for llm in spoken_to.values() if (left := llm.next_try) is not None), default=None),
        environments,
    )


def _slowest(runners: Iterable[TreeRunner], now: float) -> list[OldestRollout]:
    ages = ((rollout.began, rollout.id, runner) for runner in runners if (rollout := runner.oldest) is not None)
    found = heapq.nsmallest(_SLOWEST, ages, key=lambda age: age[:2])
    return [
        OldestRollout(safe(runner.tree.task.id, _NAME), number, now - began, runner.place(number))
        for began, number, runner in found
    ]


logger = logging.getLogger(__name__)

_EVERY = 0.1
"""Seconds between two looks."""

_BLOCKED = 1.0
"""Seconds that a loop may be blocked before the blocking function is named."""

_WINDOW = 10.0
"""Seconds over which the loop's lateness is averaged."""

_LATE = 0.25
"""Mean seconds of lateness from which a worker is short of Python time."""


_BLOCKS = (
    "%s blocks the event loop of this worker for more than %.0f s: nothing else runs meanwhile; use await in it, or "
    "asyncio.to_thread; a tool that is a plain def runs in a thread"
)
_HELD = (
    "%s runs in a thread and kept Python's interpreter to itself for more than %.0f s: nothing else of this worker ran "
    "meanwhile; @tool(isolated=True) runs it in a process of its own"
)


class Watchdog:
    """Watches the event loop it is made in from a thread, in which it calls ``looked`` each time."""

    def __init__(self, looked: Callable[[], None] = lambda: None) -> None:
        self._looked = looked
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._thread)
        self._woke = self._ticked = time.monotonic()
        self._lag = 0.0
        self._names = True
        self._short = False
        self._over = threading.Event()
        self._begin_window()
        self._tick()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def lag(self) -> float:
        """Return the seconds that the loop was late at most since the last call."""
        lag, self._lag = max(self._lag, self._late()), 0.0
        return lag

    def pause(self) -> None:
        """Name no function meanwhile: imports and garbage collection block, and are no fault."""
        self._names = False

    def resume(self) -> None:
        """Watch a new run."""
        self._woke = self._ticked = time.monotonic()
        self._lag = 0.0
        self._names, self._short = True, False
        self._begin_window()

    def close(self) -> None:
        self._over.set()
        self._timer.cancel()

    def _late(self) -> float:
        return max(0.0, time.monotonic() - self._ticked - _EVERY)

    def _loop_cpu(self) -> float:
        return time.clock_gettime(self._clock)

    def _tick(self) -> None:
        late = self._late()
        self._lag = max(self._lag, late)
        self._lateness += late
        self._ticks += 1
        self._ticked = time.monotonic()
        if self._ticked - self._began >= _WINDOW:
            self._end_window()
        self._timer = self._loop.call_later(_EVERY, self._tick)

    def _begin_window(self) -> None:
        self._began, self._lateness, self._ticks = time.monotonic(), 0.0, 0
        self._cpu_before = time.process_time(), self._loop_cpu()

    def _end_window(self) -> None:
        """Say once that the loop is short of time, and what to change."""
        wall, late = self._ticked - self._began, self._lateness / self._ticks
        process, loop = self._cpu_before
        busy = (self._loop_cpu() - loop) / wall
        others = (time.process_time() - process) / wall - busy
        self._begin_window()
        if self._names and not self._short and late >= _LATE:
            self._short = True
            logger.warning(
                "this worker is short of Python time: its event loop was late by %.0f ms in the mean of %.0f s; %s "
                "(said once)",
                late * 1000,
                wall,
                remedy(busy, others, in_tool_threads(sys._current_frames())),
            )

    def _watch(self) -> None:
        named = 0.0
        self._woke, used = time.monotonic(), self._loop_cpu()
        while not self._over.wait(_EVERY):
            self._looked()
            ticked = self._ticked
            overslept = time.monotonic() - self._woke - _EVERY
            if not self._names or ticked == named:
                pass
            elif overslept > _BLOCKED and self._loop_cpu() - used < overslept / 2:
                # This thread woke late, and the loop's did not run: a third one held the interpreter.
                named = ticked
                self._name(in_tool_threads(sys._current_frames()), _HELD)
            elif time.monotonic() - ticked > _BLOCKED + _EVERY:
                named = ticked
                self._name(users_function(sys._current_frames().get(self._thread)), _BLOCKS)
            self._woke, used = time.monotonic(), self._loop_cpu()

    def _name(self, place: str | None, message: str) -> None:
        """Name the function of user code that keeps the loop from running; None if only the library's own does."""
        if place is not None:
            self._begin_window()
            logger.warning(message, place, _BLOCKED)


def remedy(busy: float, others: float, tool: str | None) -> str:
    """What to change, given the parts of a core that the loop's thread and the process's other threads used."""
    if others >= max(0.3, busy / 2):
        who = f"threads of tools, {tool} among them," if tool else "other threads"
        return (
            f"{who} used {others:.0%} of a core: @tool(isolated=True) runs a tool in a process of its own; "
            "more workers help too"
        )
    if busy >= 0.6:
        return f"it used {busy:.0%} of a core: give the run more workers, or a smaller max_concurrency"
    return (
        f"it got {busy:.0%} of a core, as other processes use the {os.cpu_count()} cores of this machine: give the run "
        "fewer workers, or the machine less other work"
    )


def in_tool_threads(frames: Mapping[int, FrameType]) -> str | None:
    """Name a function of user code that runs in a thread for tools; None if no such thread runs user code."""
    threads = (one.ident for one in threading.enumerate() if one.name == TOOL_THREAD)
    places = (users_function(frames.get(ident)) for ident in threads if ident is not None)
    return next(filter(None, places), None)
