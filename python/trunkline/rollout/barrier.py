"""Where the rollouts of one tree meet between rounds."""

from __future__ import annotations

import asyncio

__all__ = ["Barrier"]


class Barrier:
    """Counts rollouts that grow, and holds those that wait for the next round."""

    def __init__(self) -> None:
        self._growing = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._still = asyncio.Event()

    def start(self) -> None:
        """One more rollout grows."""
        self._growing += 1
        self._still.clear()

    def end(self) -> None:
        """One of those that grow has ended."""
        self._growing -= 1
        if not self._growing:
            self._still.set()

    async def wait(self, rollout: int) -> None:
        """Wait for the next round.

        Args:
            rollout: The id of one that grows.

        Raises:
            Exception: What :meth:`go` was given for it.
        """
        turn = self._waiting[rollout] = asyncio.get_running_loop().create_future()
        self.end()
        try:
            await turn
        except asyncio.CancelledError:
            if self._waiting.pop(rollout, None) is not None:
                self.start()  # it is stopped where it waits, and ends as one that grows
            raise

    @property
    def waiting(self) -> set[int]:
        """Who waits."""
        return set(self._waiting)

    async def rest(self) -> list[int]:
        """Wait until nobody grows; returns who waits, ascending."""
        while self._growing:
            await self._still.wait()
        return sorted(self._waiting)

    def go(self, rollout: int, end: Exception | None = None) -> None:
        """Let one that waits go on, or end with an exception."""
        turn = self._waiting.pop(rollout)
        self.start()
        if end is None:
            turn.set_result(None)
        else:
            turn.set_exception(end)
