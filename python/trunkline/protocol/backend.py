"""The protocol of a backend, which hosts workers for the controller."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import msgspec

from trunkline.protocol.messages import CutTasks, FromWorker, ToWorker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.protocol.job import Job


class WorkerExited(msgspec.Struct):
    """A worker is gone, after all it sent; where it was ``killed``, its tasks are not to blame."""

    reason: str
    killed: bool = False


Event = FromWorker | WorkerExited | CutTasks
"""A message of a worker, its end, or the end of the run's time, which has worker -1."""


class Inbox:
    """Events, each with its worker's number, in order for each worker, and one task that waits for them."""

    def __init__(self) -> None:
        self._events: list[tuple[int, Event]] = []
        self._waiting: asyncio.Future[None] | None = None

    def put_nowait(self, event: tuple[int, Event]) -> None:
        """Add an event."""
        self._events.append(event)
        self.wake()

    def wake(self) -> None:
        """Let the task go on, though no event may be there."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def arrived(self, seconds: float) -> bool:
        """Wait until there is an event, so many seconds at most, or until woken; return whether there is one."""
        if self._events:
            return True
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        timer = loop.call_later(seconds, self.wake)
        try:
            await self._waiting
        finally:
            timer.cancel()
        return bool(self._events)

    def take(self) -> list[tuple[int, Event]]:
        """Take all events."""
        events, self._events = self._events, []
        return events


class Backend(Protocol):
    """Hosts the workers of one run at a time.

    A worker's number is not used again. Each worker puts ``WorkerReady`` or ``Fatal`` into the inbox, and
    ``WorkerExited`` as its last message if it ends before ``rest`` or ``close``.

    Attributes:
        workers: How many workers live outside this process; 0 for none.
    """

    workers: int

    async def start(self, job: Job, inbox: Inbox) -> Sequence[int]:
        """Start every worker with a job; returns their numbers."""

    async def replace(self, worker_id: int) -> int | None:
        """Start a worker in the place of one that is gone; returns its number, None where that cannot be."""

    def send(self, worker_id: int, message: ToWorker) -> None:
        """Send a message; does nothing once the worker is gone."""

    def kill(self, worker_id: int, why: str) -> None:
        """Kill a worker; its ``WorkerExited`` gives this reason."""

    async def rest(self) -> None:
        """End the run, and keep its workers' processes for the next ``start``; nothing is in flight then."""

    async def close(self) -> None:
        """End the workers, and wait until they are gone."""


class BorrowedBackend:
    """A backend that is lent to one run: to close it lets its workers rest."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.workers = backend.workers
        self.start = backend.start
        self.replace = backend.replace
        self.send = backend.send
        self.kill = backend.kill
        self.rest = backend.rest

    async def close(self) -> None:
        await self._backend.rest()
