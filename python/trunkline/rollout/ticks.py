"""Turns of the event loop, counted once for everybody who waits for some of them."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Final

__all__ = ["after"]

_TICKS: Final = 12
"""Turns of the event loop that a program has to come from one result to what it does next: a task that ends, and the
gather or group that waits for it, take three together."""


def after(waiting: asyncio.Future[None]) -> None:
    """Let a future of the running loop come true after a dozen turns of that loop.

    A task that slept for each turn would cost far more, and so would a callback in each turn for each who waits.
    """
    loop = asyncio.get_running_loop()
    clock: _Clock | None = getattr(_here, "clock", None)
    if clock is None or clock.loop is not loop:
        clock = _here.clock = _Clock(loop)
    clock.add(waiting)


class _Clock:
    """Counts the turns of one loop while anybody waits.

    Args:
        loop: The loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._new: list[asyncio.Future[None]] = []
        self._turns: deque[list[asyncio.Future[None]]] = deque([] for _ in range(_TICKS))
        self._left = 0

    def add(self, waiting: asyncio.Future[None]) -> None:
        self._new.append(waiting)
        self._left += 1
        if self._left == 1:
            self.loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._turns.append(self._new)
        self._new = []
        due = self._turns.popleft()
        self._left -= len(due)
        for waiting in due:
            if not waiting.done():
                waiting.set_result(None)
        if self._left:
            self.loop.call_soon(self._tick)


_here = threading.local()
