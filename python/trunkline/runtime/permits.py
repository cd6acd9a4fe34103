"""Permits: how much may be under way at once; who waited longest is next."""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["Permits"]


class Permits:
    """Counts permits that are free.

    An ``asyncio.Semaphore`` looks at every waiter for each permit that is released, and cannot shrink.

    Args:
        free: How many there are. What is released beyond these adds to them.
    """

    __slots__ = ("_free", "_waiting")

    def __init__(self, free: int) -> None:
        self._free = free
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        """Take one, in the order in which it was asked for."""
        if self._free > 0:
            self._free -= 1
            return
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if not mine.cancelled():
                self.release(1)  # it had come, and nobody will use it
            raise

    def release(self, count: int) -> None:
        """Let others have so many; those that wait get them at once."""
        self._free += count
        while self._free > 0 and self._waiting:
            mine = self._waiting.popleft()
            if not mine.done():
                self._free -= 1
                mine.set_result(None)

    def withdraw(self, count: int) -> None:
        """Let there be so many fewer; those that are taken count as soon as they are released."""
        self._free -= count
