"""The controller: feeds engines under their credits, commits what they send, and decides when a run is over."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from trunkline._internal.aio import wait_uninterrupted
from trunkline.controller.budget import NOTHING, RunLimits, RunSpending, spent_in
from trunkline.controller.limits import LimitLeaseServers
from trunkline.controller.poison_tasks import Quarantine
from trunkline.controller.progress import ProgressCounter, reported
from trunkline.controller.scheduler import TaskDispatcher, TaskQueue, WorkerRegistry
from trunkline.controller.supervisor import BEAT, Supervisor
from trunkline.controller.weights import WeightCoordinator
from trunkline.errors import EndpointError, TrunklineError, WorkerError
from trunkline.observability.logging import relog
from trunkline.observability.observers import ObserverHub
from trunkline.protocol.backend import Backend, Event, Inbox, WorkerExited
from trunkline.protocol.job import slots_for
from trunkline.protocol.messages import (
    Ack,
    Batch,
    Bye,
    CutTasks,
    Done,
    Fatal,
    LeaseDrawn,
    LeaseRequest,
    LeaseReturn,
    Log,
    Pong,
    RateRequest,
    RateReturn,
    SlotRequest,
    SlotReturn,
    StopRun,
    TurnsHeld,
    WeightsSet,
    WorkerReady,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trunkline.observability.observers import Observer, Snapshot
    from trunkline.protocol.job import Job, Refill
    from trunkline.store.schema import TakenRow
    from trunkline.store.writer import RunWriter
    from trunkline.types import Task

__all__ = ["GRACE", "Controller"]

logger = logging.getLogger(__name__)

GRACE = 10.0
"""Seconds that requests and tool calls which are out have to come back when a run is asked to stop."""

_GATHER = 0.005
"""Seconds in which what arrives shares one sync of the disk."""

_WIND_DOWN = 5.0
"""Seconds that engines have beside that to send their last batches."""


class Controller:
    """Runs one job over its tasks.

    Args:
        job: What to do with each task.
        tasks: The tasks, in the order they are started.
        writer: The run file, made for these tasks; where it was opened, the run goes on from what is in it.
        backend: Where engines live.
        watch: Called with the state of the run whenever it has changed.
        taken: What was taken over of tasks that an earlier run has begun; their deltas are in the run file.
        refill: How many groups are wanted of the tasks; all tasks are run when None.
        grace: Seconds that what is out has to come back when the run is asked to stop.
        memory: Bytes that each engine's process may hold; None for no limit.
        durable: Whether commits are synced to the disk: what arrives within a few milliseconds then shares one.
        observers: Who is told of what goes on.
    """

    def __init__(
        self,
        job: Job,
        tasks: Sequence[Task],
        writer: RunWriter,
        backend: Backend,
        watch: Callable[[Snapshot], None] | None = None,
        taken: Mapping[int, TakenRow] | None = None,
        refill: Refill | None = None,
        *,
        grace: float = GRACE,
        memory: int | None = None,
        durable: bool = False,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._job, self._tasks, self._taken = job, tasks, taken or {}
        self._writer = writer
        self._backend = backend
        self._inbox: Inbox = asyncio.Queue()
        self._durable = durable
        there = writer.progress
        self.task_queue = TaskQueue(len(tasks), refill, finished=there.finished, begun=there.begun, kept=there.kept)
        self._registry = WorkerRegistry()
        self._dispatcher = TaskDispatcher(
            tasks, self.task_queue, self._registry, writer, self._taken, backend.send, begun=there.begun
        )
        self._supervisor = Supervisor(backend, self._registry, writer, memory)
        self._quarantine = Quarantine(job, tasks, writer)
        self._progress = ProgressCounter(job, tasks, writer, self.task_queue, self._taken, refill)
        self._fatal: TrunklineError | None = None
        self._grace = grace
        self._fallen: set[int] = set()
        self._beaten = time.monotonic()
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._lease_server = LimitLeaseServers(job.llms, backend.workers, backend.send)
        self._run_limits = RunLimits(job, backend.send, lambda cut: self._inbox.put_nowait((-1, cut)), self._spent)
        self.coordinator = WeightCoordinator(
            job.weights, backend.send, lambda versions: writer.note("weights", [*versions])
        )
        self.snapshot = self._progress.snapshot
        self.snapshot.engines = self._supervisor.engines
        self._observers = ObserverHub(self.snapshot, watch, observers)
        self.finished = self._progress.finished

    def stop(self, *, at_once: bool = False) -> None:
        """Ask the run to end early: what has grown is kept.

        Args:
            at_once: Whether requests and tool calls that are out are given up instead of waited for.
        """
        if at_once:
            self._grace = 0.0
        self._stop.set()

    def stop_soon(self, *, at_once: bool = False) -> None:
        """Like :meth:`stop`, from another thread; ``at_once`` does not wait for what has grown."""
        if self._loop is None or self._task is None:
            self._stop.set()
        else:
            self._loop.call_soon_threadsafe(self._task.cancel if at_once else self._stop.set)

    @property
    def stopped(self) -> bool:
        """Whether the run was asked to end early."""
        return self._stop.is_set()

    @property
    def ended(self) -> str | None:
        """``deadline`` or ``budget`` where that kept tasks from being begun."""
        return self._run_limits.word if self.task_queue.left else None

    async def run(self) -> None:
        """Run until every task that is needed is done, or stopped, or the run's budget or time is over.

        Raises:
            EndpointError: If the endpoint serves nobody.
            InfrastructureError: If no worker is left, or the run file cannot be written.
        """
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        stop = asyncio.ensure_future(self._stop.wait())
        self._run_limits.start()
        self._observers.begin(self._job, self._tasks, self._taken)
        try:
            self._run_limits.note(self._writer)
            self._supervisor.began(await self._backend.start(self._job, self._inbox))
            while self.task_queue.open and not self._ending and not self._through:
                self._take(await self._arrived(stop))
                self._beat()
                self._feed()
            if self.task_queue.open or self._run_limits.leases_out:
                await self._wind_down()
            if self._fatal is not None:
                raise self._fatal
        finally:
            stop.cancel()
            closing = asyncio.ensure_future(self._close())
            await wait_uninterrupted(closing)
            closing.result()

    async def _close(self) -> None:
        """Let go of the engines, whoever else gives up waiting for that."""
        self._run_limits.close()
        self.coordinator.close()
        self._lease_server.close()
        try:
            await self._supervisor.close()
        finally:
            # Whatever cuts that short, no engine is left.
            await self._backend.close()
        self._observers.end()
        # Last: where the run file cannot be written, this raises as well.
        self._run_limits.report(self._writer)

    def _spent(self) -> RunSpending:
        there = self._writer.progress
        return spent_in(self._writer.path, self._job.prices, there) if there.state else NOTHING

    @property
    def _ending(self) -> bool:
        """Whether the run is to end before its tasks are done."""
        return self.stopped or self._fatal is not None

    @property
    def _through(self) -> bool:
        """Whether nothing grows and nothing will."""
        return self._run_limits.word is not None and not self._registry.busy

    def _fail(self, error: TrunklineError) -> None:
        """End the run with the first error that says it makes no sense to go on."""
        self._fatal = self._fatal or error

    async def _arrived(self, stop: asyncio.Future[Any]) -> list[tuple[int, Event]]:
        """Wait for messages until the next beat, or until the run is asked to stop."""
        event = asyncio.ensure_future(self._inbox.get())
        left = max(0.0, self._beaten + BEAT - time.monotonic())
        try:
            await asyncio.wait((event, stop), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            came = event.done() or not event.cancel()
        if not came:
            return []
        if self._durable:
            await asyncio.sleep(_GATHER)
        return [event.result(), *self._queued()]

    def _beat(self) -> None:
        """Look after the engines every second, and whether any is left."""
        if time.monotonic() >= self._beaten + BEAT:
            self._beaten = time.monotonic()
            self._supervisor.beat()
            self._observers.look()
        if self._ending or self._through:
            return
        if len(self._quarantine) == self.task_queue.growing and not self.task_queue.more:
            self._settle()
        elif self._supervisor.nobody:
            left = f"no worker is left; {self.task_queue.open} tasks were not finished"
            self._fail(WorkerError(f"{self._supervisor.why}, and {left}"))

    def _queued(self) -> list[tuple[int, Event]]:
        """Take what has arrived meanwhile, so that it shares one transaction."""
        return [self._inbox.get_nowait() for _ in range(self._inbox.qsize())]

    def _take(self, events: list[tuple[int, Event]]) -> None:
        """Handle messages in order; batches are committed together, before anything counts."""
        events = [event for event in events if not self._is_stale(*event)]
        self._commit([(worker_id, message) for worker_id, message in events if isinstance(message, Batch)])
        for worker_id, message in events:
            self._supervisor.message_received(worker_id)
            match message:
                case WorkerReady():
                    self._supervisor.came_up(worker_id, message.slots)
                    self.snapshot.workers = len(self._registry.ready)
                    self._run_limits.add_worker(worker_id)
                    self.coordinator.add_worker(worker_id)
                    self._lease_server.add_worker(worker_id)
                case SlotRequest() | SlotReturn() | RateRequest() | RateReturn():
                    self._lease_server.take(worker_id, message)
                case Pong(state):
                    self._supervisor.state_received(worker_id, state)
                case Log():
                    relog(worker_id, message)
                case LeaseRequest() | LeaseDrawn() | LeaseReturn():
                    self._run_limits.take(worker_id, message)
                case TurnsHeld() | WeightsSet():
                    self.coordinator.take(worker_id, message)
                case CutTasks():
                    for number in self._registry:
                        self._backend.send(number, message)
                case Fatal():
                    self._fallen.add(worker_id)
                    self._fail(reported(message))
                case WorkerExited():
                    self._bury(worker_id, message)
                case Batch() | Bye():
                    pass
        self._judge()
        self._run_limits.note(self._writer)
        self._observers.show(self._supervisor.silent)

    def _commit(self, batches: list[tuple[int, Batch]]) -> None:
        """Write batches in one transaction; then, and only then, acknowledge and count them."""
        if not batches:
            return
        begun = time.monotonic()
        self._writer.commit(
            [(delta.task, delta.seq, delta.data) for _, batch in batches for delta in batch.deltas],
            [(done.task, done.tree, done.rollouts) for _, batch in batches for done in batch.done],
            [(delta.task, delta.seq, delta.calls) for _, batch in batches for delta in batch.deltas],
            [(delta.task, delta.seq, delta.tools) for _, batch in batches for delta in batch.deltas],
        )
        took = time.monotonic() - begun
        for worker_id, batch in batches:
            self._backend.send(worker_id, Ack(batch.batch))
            self._count(worker_id, batch)
            self._observers.committed(worker_id, batch, took)
            self._run_limits.committed(worker_id, (call for delta in batch.deltas for call in delta.calls))
            for done in batch.done:
                self._dispatcher.done(worker_id, done.task)
                self._complete(done)

    def _is_stale(self, worker_id: int, message: Event) -> bool:
        """Whether an engine that counts as gone sent this: what it had goes on elsewhere, from the run file."""
        if not self._registry.is_gone(worker_id):
            return False
        if isinstance(message, Batch):
            tasks = sorted({delta.task for delta in message.deltas})
            logger.warning("worker %d counts as gone, and what it still sent is dropped", worker_id)
            self._writer.event("stale", worker=worker_id, tasks=list(tasks), deltas=len(message.deltas))
        return True

    def _count(self, worker_id: int, batch: Batch) -> None:
        grown = [delta.task for delta in batch.deltas if delta.turns or delta.rollouts]
        for task in grown:
            self._dispatcher.passed(worker_id, task)
        if grown or batch.done:
            self._observers.grew()
            self._supervisor.progress(worker_id)
            self._settle()
        self._progress.batch(batch)

    def _complete(self, done: Done) -> None:
        """Note a finished task."""
        self._progress.done(done)
        self._observers.completed(done)

    def _judge(self) -> None:
        """Stop a run whose every request is refused in the same way: its settings are wrong, not its questions."""
        if (why := self._progress.rejected) is not None:
            self._fail(EndpointError(why))

    def _feed(self) -> None:
        """Hand out waiting tasks.

        Nothing is handed out before every engine has come up, or the first would take all of a short run.
        """
        if self._supervisor.assembling or self._ending or self._run_limits.word is not None:
            return
        for worker_id in self._registry.ready:
            # Who was lent more than an equal part, since others need less, may take more tasks to make use of it.
            self._registry.resize(worker_id, slots_for(self._job, self._lease_server.held(worker_id)))
        self._dispatcher.feed()

    def _bury(self, worker_id: int, gone: WorkerExited) -> None:
        """Strike a dead engine off: everything it sent is in the file, and its tasks go on from there elsewhere."""
        lost = self._registry.tasks(worker_id)
        report = self._dispatcher.died(worker_id, gone.reason)
        self.snapshot.workers = len(self._registry.ready)
        self._run_limits.lost(worker_id)
        self.coordinator.lost(worker_id)
        self._lease_server.lost(worker_id)
        if self._ending or (self._run_limits.word is not None and not lost):
            return
        self.snapshot.died += 1
        try:
            self._supervisor.died(worker_id, gone, known=report.known)
            logger.warning("%s; %d unfinished tasks go on elsewhere", gone.reason, len(lost) - len(report.guilty))
            self._writer.event("died", worker=worker_id, reason=gone.reason, tasks=list(lost))
            for task, deaths in report.guilty.items():
                self._quarantine.add(task, deaths)
        except WorkerError as error:
            self._fail(error)

    def _settle(self) -> None:
        """End the tasks that are kept from all workers, now that it is known to be their fault."""
        for done in self._quarantine.settle():
            self._progress.lost(done)
            self._complete(done)

    async def _wind_down(self) -> None:
        """Take the last batches of a run that ends early, and the leases that are out."""
        self._run_limits.wind_down()
        await self._supervisor.close()
        grace = self._grace if self._fatal is None and self.stopped else 0.0
        if grace:
            logger.warning("stopping: what is out has %g s to come back, nothing new is begun", grace)
        for worker_id in self._registry:
            self._backend.send(worker_id, StopRun(grace))
        leaving = set(self._registry.ready) - self._fallen
        deadline = time.monotonic() + grace + _WIND_DOWN
        while leaving:
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    event = await self._inbox.get()
            except TimeoutError:
                logger.warning("workers did not stop within %.0f s and are ended", grace + _WIND_DOWN)
                return
            events = [event, *self._queued()]
            self._take(events)
            leaving.difference_update(
                worker_id for worker_id, message in events if isinstance(message, Bye | Fatal | WorkerExited)
            )
