"""Pools: where the engines of a run live. The controller sees seats and an inbox, wherever that is."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Protocol

import msgspec

from trunkline._core import __version__
from trunkline.bounds import whole
from trunkline.errors import ConfigError
from trunkline.llm.spec import EndpointSpec
from trunkline.runtime.engine import Engine, slots
from trunkline.runtime.job import Job, pack_job
from trunkline.runtime.supervisor import Process
from trunkline.runtime.wire import (
    PROTOCOL,
    Cut,
    FromWorker,
    Hello,
    Ready,
    ToWorker,
    decode_from_worker,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Event", "Gone", "Inbox", "InlinePool", "LocalPool", "Pool", "Seat", "make_pool"]


_MOST_WORKERS = 256


class Gone(msgspec.Struct):
    """A worker is gone, and everything it sent was delivered before this.

    Attributes:
        reason: One line: how it ended.
    """

    reason: str


Event = FromWorker | Gone | Cut
"""What may come to pass: a message of a worker, its end, or the end of the run's time, which has seat -1."""

Inbox = asyncio.Queue[tuple[int, Event]]
"""What workers sent, each with its seat's number, in order per seat."""


class Seat(Protocol):
    """One engine, as the controller sees it."""

    def send(self, message: ToWorker) -> None:
        """Send a message; does nothing once the engine is gone."""
        ...


class Pool(Protocol):
    """Starts engines for a job, and leaves nothing behind."""

    async def start(self, job: Job, inbox: Inbox) -> Sequence[Seat]:
        """Start every engine; each puts ``Ready`` or ``Gone`` into the inbox."""
        ...

    async def close(self) -> None:
        """End every engine and wait until it is gone."""
        ...


class InlinePool:
    """One engine in this process and event loop: for live clients, notebooks and debugging."""

    def __init__(self) -> None:
        self._engine: Engine | None = None

    async def start(self, job: Job, inbox: Inbox) -> Sequence[Seat]:
        """Make the engine."""
        self._engine = Engine(job, lambda message: inbox.put_nowait((0, message)))
        inbox.put_nowait((0, Ready(PROTOCOL, __version__, os.getpid(), slots(job))))
        return [_InlineSeat(self._engine)]

    async def close(self) -> None:
        """Close the engine."""
        if self._engine is not None:
            await self._engine.close()


class _InlineSeat:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def send(self, message: ToWorker) -> None:
        # One tick later, as over a socket: an engine is never re-entered while it sends.
        asyncio.get_running_loop().call_soon(self._engine.receive, message)


class LocalPool:
    """Worker processes on this machine.

    Args:
        workers: How many, at least 1; fewer are started when the run's concurrency is below that.

    Attributes:
        workers: The same.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._processes: list[Process] = []

    async def start(self, job: Job, inbox: Inbox) -> Sequence[Seat]:
        """Start the processes and greet them with the job."""
        assert isinstance(job.llm, EndpointSpec)
        hellos = [encode(Hello(PROTOCOL, __version__, pack_job(part))) for part in _parts(job, self.workers)]
        for number, hello in enumerate(hellos):
            process = Process.start(
                number,
                lambda seat, payload: inbox.put_nowait((seat, decode_from_worker(payload))),
                lambda seat, reason: inbox.put_nowait((seat, Gone(reason))),
            )
            self._processes.append(process)
            await process.listen()
            process.send(hello)
        return [_LocalSeat(process) for process in self._processes]

    async def close(self) -> None:
        """End the processes and reap them."""
        # Hung up at once and reaped in a task of its own: a second cancel must not leave a process behind.
        for process in self._processes:
            process.hang_up()
        await asyncio.shield(asyncio.gather(*(process.close() for process in self._processes)))


class _LocalSeat:
    def __init__(self, process: Process) -> None:
        self._process = process

    def send(self, message: ToWorker) -> None:
        self._process.send(encode(message))


def _parts(job: Job, workers: int) -> list[Job]:
    """Divide the run's concurrency and rates; together the workers never exceed them."""
    llm = job.llm
    assert isinstance(llm, EndpointSpec)
    total, each = llm.max_concurrency, llm.limits.endpoint_concurrency
    workers = min(workers, total, each or total)
    limits = zip(_shares(total, workers), _shares(each or total, workers), strict=True)
    return [
        msgspec.structs.replace(
            job,
            llm=msgspec.structs.replace(llm, max_concurrency=share, limits=llm.limits.share(1 / workers, at_one)),
        )
        for share, at_one in limits
    ]


def _shares(concurrency: int, workers: int) -> list[int]:
    return [concurrency // workers + (number < concurrency % workers) for number in range(workers)]


def make_pool(job: Job, workers: int | None, tasks: int) -> Pool:
    """Choose a pool: worker processes for endpoints, this process for a live LLM or ``workers=0``.

    Args:
        job: What will be run.
        workers: Worker processes, as asked for.
        tasks: How many tasks there are: no more workers are started.

    Raises:
        ConfigError: If the number makes no sense, or processes are asked for with an LLM that cannot leave this one.
    """
    if workers is not None:
        whole("workers", workers, 0, _MOST_WORKERS)
    live = not isinstance(job.llm, EndpointSpec)
    if workers is None:
        return InlinePool() if live else LocalPool(min(2, os.cpu_count() or 1, tasks))
    if workers == 0:
        return InlinePool()
    if live:
        raise ConfigError(
            f"workers={workers}: a live {type(job.llm).__name__} stays in its process; "
            "leave workers out, or give the endpoint's URL"
        )
    return LocalPool(min(workers, tasks))
