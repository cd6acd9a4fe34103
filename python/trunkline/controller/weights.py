"""Versions of the weights that change while a run is going on: every engine is told, and heard."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from trunkline.protocol.messages import HoldTurns, SetWeights, TurnsHeld, WeightsSet

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.protocol.messages import ToWorker

__all__ = ["WeightCoordinator"]


class WeightCoordinator:
    """The version of the weights that a run's engines ask under.

    Args:
        version: The version that the job begins with.
        send: Sends a message to a seat.
        note: Called with the versions so far when there is a new one.

    Attributes:
        version: The version in force.
    """

    def __init__(
        self, version: str | None, send: Callable[[int, ToWorker], None], note: Callable[[list[str | None]], None]
    ) -> None:
        self.version = version
        self._current = [version]
        self._send = send
        self._note = note
        self._workers: set[int] = set()
        self._holding: HoldTurns | None = None
        self._waiting: set[int] = set()
        self._answered = asyncio.Event()
        self._over = False

    def begin_held(self, *, abort: bool) -> None:
        """Let no engine ask for turns from the start: the run begins in the middle of a change."""
        self._holding = HoldTurns(abort)

    async def hold(self, *, abort: bool) -> None:
        """Let no engine ask for turns, and wait until none is in flight.

        Args:
            abort: Give up what is in flight, to be asked again; else wait for it.
        """
        self._holding = HoldTurns(abort)
        await self._all(self._holding)

    async def change(self, version: str | None) -> None:
        """Put a version in force everywhere, and wait until every engine has it."""
        self._holding = None
        if version != self.version and not self._over:
            self.version = version
            self._current.append(version)
            self._note(self._current)
        await self._all(SetWeights(version))

    def add_worker(self, worker_id: int) -> None:
        """Tell an engine that is up what has changed since the job was made."""
        self._workers.add(worker_id)
        if len(self._current) > 1:
            self._send(worker_id, SetWeights(self.version))
        if self._holding is not None:
            self._send(worker_id, self._holding)

    def take(self, worker_id: int, message: TurnsHeld | WeightsSet) -> None:
        """Hear an engine."""
        awaited = TurnsHeld if self._holding is not None else WeightsSet
        if isinstance(message, awaited):
            self._struck(worker_id)

    def lost(self, worker_id: int) -> None:
        """An engine is gone, and nothing of it is in flight."""
        self._workers.discard(worker_id)
        self._struck(worker_id)

    def close(self) -> None:
        """The run is over: nothing is in flight anywhere."""
        self._over = True
        self._waiting.clear()
        self._answered.set()

    async def _all(self, message: HoldTurns | SetWeights) -> None:
        """Send a message to every engine, and wait until each has answered or is gone."""
        if self._over:
            return
        self._waiting = set(self._workers)
        for worker_id in self._waiting:
            self._send(worker_id, message)
        while self._waiting:
            self._answered.clear()
            await self._answered.wait()

    def _struck(self, worker_id: int) -> None:
        self._waiting.discard(worker_id)
        self._answered.set()
