"""What hosts engines, as the controller sees it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import msgspec

from trunkline.protocol.messages import CutTasks, FromWorker, ToWorker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.protocol.job import Job

__all__ = ["Backend", "BorrowedBackend", "Event", "Inbox", "WorkerExited"]


class WorkerExited(msgspec.Struct):
    """An engine is gone, and everything it sent was delivered before this.

    Attributes:
        reason: One line: how it ended.
        killed: Whether somebody killed it, where it is known: then it says nothing of what it was given.
    """

    reason: str
    killed: bool = False


Event = FromWorker | WorkerExited | CutTasks
"""What may come to pass: a message of an engine, its end, or the end of the run's time, which has seat -1."""

Inbox = asyncio.Queue[tuple[int, Event]]
"""What engines sent, each with its seat's number, in order per seat."""


class Backend(Protocol):
    """Hosts the engines of one run at a time, and leaves nothing behind.

    A seat is one engine from its start to its end; its number is not used again. Each seat puts ``WorkerReady`` or
    ``Fatal`` into the inbox, and ``WorkerExited`` as the last message of all if it ends before :meth:`rest` or
    :meth:`close`.

    Attributes:
        workers: How many engines live outside this process; 0 for none.
    """

    workers: int

    async def start(self, job: Job, inbox: Inbox) -> Sequence[int]:
        """Start every engine with a job; returns their seats."""
        ...

    async def replace(self, worker_id: int) -> int | None:
        """Start an engine in the place of one that is gone; returns its seat, None where that cannot be."""
        ...

    def send(self, worker_id: int, message: ToWorker) -> None:
        """Send a message; does nothing once the engine is gone."""
        ...

    def kill(self, worker_id: int, why: str) -> None:
        """End an engine that does not answer any more; its ``WorkerExited`` gives this reason."""
        ...

    async def rest(self) -> None:
        """End the run, and keep what hosts its engines for the next :meth:`start`; nothing is in flight after that."""
        ...

    async def close(self) -> None:
        """End the engines, at work or at rest, and wait until they are gone."""
        ...


class BorrowedBackend:
    """A backend that is lent to one run: to close it lets its engines rest.

    Args:
        backend: What is lent.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.workers = backend.workers
        self.start = backend.start
        self.replace = backend.replace
        self.send = backend.send
        self.kill = backend.kill
        self.rest = backend.rest

    async def close(self) -> None:
        """End the run."""
        await self._backend.rest()
