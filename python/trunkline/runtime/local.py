"""Worker processes on this machine."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from trunkline._core import __version__
from trunkline.llm.spec import EndpointSpec
from trunkline.runtime.job import pack_job
from trunkline.runtime.lender import parties
from trunkline.runtime.supervisor import Process
from trunkline.runtime.wire import PROTOCOL, Begin, Hello, decode_from_worker, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.runtime.backend import Inbox
    from trunkline.runtime.job import Job
    from trunkline.runtime.wire import ToWorker

__all__ = ["Local"]


class Local:
    """Hosts engines in processes of their own; see :class:`~trunkline.runtime.backend.Backend`.

    Args:
        workers: How many, at least 1; fewer are started when the run's concurrency is below that.

    Attributes:
        workers: The same.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._seats = count()
        self._processes: dict[int, Process] = {}
        self._begins: dict[int, bytes] = {}
        self._inbox: Inbox | None = None

    async def start(self, job: Job, inbox: Inbox) -> Sequence[int]:
        """Start the processes and give them the job."""
        self._inbox = inbox
        assert isinstance(job.llm, EndpointSpec)
        number = parties(job.llm, self.workers)
        begin = encode(Begin(pack_job(msgspec.structs.replace(job, parties=number))))
        return [await self._spawn(begin) for _ in range(number)]

    async def replace(self, seat: int) -> int | None:
        """Start another process with the job of one that is gone."""
        process = self._processes.pop(seat)
        await process.close()
        return await self._spawn(self._begins.pop(seat))

    def send(self, seat: int, message: ToWorker) -> None:
        """Send a message; does nothing once the process is gone."""
        process = self._processes.get(seat)
        if process is not None:
            process.send(encode(message))

    def kill(self, seat: int, why: str) -> None:
        """Kill a process, stopped or not."""
        process = self._processes.get(seat)
        if process is not None:
            process.kill(why)

    async def close(self) -> None:
        """End the processes and reap them."""
        # Hung up at once and reaped in a task of its own: a second cancel must not leave a process behind.
        processes = list(self._processes.values())
        for process in processes:
            process.hang_up()
        await asyncio.shield(asyncio.gather(*(process.close() for process in processes)))
        self._processes.clear()

    async def _spawn(self, begin: bytes) -> int:
        inbox = self._inbox
        assert inbox is not None
        seat = next(self._seats)
        process = Process.start(
            seat,
            lambda seat, payload: inbox.put_nowait((seat, decode_from_worker(payload))),
            lambda seat, gone: inbox.put_nowait((seat, gone)),
        )
        self._processes[seat] = process
        self._begins[seat] = begin
        await process.listen()
        process.send(encode(Hello(PROTOCOL, __version__)))
        process.send(begin)
        return seat
