"""A worker's state, and a watchdog that names code which blocks its event loop."""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import os
import sys
import sysconfig
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trunkline._internal.resources import resident
from trunkline._internal.text import printable
from trunkline.llm.http.client import HttpLLM
from trunkline.llm.pricing import named
from trunkline.observability.logging import safe
from trunkline.protocol.messages import EndpointState, OldestRollout, WorkerState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import FrameType

    from trunkline.rollout.sampling.completions import CompletionClient, CompletionClients
    from trunkline.rollout.tree_runner import TreeRunner


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
) -> WorkerState:
    """Return a worker's state at this reading of :func:`time.monotonic`."""
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

_LIBRARY = (sysconfig.get_path("stdlib"), "<frozen")
_PACKAGES = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
_HOST = str(Path(__file__).with_name("main.py"))
_LOOPS = (f"{os.sep}asyncio{os.sep}", f"{os.sep}uvloop{os.sep}")


class Watchdog:
    """Watches the event loop it is made in from a thread, in which it calls ``looked`` each time."""

    def __init__(self, looked: Callable[[], None] = lambda: None) -> None:
        self._looked = looked
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._ticked = time.monotonic()
        self._lag = 0.0
        self._names = True
        self._over = threading.Event()
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
        self._ticked, self._lag = time.monotonic(), 0.0
        self._names = True

    def close(self) -> None:
        self._over.set()
        self._timer.cancel()

    def _late(self) -> float:
        return max(0.0, time.monotonic() - self._ticked - _EVERY)

    def _tick(self) -> None:
        self._lag = max(self._lag, self._late())
        self._ticked = time.monotonic()
        self._timer = self._loop.call_later(_EVERY, self._tick)

    def _watch(self) -> None:
        named = 0.0
        while not self._over.wait(_EVERY):
            self._looked()
            ticked = self._ticked
            blocked = time.monotonic() - ticked
            if self._names and blocked > _BLOCKED + _EVERY and ticked != named:
                named = ticked
                frame = sys._current_frames().get(self._thread)
                if frame is not None and (place := blocking_function(frame)) is not None:
                    logger.warning(
                        "%s blocks the event loop of this worker for more than %.0f s: nothing else runs meanwhile; "
                        "use await, or make it a sync tool, which runs in a thread",
                        place,
                        _BLOCKED,
                    )


def blocking_function(frame: FrameType) -> str | None:
    """Name the innermost function of a thread that is not of Python or the event loop; None in the loop itself."""
    at: FrameType | None = frame
    while at is not None:
        code = at.f_code
        if code.co_filename == _HOST:
            return None
        if not _is_pythons(code.co_filename):
            return printable(f"{code.co_qualname} ({code.co_filename}:{at.f_lineno})")
        at = at.f_back
    return None


def _is_pythons(file: str) -> bool:
    if any(loop in file for loop in _LOOPS):
        return True
    return file.startswith(_LIBRARY) and not file.startswith(_PACKAGES)
