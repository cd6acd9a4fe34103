"""The controller: hands tasks to workers under their credits, commits their batches, and ends the run."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline._internal.aio import wait_uninterrupted
from trunkline._internal.resources import collector, resident
from trunkline.controller.budget import NOTHING, RunBudget, RunLimits, RunSpending, spent_in
from trunkline.controller.component import Components, Death
from trunkline.controller.leases import LeaseServer, leased_limits
from trunkline.controller.poison_tasks import Quarantine
from trunkline.controller.progress import ProgressCounter, reported
from trunkline.controller.scheduler import TaskDispatcher, TaskQueue, WorkerRegistry
from trunkline.controller.supervisor import BEAT, Supervisor
from trunkline.controller.weights import WeightCoordinator
from trunkline.errors import EndpointError, TrunklineError, WorkerError
from trunkline.observability.logging import relog
from trunkline.observability.observers import ObserverHub, opening
from trunkline.protocol.backend import Backend, Event, Inbox, WorkerExited
from trunkline.protocol.job import slots_for
from trunkline.protocol.messages import RUN_BUDGET, Ack, Batch, Bye, CutTasks, Fatal, Log, StopRun, WorkerReady
from trunkline.store.stats.summary import RESOURCES, Resources

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trunkline.observability.observers import Observer, Progress
    from trunkline.protocol.job import Job, Refill
    from trunkline.protocol.messages import ToWorker
    from trunkline.store.schema import TakenRow
    from trunkline.store.writer import RunWriter
    from trunkline.types import Task

logger = logging.getLogger(__name__)

GRACE = 10.0
"""Seconds that requests and tool calls in flight have to complete when a run is asked to stop."""

_GATHER = 0.005
"""Seconds in which arriving messages share one sync of the disk."""

_WIND_DOWN = 5.0
"""Seconds beyond the grace that workers have to send their last batches."""


class Controller:
    """Runs one job over its tasks; a run file that was opened again is continued.

    ``taken`` has the tasks that an earlier run has begun; ``grace`` are seconds for requests in flight when the run is
    stopped; ``memory`` are bytes for each worker; ``durable`` syncs commits to the disk.
    """

    def __init__(
        self,
        job: Job,
        tasks: Sequence[Task],
        writer: RunWriter,
        backend: Backend,
        watch: Callable[[Progress], None] | None = None,
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
        self._inbox = Inbox()
        self._durable = durable
        self._fatal: TrunklineError | None = None
        self._grace = grace
        self._failed_workers: set[int] = set()
        self._unacknowledged: list[tuple[int, Ack]] = []
        self._beaten = time.monotonic()
        self.stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        there, send = writer.progress, backend.send
        self.task_queue = TaskQueue(len(tasks), refill, finished=there.finished, begun=there.begun, kept=there.kept)
        self.progress = opening(there, len(tasks), job.strategy.rollouts(), self._taken, refill)
        self.observers = ObserverHub(self.progress, watch, observers)
        self._registry = WorkerRegistry()
        self._dispatcher = TaskDispatcher(
            tasks, self.task_queue, self._registry, writer, self._taken, send, begun=there.begun
        )
        resources, run_budget = leased_limits(job.llms, backend.workers, send), None
        if job.budget is not None and job.budget.limits:
            resources[RUN_BUDGET] = run_budget = RunBudget(job.budget, job.prices, send, self._spent())
        self._lease_server = LeaseServer(resources)
        self._run_limits = RunLimits(
            None if job.budget is None else job.budget.seconds,
            run_budget,
            lambda cut: self._inbox.put_nowait((-1, cut)),
        )
        self.coordinator = WeightCoordinator(job.weights, send, lambda versions: writer.note("weights", [*versions]))
        self._counter = ProgressCounter(
            job, tasks, writer, self.task_queue, self._taken, refill, self.progress, self.observers
        )
        self._supervisor = Supervisor(backend, self._registry, writer, memory)
        self._quarantine = Quarantine(job, tasks, writer, self._counter.lost)
        self._components = Components(
            [
                self._dispatcher,
                self._run_limits,
                self._lease_server,
                self.coordinator,
                self._counter,
                self._supervisor,
                self._quarantine,
            ]
        )
        self._handlers: dict[type, Callable[[int, Any], None]] = {
            **self._components.handlers,
            WorkerReady: lambda worker_id, message: self._components.ready(worker_id, message.slots),
            WorkerExited: self._worker_exited,
            Fatal: self._worker_failed,
            CutTasks: lambda _, message: self._send_all(message),
            Log: relog,
        }
        self.progress.engines = self._supervisor.engines
        self.finished = self._counter.finished

    @property
    def broke(self) -> bool:
        """Whether a rollout or a whole task broke, as far as this controller has seen."""
        return self.progress.failed > 0 or self._counter.broke

    def stop(self, *, at_once: bool = False) -> None:
        """Ask the run to end early; with ``at_once``, without waiting for requests and tool calls in flight."""
        if at_once:
            self._grace = 0.0
        self.stopped = True
        self._inbox.wake()

    def stop_soon(self, *, at_once: bool = False) -> None:
        """Like ``stop``, from another thread; ``at_once`` cancels the run instead."""
        if self._loop is None or self._task is None:
            self.stopped = True
        else:
            self._loop.call_soon_threadsafe(self._task.cancel if at_once else self.stop)

    @property
    def ended(self) -> str | None:
        """``deadline`` or ``budget`` where that kept tasks from being begun, or cut tries."""
        return self._run_limits.word if self.task_queue.left or self._counter.cut else None

    async def run(self) -> None:
        """Run until every needed task is done, the run is stopped, or its budget or time is used up.

        Raises:
            EndpointError: If the endpoint serves no request.
            InfrastructureError: If no worker is left, or the run file cannot be written.
        """
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._run_limits.start()
        self.observers.begin(self._job, self._tasks, self._taken)
        collector.relax()
        try:
            self._run_limits.note(self._writer)
            self._supervisor.began(await self._backend.start(self._job, self._inbox))
            while self.task_queue.open and not self._ending and not self._through:
                self._take(await self._arrived())
                self._beat()
                self._feed()
            if self.task_queue.open or self._run_limits.leases_out:
                await self._wind_down()
            if self._fatal is not None:
                raise self._fatal
        finally:
            collector.restore()
            closing = asyncio.ensure_future(self._close())
            await wait_uninterrupted(closing)
            closing.result()

    async def _close(self) -> None:
        self._components.end()
        try:
            await self._supervisor.close()
        finally:
            # No worker is left, even where that is interrupted.
            await self._backend.close()
        self._weigh()
        self.observers.end()
        held = Resources(self.progress.memory, self.progress.servers)
        self._writer.note(RESOURCES, msgspec.to_builtins(held))
        # Last: it raises where the run file cannot be written.
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
        """Whether nothing grows, and nothing more will be begun."""
        return self._run_limits.word is not None and not self._registry.busy

    def _fail(self, error: TrunklineError) -> None:
        self._fatal = self._fatal or error

    async def _arrived(self) -> list[tuple[int, Event]]:
        """Wait for messages until the next beat, or until the run is asked to stop; all of them share a transaction."""
        if await self._inbox.arrived(max(0.0, self._beaten + BEAT - time.monotonic())) and self._durable:
            await asyncio.sleep(_GATHER)
        return self._inbox.take()

    def _beat(self) -> None:
        """Supervise the workers once a second, and end a run that has none left."""
        if time.monotonic() >= self._beaten + BEAT:
            self._beaten = time.monotonic()
            self._supervisor.beat()
            self._weigh()
            self.observers.look()
        if self._ending or self._through:
            return
        if len(self._quarantine) == self.task_queue.growing and not self.task_queue.more:
            self._quarantine.settle()
        elif self._supervisor.exhausted:
            left = f"no worker is left; {self.task_queue.open} tasks were not finished"
            self._fail(WorkerError(f"{self._supervisor.given_up}, and {left}"))

    def _weigh(self) -> None:
        """Note the memory that the run's processes hold together, as soon as workers have said what they hold."""
        states = self._supervisor.engines.values()
        if len(states) >= self._backend.workers:
            workers = sum(state.memory for state in states) if self._backend.workers else 0
            self.progress.memory = max(self.progress.memory, resident() + workers)

    def _take(self, events: list[tuple[int, Event]]) -> None:
        """Handle messages in order; batches are committed together, before anything counts."""
        events = [event for event in events if not self._is_stale(*event)]
        if self._unacknowledged and not self._waits:
            self._release()
        self._commit([(worker_id, message) for worker_id, message in events if isinstance(message, Batch)])
        for worker_id, message in events:
            self._supervisor.heartbeats.seen(worker_id)
            if (handler := self._handlers.get(type(message))) is not None:
                handler(worker_id, message)
        if (rejected := self._counter.rejected) is not None:
            self._fail(EndpointError(rejected))
        self.progress.workers = len(self._registry.ready)
        self._run_limits.note(self._writer)
        self.observers.show(self._supervisor.heartbeats.silent)

    @property
    def _waits(self) -> bool:
        """Whether the run waits for an observer; not once it is to end."""
        return self.observers.behind and not self._ending and self._run_limits.word is None

    def _release(self) -> None:
        """Acknowledge what was committed while the run waited for an observer."""
        for worker_id, ack in self._unacknowledged:
            self._backend.send(worker_id, ack)
        self._unacknowledged.clear()

    def _commit(self, batches: list[tuple[int, Batch]]) -> None:
        """Write batches in one transaction; then, and only then, acknowledge and count them."""
        if not batches:
            return
        begun = time.monotonic()
        rows = self._writer.commit(
            [(delta.task, delta.seq, delta.data) for _, batch in batches for delta in batch.deltas],
            [(done.task, done.tree, done.rollouts) for _, batch in batches for done in batch.done],
        )
        self.progress.called(rows)
        took = time.monotonic() - begun
        waits = self._waits
        for worker_id, batch in batches:
            if waits:
                self._unacknowledged.append((worker_id, Ack(batch.batch)))
            else:
                self._backend.send(worker_id, Ack(batch.batch))
            self._components.commit(worker_id, batch, took)

    def _is_stale(self, worker_id: int, message: Event) -> bool:
        """Whether a worker that counts as gone sent this; its tasks were assigned again."""
        if worker_id not in self._registry.gone:
            return False
        if isinstance(message, Batch):
            tasks = sorted({delta.task for delta in message.deltas})
            logger.warning("worker %d counts as gone, and what it still sent is dropped", worker_id)
            self._writer.event("stale", worker=worker_id, tasks=tasks, deltas=len(message.deltas))
        return True

    def _feed(self) -> None:
        """Hand out waiting tasks, once every worker is up: the first one would take all of a short run."""
        if self._supervisor.assembling or self._ending or self._run_limits.word is not None:
            return
        for worker_id in self._registry.ready:
            # A worker that holds more than an equal part of the slots takes more tasks to use them.
            self._registry.resize(worker_id, slots_for(self._job, self._lease_server.held(worker_id)))
        self._dispatcher.feed()

    def _send_all(self, message: ToWorker) -> None:
        for worker_id in list(self._registry):
            self._backend.send(worker_id, message)

    def _worker_failed(self, worker_id: int, message: Fatal) -> None:
        self._failed_workers.add(worker_id)
        self._fail(reported(message))

    def _worker_exited(self, worker_id: int, exited: WorkerExited) -> None:
        """Assign the tasks of a dead worker again, and tell the components of its end."""
        tasks = self._registry.tasks(worker_id)
        report = self._dispatcher.died(worker_id, exited.reason)

        def expected() -> bool:
            return self._ending or (self._run_limits.word is not None and not tasks)

        try:
            self._components.lost(worker_id, Death(exited, tasks, report, expected))
        except WorkerError as error:
            self._fail(error)

    async def _wind_down(self) -> None:
        """Take the last batches of a run that ends early, and the leases that workers hold."""
        self._run_limits.wind_down()
        self._release()
        await self._supervisor.close()
        grace = self._grace if self._fatal is None and self.stopped else 0.0
        if grace:
            logger.warning("stopping: waiting up to %g s for requests and tool calls in flight", grace)
        self._send_all(StopRun(grace))
        leaving = set(self._registry.ready) - self._failed_workers
        deadline = time.monotonic() + grace + _WIND_DOWN
        while leaving:
            left = deadline - time.monotonic()
            if not await self._inbox.arrived(max(0.0, left)):
                if left > 0:
                    continue
                logger.warning("workers did not stop within %.0f s and are ended", grace + _WIND_DOWN)
                return
            events = self._inbox.take()
            self._take(events)
            leaving.difference_update(
                worker_id for worker_id, message in events if isinstance(message, Bye | Fatal | WorkerExited)
            )
