"""One engine in this process and event loop: for live clients, notebooks and debugging."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from trunkline._core import __version__
from trunkline._internal.resources import collector
from trunkline.protocol.messages import PROTOCOL, WorkerReady
from trunkline.worker.engine import Engine, slots

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.protocol.backend import Inbox
    from trunkline.protocol.job import Job
    from trunkline.protocol.messages import ToWorker


class InlineBackend:
    """Hosts one engine here; see :class:`~trunkline.protocol.backend.Backend`."""

    workers = 0

    def __init__(self) -> None:
        self._engine: Engine | None = None

    async def start(self, job: Job, inbox: Inbox) -> Sequence[int]:
        self._engine = Engine(job, lambda message: inbox.put_nowait((0, message)))
        collector.relax()
        inbox.put_nowait((0, WorkerReady(PROTOCOL, __version__, os.getpid(), slots(job))))
        return [0]

    async def replace(self, worker_id: int) -> int | None:
        """Return None: there is no other process."""
        return None

    def send(self, worker_id: int, message: ToWorker) -> None:
        """Deliver a message one tick later, as over a socket: an engine is never re-entered while it sends."""
        if self._engine is not None:
            asyncio.get_running_loop().call_soon(self._engine.receive, message)

    def kill(self, worker_id: int, why: str) -> None:
        """Do nothing: an engine that blocks its own loop cannot be killed."""

    async def rest(self) -> None:
        await self.close()

    async def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            collector.restore()
            await engine.close()
