"""The controller: feeds engines under their credits, commits what they send, and decides when a run is over."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING

from trunkline import errors
from trunkline._core import Tree as Core
from trunkline.errors import EndpointError, InfrastructureError, TrunklineError, WorkerError
from trunkline.rollout.opening import begin
from trunkline.runtime.backend import Backend, Event, Gone, Inbox
from trunkline.runtime.closing import Closing
from trunkline.runtime.handout import Handout, Refill
from trunkline.runtime.refusals import Refusals
from trunkline.runtime.roster import Roster
from trunkline.runtime.snapshot import Snapshot
from trunkline.runtime.wire import (
    Ack,
    Batch,
    Bye,
    Cut,
    Done,
    Drawn,
    Earlier,
    Fatal,
    Ready,
    Repaid,
    Stop,
    Want,
    Work,
    write_task,
)
from trunkline.score.filters.filter import unjudged
from trunkline.store.derive import rows
from trunkline.store.judgements import kept
from trunkline.tree.failure import Failure
from trunkline.tree.tree import Tree
from trunkline.types import FAILED, Task, Termination

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trunkline.runtime.job import Job
    from trunkline.store.schema import RolloutRow, TakenRow
    from trunkline.store.writer import RunWriter

__all__ = ["Controller"]

logger = logging.getLogger(__name__)

_START_WITHIN = 120.0
"""Seconds that workers have to import the user's code and come up."""

_WORK_BYTES = 8 * 1024 * 1024
"""About how many bytes of tasks one message carries."""

_WIND_DOWN = 5.0
"""Seconds that engines have to send their last batches when a run is stopped."""


class Controller:
    """Runs one job over its tasks.

    Args:
        job: What to do with each task.
        tasks: The tasks, in the order they are started.
        writer: The run file, created for these tasks.
        backend: Where engines live.
        watch: Called with the state of the run whenever it has changed.
        taken: What was taken over of tasks that an earlier run has begun; their deltas are in the run file.
        refill: How many groups are wanted of the tasks; all tasks are run when None.
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
    ) -> None:
        self._taken = taken or {}
        self._job = job
        self._tasks = tasks
        self._writer = writer
        self._backend = backend
        self._watch = watch
        self._inbox: Inbox = asyncio.Queue()
        self.handout = Handout(len(tasks), refill)
        self._roster = Roster()
        self._refusals = Refusals(len(tasks) if refill is None else refill.max_tasks)
        self._fatal: TrunklineError | None = None
        self._fallen: set[int] = set()
        self._begun: set[int] = set()
        self._empty: list[tuple[int, str]] = []
        self._served: set[str] = set()
        self._began = time.monotonic()
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = Closing(job, backend.send, lambda cut: self._inbox.put_nowait((-1, cut)))
        planned = len(tasks) if refill is None else refill.groups
        going_on = sum(row.growing for row in self._taken.values())
        self.snapshot = Snapshot(
            tasks=len(tasks),
            rollouts=planned * job.strategy.rollouts() + going_on,
            groups=refill.groups if refill else None,
        )
        self.finished: asyncio.Queue[str | None] = asyncio.Queue()

    def stop(self) -> None:
        """Ask the run to end early: what has grown is kept."""
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
        return self._closing.word if self.handout.left else None

    async def run(self) -> None:
        """Run until every task that is needed is done, or stopped, or the run's budget or time is over.

        Raises:
            EndpointError: If the endpoint serves nobody.
            InfrastructureError: If no worker is left, or the run file cannot be written.
        """
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        stop = asyncio.ensure_future(self._stop.wait())
        self._closing.start()
        try:
            for seat in await self._backend.start(self._job, self._inbox):
                self._roster.add(seat)
            while self.handout.open and not self._ending and not self._through:
                event = asyncio.ensure_future(self._inbox.get())
                await asyncio.wait((event, stop), timeout=self._start_left(), return_when=asyncio.FIRST_COMPLETED)
                if not event.done():
                    event.cancel()
                    if stop.done():
                        break
                    missing = min(self._roster.starting)
                    raise WorkerError(
                        f"worker {missing} did not come up within {_START_WITHIN:.0f} s: does a module of yours "
                        "take that long to import?"
                    )
                self._take([event.result(), *self._queued()])
                await self._replace()
                self._feed()
            if self.handout.open or self._closing.lent:
                await self._wind_down()
            if self._fatal is not None:
                raise self._fatal
        finally:
            stop.cancel()
            self._closing.close()
            self.finished.put_nowait(None)
            await self._backend.close()
            # Last: where the run file cannot be written, this raises as well.
            self._closing.report(self._writer)

    @property
    def _ending(self) -> bool:
        """Whether the run is to end before its tasks are done."""
        return self.stopped or self._fatal is not None

    @property
    def _through(self) -> bool:
        """Whether nothing grows and nothing will."""
        return self._closing.word is not None and not self._roster.busy

    def _fail(self, error: TrunklineError) -> None:
        """End the run with the first error that says it makes no sense to go on."""
        self._fatal = self._fatal or error

    def _start_left(self) -> float | None:
        """Seconds to wait for the next event: workers must come up in time, and may then take theirs."""
        if not self._roster.starting:
            return None
        return max(0.0, self._began + _START_WITHIN - time.monotonic())

    def _queued(self) -> list[tuple[int, Event]]:
        """Take what has arrived meanwhile, so that it shares one transaction."""
        events = []
        while not self._inbox.empty():
            events.append(self._inbox.get_nowait())
        return events

    def _take(self, events: list[tuple[int, Event]]) -> None:
        """Handle messages in order; batches are committed together, before anything counts."""
        self._commit([(seat, message) for seat, message in events if isinstance(message, Batch)])
        for seat, message in events:
            match message:
                case Ready():
                    self._roster.ready(seat, message.slots)
                    self.snapshot.workers = self._roster.up
                    self._closing.seat(seat)
                case Want() | Drawn() | Repaid():
                    self._closing.take(seat, message)
                case Cut():
                    for number in self._roster:
                        self._backend.send(number, message)
                case Fatal():
                    self._fallen.add(seat)
                    self._fail(_rebuild(message))
                case Gone():
                    self._bury(seat, message.reason)
                case Batch() | Bye():
                    pass
        self._judge()
        if self._watch is not None:
            self.snapshot.seconds = time.monotonic() - self._began
            self._watch(self.snapshot)

    def _commit(self, batches: list[tuple[int, Batch]]) -> None:
        """Write batches in one transaction; then, and only then, acknowledge and count them."""
        if not batches:
            return
        self._writer.commit(
            [(delta.task, delta.seq, delta.data) for _, batch in batches for delta in batch.deltas],
            [(done.task, done.tree, done.rollouts) for _, batch in batches for done in batch.done],
            [(delta.task, delta.seq, delta.calls) for _, batch in batches for delta in batch.deltas],
        )
        for seat, batch in batches:
            self._backend.send(seat, Ack(batch.batch))
            self._count(batch)
            self._closing.committed(seat, (call for delta in batch.deltas for call in delta.calls))
            for done in batch.done:
                self._roster.done(seat, done.task)
                self._complete(done)

    def _count(self, batch: Batch) -> None:
        shot = self.snapshot
        shot.calls += sum(delta.turns for delta in batch.deltas)
        shot.rollouts_done += sum(delta.rollouts for delta in batch.deltas)
        shot.called(call for delta in batch.deltas for call in delta.calls)
        new = set(batch.served) - self._served
        if new:
            self._served |= new
            self._writer.note("served", sorted(self._served))

    def _complete(self, done: Done) -> None:
        """Note a finished task."""
        self.handout.done(kept=kept(done.tree.error, done.rollouts, scored=self._job.reward is not None))
        self.snapshot.tasks_done += 1
        self.snapshot.kept = self.handout.kept
        before = self._taken.get(done.task)
        self.snapshot.failed -= 0 if before is None else before.failed
        if self.snapshot.groups is None:
            # What the task came to, in the place of the most that its strategy could have made.
            had = 0 if before is None else before.rollouts
            self.snapshot.rollouts += len(done.rollouts) - had - self._job.strategy.rollouts()
        for row in done.rollouts:
            if row.termination in FAILED:
                self.snapshot.failed += 1
            if row.termination == Termination.BAD_REQUEST and not row.turns and not _is_old(row, before):
                self._refusals.note(done.task, Failure.decode(row.error or "").message)
        self.finished.put_nowait(self._tasks[done.task].id)

    def _judge(self) -> None:
        """Stop a run whose every request is refused in the same way: its settings are wrong, not its questions."""
        if not self.snapshot.calls and (verdict := self._refusals.verdict) is not None:
            self._fail(EndpointError(verdict))

    def _feed(self) -> None:
        """Hand out waiting tasks, one at a time to the engine that takes most.

        Nothing is handed out before every engine has come up, or the first would take all of a short run.
        """
        if self._roster.starting or self._ending or self._closing.word is not None:
            return
        work: dict[int, list[tuple[int, bytes]]] = {}
        sizes: Counter[int] = Counter()
        while (seat := self._roster.freest()) is not None and (index := self.handout.take()) is not None:
            self._send_earlier(seat, index)
            data = write_task(self._tasks[index])
            self._roster.take(seat, index)
            work.setdefault(seat, []).append((index, data))
            sizes[seat] += len(data)
            if sizes[seat] >= _WORK_BYTES:
                self._backend.send(seat, Work(work.pop(seat)))
                sizes[seat] = 0
        for seat, tasks in work.items():
            self._backend.send(seat, Work(tasks))

    def _send_earlier(self, seat: int, index: int) -> None:
        """Send what there is of a task that was begun, in messages of a size that can be sent."""
        begun = self._taken.get(index)
        if begun is None and index not in self._begun:
            return
        taken = 0 if begun is None else begun.deltas
        part: list[bytes] = []
        size = 0
        for data in self._writer.deltas(index):
            if part and size + len(data) > _WORK_BYTES:
                self._backend.send(seat, Earlier(index, part, taken))
                part, size = [], 0
            part.append(data)
            size += len(data)
        if part:
            self._backend.send(seat, Earlier(index, part, taken))

    def _bury(self, seat: int, reason: str) -> None:
        """Strike a dead worker off: everything it sent is in the file, and its tasks go on from there elsewhere."""
        ready = self._roster.is_up(seat)
        lost = self._roster.gone(seat)
        self.snapshot.workers = self._roster.up
        self._closing.lost(seat)
        if self._ending or (self._closing.word is not None and not lost):
            return
        if not ready:
            self._fail(WorkerError(f"{reason} before it was ready"))
            return
        logger.warning("%s; %d unfinished tasks go on elsewhere", reason, len(lost))
        self._begun.update(lost)
        self.handout.put_back(lost)
        self._empty.append((seat, reason))

    async def _replace(self) -> None:
        """Start engines in the places of those that are gone."""
        while self._empty:
            seat, reason = self._empty.pop()
            new = await self._backend.replace(seat)
            if new is not None:
                self._roster.add(new)
            elif not self._roster and self.handout.open:
                self._fail(WorkerError(f"{reason}, and no worker is left; {self.handout.open} tasks were not finished"))

    def _lose(self, index: int, reason: str) -> None:
        """Close a task's rollouts for good with a typed error, as one more delta of its tree."""
        core, known = Core(), self._writer.deltas(index)
        for data in known:
            core.apply(data)
        if not core.rollouts:
            begin(Tree(self._tasks[index], core), self._job.agent, self._job.strategy, self._job.seed)
        failure = Failure("WorkerError", reason, retryable=True)
        for rollout in core.growing:
            core.close(rollout, Termination.LOST.value, None, failure.encode())
            self.snapshot.rollouts_done += 1
        unjudged(self._job.filters, core, reason)
        delta = core.delta()
        tree, rollouts = rows(core, reason)
        self._writer.commit([(index, len(known), delta)] if delta else [], [(index, tree, rollouts)])
        self.snapshot.lost += 1
        self._complete(Done(index, tree, rollouts))

    async def _wind_down(self) -> None:
        """Take the last batches of a run that ends early, and the leases that are out."""
        self._closing.wind_down()
        for seat in self._roster:
            self._backend.send(seat, Stop())
        leaving = set(self._roster) - self._fallen
        deadline = time.monotonic() + _WIND_DOWN
        while leaving:
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    number, message = await self._inbox.get()
            except TimeoutError:
                logger.warning("workers did not stop within %.0f s and are ended", _WIND_DOWN)
                return
            self._take([(number, message)])
            if isinstance(message, Bye | Fatal | Gone):
                leaving.discard(number)


def _is_old(row: RolloutRow, before: TakenRow | None) -> bool:
    """Whether a rollout was there before the run."""
    return before is not None and row.rollout < before.rollouts


def _rebuild(fatal: Fatal) -> TrunklineError:
    """Make the error that a worker reported."""
    kind = getattr(errors, fatal.kind, None)
    if isinstance(kind, type) and issubclass(kind, TrunklineError):
        return kind(fatal.message)
    return InfrastructureError(fatal.message)
