"""The engine: grows the trees of one worker and sends what grew in batches."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING

import msgspec

from trunkline.errors import InfrastructureError, TrunklineError, UsageError
from trunkline.llm.spec import EndpointSpec
from trunkline.rollout.agent import Kit
from trunkline.rollout.session import Failure, Session
from trunkline.runtime.wire import Ack, Batch, Bye, Delta, Done, Fatal, FromWorker, Stop, ToWorker, Work
from trunkline.store.derive import rows
from trunkline.types import Task, Termination

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from trunkline.llm.protocol import LLM, Reply
    from trunkline.runtime.job import Job

__all__ = ["IN_FLIGHT", "Engine", "slots"]

logger = logging.getLogger(__name__)

IN_FLIGHT = 64
"""Most model turns a worker holds that the run file does not: what a crash can cost."""

_FLUSH_AFTER = 0.05
"""Seconds a turn waits for company before its batch leaves."""


def slots(job: Job) -> int:
    """Return how many tasks a worker takes at a time: enough to keep its share of requests in flight."""
    concurrency = job.llm.max_concurrency if isinstance(job.llm, EndpointSpec) else 64
    return max(2, math.ceil(1.25 * concurrency / max(1, job.strategy.rollouts())))


class _Growing(msgspec.Struct):
    """One task on its way: its session and what was already sent of it."""

    index: int
    session: Session
    seq: int = 0
    turns: int = 0
    ended: int = 0


class Engine:
    """Hosts sessions in one event loop.

    Args:
        job: What to do with each task.
        send: Takes each message for the controller.
    """

    def __init__(self, job: Job, send: Callable[[FromWorker], None]) -> None:
        self._job = job
        self._kit = Kit(job.agent)
        self._llm: LLM = job.llm.open() if isinstance(job.llm, EndpointSpec) else job.llm
        self._owns_llm = isinstance(job.llm, EndpointSpec)
        self._send = send
        self._tasks: set[asyncio.Task[None]] = set()
        self._dirty: dict[int, _Growing] = {}
        self._done: list[_Growing] = []
        self._pending = 0
        self._unacked: dict[int, int] = {}
        self._acked = asyncio.Event()
        self._batches = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False
        self._load = (0, 0, 0)
        self._latency: list[float] = []
        self._served: set[str] = set()

    def receive(self, message: ToWorker) -> None:
        """Take a message of the controller."""
        match message:
            case Work(tasks):
                for index, task in tasks:
                    self._start(index, task)
            case Ack(batch):
                self._unacked.pop(batch, None)
                self._acked.set()
            case Stop():
                self._spawn(self.stop())
            case _:
                raise TypeError(f"a worker does not take {type(message).__name__}")

    async def stop(self) -> None:
        """Drop what is growing, send what there is, and say bye."""
        if self._stopping:
            return
        self._stopping = True
        own = asyncio.current_task()
        others = [task for task in self._tasks if task is not own]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._flush()
        self._send(Bye())

    async def close(self) -> None:
        """Cancel everything and let go of the LLM."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._owns_llm:
            await self._llm.close()

    def _start(self, index: int, task: Task) -> None:
        """Begin a task's tree."""
        if self._stopping:
            return
        job = self._job

        async def grown(reply: Reply | None) -> None:
            await self._grown(growing, reply)

        session = Session(task, self._kit, job.strategy, job.reward, job.seed, self._llm, grown)
        growing = _Growing(index, session)
        self._spawn(self._run(growing))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, growing: _Growing) -> None:
        """Run one session to its end, whatever that end is."""
        try:
            await growing.session.run()
        except Exception as problem:
            error = _first(problem)
            if isinstance(error, InfrastructureError | UsageError):
                self._fatal(error)
                return
            logger.exception("task %r broke", growing.session.task.id, exc_info=error)
            self._break(growing, error)
        self._dirty[growing.index] = growing
        self._done.append(growing)
        self._flush_soon()

    def _break(self, growing: _Growing, error: BaseException) -> None:
        """End what is left of a task whose session failed."""
        core = growing.session.tree.core
        for rollout in core.growing:
            core.close(rollout, Termination.LOST.value, None, Failure.of(error).encode())

    def _fatal(self, error: BaseException) -> None:
        """Tell the controller, once, that there is no point in going on."""
        if not self._stopping:
            self._stopping = True
            kind = type(error).__name__ if isinstance(error, TrunklineError) else "InfrastructureError"
            self._flush()
            self._send(Fatal(kind, str(error)))

    async def _grown(self, growing: _Growing, reply: Reply | None) -> None:
        """Note an event; wait while the controller is behind."""
        self._dirty[growing.index] = growing
        if reply is not None:
            growing.turns += 1
            self._pending += 1
            self._note(reply)
        self._flush_soon()
        while self._pending + sum(self._unacked.values()) > IN_FLIGHT and not self._stopping:
            self._acked.clear()
            await self._acked.wait()

    def _flush_soon(self) -> None:
        """Flush now if a batch is full, else shortly."""
        if self._pending + sum(self._unacked.values()) >= IN_FLIGHT:
            self._flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_AFTER, self._flush)

    def _flush(self) -> None:
        """Send everything that grew as one batch."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deltas = [delta for growing in self._dirty.values() if (delta := _delta(growing)) is not None]
        done = [Done(growing.index, *rows(growing.session.tree.core)) for growing in self._done]
        self._dirty.clear()
        self._done.clear()
        if not deltas and not done:
            return
        self._batches += 1
        self._unacked[self._batches] = self._pending
        self._pending = 0
        self._send(Batch(self._batches, deltas, done, self._load, self._latency, sorted(self._served)))
        self._load, self._latency, self._served = (0, 0, 0), [], set()

    def _note(self, reply: Reply) -> None:
        """Count a reply for the progress line."""
        prompt, generated, retries = self._load
        self._load = (prompt + max(0, reply.prompt), generated + max(0, reply.generated), retries + reply.attempts - 1)
        self._latency.append(reply.micros / 1e6)
        if reply.served:
            self._served.add(reply.served)


def _delta(growing: _Growing) -> Delta | None:
    """Take what changed in a tree since it was last sent."""
    core = growing.session.tree.core
    data = core.delta()
    if data is None:
        return None
    ended = core.rollouts - len(core.growing)
    delta = Delta(growing.index, growing.seq, data, growing.turns, ended - growing.ended)
    growing.seq += 1
    growing.turns = 0
    growing.ended = ended
    return delta


def _first(error: BaseException) -> BaseException:
    """Return the first leaf of an exception group; any other error as it is."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
