"""How many may be at something at once, in each event loop."""

from __future__ import annotations

import asyncio
import threading

__all__ = ["Slots"]


class Slots:
    """A semaphore for whatever outlives event loops: each run may have a loop of its own, also in threads of their own.

    Args:
        size: Most holders at once in one loop.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._here = threading.local()

    def here(self) -> asyncio.Semaphore:
        """Return the semaphore of the running loop."""
        loop = asyncio.get_running_loop()
        if getattr(self._here, "loop", None) is not loop:
            self._here.loop, self._here.semaphore = loop, asyncio.Semaphore(self._size)
        semaphore: asyncio.Semaphore = self._here.semaphore
        return semaphore
