"""Changes of the weight version during a run: every worker is told, and answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from trunkline.controller.component import Component
from trunkline.protocol.messages import HoldTurns, SetWeights, TurnsHeld, WeightsSet

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.controller.component import Death
    from trunkline.protocol.messages import ToWorker


class WeightCoordinator(Component):
    """The weight version of a run's workers; ``note`` is called with all versions so far when there is a new one."""

    handles = (TurnsHeld, WeightsSet)

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
        """Hold turns from the start: the run begins in the middle of a change."""
        self._holding = HoldTurns(abort)

    async def hold(self, *, abort: bool) -> None:
        """Hold turns in every worker, and wait until none is in flight; ``abort`` cancels those to be retried."""
        self._holding = HoldTurns(abort)
        await self._all(self._holding)

    async def change(self, version: str | None) -> None:
        """Put a version in force, and wait until every worker has it."""
        self._holding = None
        if version != self.version and not self._over:
            self.version = version
            self._current.append(version)
            self._note(self._current)
        await self._all(SetWeights(version))

    def on_ready(self, worker_id: int, slots: int) -> None:
        """Tell a new worker what has changed since the job was made."""
        self._workers.add(worker_id)
        if len(self._current) > 1:
            self._send(worker_id, SetWeights(self.version))
        if self._holding is not None:
            self._send(worker_id, self._holding)

    def on_message(self, worker_id: int, message: TurnsHeld | WeightsSet) -> None:
        awaited = TurnsHeld if self._holding is not None else WeightsSet
        if isinstance(message, awaited):
            self._answer(worker_id)

    def on_lost(self, worker_id: int, death: Death) -> None:
        self._workers.discard(worker_id)
        self._answer(worker_id)

    def on_end(self) -> None:
        self._over = True
        self._waiting.clear()
        self._answered.set()

    async def _all(self, message: HoldTurns | SetWeights) -> None:
        """Send a message to every worker, and wait until each has answered or is gone."""
        if self._over:
            return
        self._waiting = set(self._workers)
        for worker_id in self._waiting:
            self._send(worker_id, message)
        while self._waiting:
            self._answered.clear()
            await self._answered.wait()

    def _answer(self, worker_id: int) -> None:
        self._waiting.discard(worker_id)
        self._answered.set()
