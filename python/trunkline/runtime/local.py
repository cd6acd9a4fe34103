"""Worker processes on this machine."""

from __future__ import annotations

import asyncio
import logging
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from trunkline._core import __version__
from trunkline.llm.spec import EndpointSpec
from trunkline.runtime.closed import to_the_end
from trunkline.runtime.job import pack_job
from trunkline.runtime.lender import parties
from trunkline.runtime.supervisor import Process
from trunkline.runtime.wire import PROTOCOL, Begin, Bye, Fatal, Hello, Stop, decode_from_worker, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.runtime.backend import Gone, Inbox
    from trunkline.runtime.job import Job
    from trunkline.runtime.wire import ToWorker

__all__ = ["Local"]


logger = logging.getLogger(__name__)

_REST_WITHIN = 5.0
"""Seconds that an engine has to end its run; a process whose engine does not is killed."""


class Local:
    """Hosts engines in processes of their own; see :class:`~trunkline.runtime.backend.Backend`.

    A process that rests serves the next run, under the same number. One that dies meanwhile is replaced then.

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
        self._at_work: set[int] = set()
        self._fallen: set[int] = set()
        self._moved = asyncio.Event()
        self._inbox: Inbox | None = None
        self._closing = False

    async def start(self, job: Job, inbox: Inbox) -> Sequence[int]:
        """Give the job to as many processes as it needs; those that are not there are started."""
        for seat, process in self._processes.items():
            if not process.alive:
                self._fallen.add(seat)
        while self._fallen:
            await self._bury(self._fallen.pop())
        idle = iter(list(self._processes))
        self._inbox = inbox
        assert isinstance(job.llm, EndpointSpec)
        number = parties(job.llm, self.workers)
        level = logging.getLogger("trunkline").getEffectiveLevel()
        begin = encode(Begin(pack_job(msgspec.structs.replace(job, parties=number)), level))
        return [await self._begin(next(idle, None), begin) for _ in range(number)]

    async def replace(self, seat: int) -> int | None:
        """Start another process with the job of one that is gone."""
        await self._bury(seat)
        new = await self._begin(None, self._begins[seat])
        self._begins.pop(seat, None)
        return new

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

    async def rest(self) -> None:
        """End the run in every process; one that does not say bye in time is killed."""
        for seat in self._at_work:
            self.send(seat, Stop())
        try:
            async with asyncio.timeout(_REST_WITHIN):
                while self._at_work:
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            pass
        finally:
            self._inbox = None
            self._begins.clear()
            for seat in self._at_work:
                self.kill(seat, f"it did not end its run within {_REST_WITHIN:.0f} s")
            self._at_work.clear()

    async def close(self) -> None:
        """End the processes and reap them, whoever cancels meanwhile."""
        self._closing = True
        processes = list(self._processes.values())
        for process in processes:
            process.hang_up()
        closing = asyncio.gather(*(process.close() for process in processes))
        await to_the_end(closing)
        closing.result()
        self._processes.clear()

    async def _begin(self, seat: int | None, begin: bytes) -> int:
        """Give a job to a process, or to one that is started for it."""
        if seat is None:
            seat = next(self._seats)
            process = self._processes[seat] = Process.start(seat, self._receive, self._gone)
            # It is of this run from now on: it may be gone before it listens.
            self._begins[seat] = begin
            try:
                await process.listen()
            except BaseException:
                # It was not greeted, and serves nobody.
                self._fallen.add(seat)
                raise
            process.send(encode(Hello(PROTOCOL, __version__)))
        self._begins[seat] = begin
        self._at_work.add(seat)
        self._processes[seat].send(begin)
        return seat

    def _receive(self, seat: int, payload: memoryview) -> None:
        """Pass on what an engine says."""
        message = decode_from_worker(payload)
        if self._inbox is not None:
            self._inbox.put_nowait((seat, message))
        if isinstance(message, Bye | Fatal):
            self._leave(seat)

    def _gone(self, seat: int, gone: Gone) -> None:
        """Pass on that a process is gone, or remember it for the next run."""
        if self._inbox is not None and seat in self._begins:
            self._inbox.put_nowait((seat, gone))
        elif self._processes.get(seat) is not None and not self._closing:
            self._fallen.add(seat)
            logger.warning("%s; another is started for the next run", gone.reason)
        self._leave(seat)

    def _leave(self, seat: int) -> None:
        self._at_work.discard(seat)
        self._moved.set()

    async def _bury(self, seat: int) -> None:
        """Let go of what is left of a process that is dead, or of no use."""
        process = self._processes.pop(seat, None)
        if process is not None:
            await to_the_end(asyncio.ensure_future(process.close()))
