"""Worker processes on this machine."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from trunkline._core import __version__
from trunkline.runtime.closed import to_the_end
from trunkline.runtime.elsewhere import Elsewhere
from trunkline.runtime.supervisor import Process
from trunkline.runtime.wire import PROTOCOL, Bye, Fatal, Hello, decode_from_worker, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.runtime.backend import Gone, Inbox
    from trunkline.runtime.job import Job

__all__ = ["Local"]


logger = logging.getLogger(__name__)


class Local(Elsewhere[Process]):
    """Hosts engines in processes of their own; see :class:`~trunkline.runtime.backend.Backend`.

    A process that rests serves the next run, under the same number. One that dies meanwhile is replaced then.

    Args:
        workers: How many, at least 1; fewer are started when the run's concurrency is below that.

    Attributes:
        workers: The same.
    """

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._fallen: set[int] = set()
        self._closing = False

    async def start(self, job: Job, inbox: Inbox) -> Sequence[int]:
        """Give the job to as many processes as it needs; those that are not there are started."""
        for seat, process in self._hosts.items():
            if not process.alive:
                self._fallen.add(seat)
        while self._fallen:
            await self._bury(self._fallen.pop())
        idle = iter(list(self._hosts))
        self._inbox = inbox
        number, begin = self._packed(job)
        return [await self._begin(next(idle, None), begin) for _ in range(number)]

    async def replace(self, seat: int) -> int | None:
        """Start another process with the job of one that is gone."""
        await self._bury(seat)
        new = await self._begin(None, self._begins[seat])
        self._begins.pop(seat, None)
        return new

    async def close(self) -> None:
        """End the processes and reap them, whoever cancels meanwhile."""
        self._closing = True
        processes = list(self._hosts.values())
        for process in processes:
            process.hang_up()
        closing = asyncio.gather(*(process.close() for process in processes))
        await to_the_end(closing)
        closing.result()
        self._hosts.clear()

    async def _begin(self, seat: int | None, begin: bytes) -> int:
        """Give a job to a process, or to one that is started for it."""
        if seat is None:
            seat = next(self._seats)
            process = self._hosts[seat] = Process.start(seat, self._receive, self._gone)
            # It is of this run from now on: it may be gone before it listens.
            self._begins[seat] = begin
            try:
                await process.listen()
            except BaseException:
                # It was not greeted, and serves nobody.
                self._fallen.add(seat)
                raise
            process.send(encode(Hello(PROTOCOL, __version__)))
        return self._give(seat, begin)

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
        elif self._hosts.get(seat) is not None and not self._closing:
            self._fallen.add(seat)
            logger.warning("%s; another is started for the next run", gone.reason)
        self._leave(seat)

    async def _bury(self, seat: int) -> None:
        """Let go of what is left of a process that is dead, or of no use."""
        process = self._hosts.pop(seat, None)
        if process is not None:
            await to_the_end(asyncio.ensure_future(process.close()))
