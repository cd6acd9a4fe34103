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
        self._versions = [version]
        self._send = send
        self._note = note
        self._seats: set[int] = set()
        self._holding: HoldTurns | None = None
        self._waiting: set[int] = set()
        self._heard = asyncio.Event()
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
            self._versions.append(version)
            self._note(self._versions)
        await self._all(SetWeights(version))

    def seat(self, seat: int) -> None:
        """Tell an engine that is up what has changed since the job was made."""
        self._seats.add(seat)
        if len(self._versions) > 1:
            self._send(seat, SetWeights(self.version))
        if self._holding is not None:
            self._send(seat, self._holding)

    def take(self, seat: int, message: TurnsHeld | WeightsSet) -> None:
        """Hear an engine."""
        awaited = TurnsHeld if self._holding is not None else WeightsSet
        if isinstance(message, awaited):
            self._struck(seat)

    def lost(self, seat: int) -> None:
        """An engine is gone, and nothing of it is in flight."""
        self._seats.discard(seat)
        self._struck(seat)

    def close(self) -> None:
        """The run is over: nothing is in flight anywhere."""
        self._over = True
        self._waiting.clear()
        self._heard.set()

    async def _all(self, message: HoldTurns | SetWeights) -> None:
        """Send a message to every engine, and wait until each has answered or is gone."""
        if self._over:
            return
        self._waiting = set(self._seats)
        for seat in self._waiting:
            self._send(seat, message)
        while self._waiting:
            self._heard.clear()
            await self._heard.wait()

    def _struck(self, seat: int) -> None:
        self._waiting.discard(seat)
        self._heard.set()
