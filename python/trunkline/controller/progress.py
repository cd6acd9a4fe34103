"""Counts of a run: each committed batch and each finished task."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from trunkline import errors
from trunkline.controller.component import Component
from trunkline.errors import InfrastructureError, TrunklineError
from trunkline.store.stats.calls import ESTIMATED_USAGE, RETRY_CAUSES
from trunkline.store.stats.tasks import kept
from trunkline.tree.records import Failure
from trunkline.types import FAILED, Termination

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trunkline.controller.component import Death
    from trunkline.controller.scheduler import TaskQueue
    from trunkline.observability.observers import ObserverHub, Progress
    from trunkline.protocol.job import Job, Refill
    from trunkline.protocol.messages import Batch, Done, Fatal
    from trunkline.store.schema import RolloutRow, TakenRow
    from trunkline.store.writer import RunWriter
    from trunkline.types import Task


_ENOUGH = 10
"""Requests that must be refused alike, with none answered, to stop a run."""

_VARYING = re.compile(r"[0-9a-f]{8}[0-9a-f-]*|\d+", re.IGNORECASE)
"""Request ids, counts and times in an error message: two refusals that differ in these alone are the same."""


class RejectionDetector:
    """Counts refused requests of several tasks while none was answered: one question may be refused at every try."""

    def __init__(self, tasks: int) -> None:
        self._questions = min(_ENOUGH, tasks)
        self._refused: set[int] = set()
        self._kinds: set[str] = set()
        self._count = 0
        self._first = ""

    def note(self, task: int, message: str) -> None:
        self._first = self._first or message
        self._count += 1
        self._refused.add(task)
        if len(self._kinds) < _ENOUGH:
            self._kinds.add(_VARYING.sub("#", message))

    @property
    def reason(self) -> str | None:
        """Why the run cannot succeed; None while that is not certain."""
        if self._count < _ENOUGH or len(self._refused) < self._questions or len(self._kinds) != 1:
            return None
        return f"the first {_ENOUGH} requests were all refused alike: {self._first}"


def reported(fatal: Fatal) -> TrunklineError:
    kind = getattr(errors, fatal.kind, None)
    if isinstance(kind, type) and issubclass(kind, TrunklineError):
        return kind(fatal.message)
    return InfrastructureError(fatal.message)


_CUT: Final = frozenset({"budget", "deadline"})


class ProgressCounter(Component):
    """Counts committed work of a run, and tells observers of it."""

    def __init__(
        self,
        job: Job,
        tasks: Sequence[Task],
        writer: RunWriter,
        task_queue: TaskQueue,
        taken: Mapping[int, TakenRow],
        refill: Refill | None,
        progress: Progress,
        observers: ObserverHub,
    ) -> None:
        self._job = job
        self._most = job.strategy.rollouts()
        self._tasks = tasks
        self._writer = writer
        self._task_queue = task_queue
        self._taken = taken
        self._served = set(writer.progress.served)
        self._estimated = Counter(writer.progress.estimated)
        self._rejections = RejectionDetector(len(tasks) if refill is None else refill.max_tasks)
        self._progress = progress
        self.cut = False  # whether a budget or a deadline cut tries
        self._observers = observers
        self.finished: asyncio.Queue[list[str] | None] = asyncio.Queue()
        self.broke = False

    @property
    def rejected(self) -> str | None:
        """Why the settings must be wrong: every request so far was refused in the same way; None if not."""
        return None if self._progress.calls else self._rejections.reason

    def on_commit(self, worker_id: int, batch: Batch, seconds: float) -> None:
        if batch.progressed:
            self._observers.grew()
        shot = self._progress
        shot.calls += sum([delta.turns for delta in batch.deltas])
        shot.rollouts_done += sum([delta.rollouts for delta in batch.deltas])
        new = set(batch.served) - self._served
        if new:
            self._served |= new
            self._writer.note("served", sorted(self._served))
        if batch.estimated:
            self._estimated.update(batch.estimated)
            self._writer.note(ESTIMATED_USAGE, dict(self._estimated))
        if batch.retry_causes:
            for cause, count in batch.retry_causes.items():
                shot.retry_causes[cause] = shot.retry_causes.get(cause, 0) + count
            self._writer.note(RETRY_CAUSES, dict(shot.retry_causes))
        self._observers.committed(worker_id, batch, seconds)
        if batch.done:
            self._done(batch.done)

    def on_lost(self, worker_id: int, death: Death) -> None:
        self._progress.died += not death.expected()

    def lost(self, done: Done) -> None:
        self._progress.lost += 1
        self._progress.rollouts_done += sum(row.termination == Termination.LOST for row in done.rollouts)
        self._done([done])

    def _done(self, finished: Sequence[Done]) -> None:
        shot, scored = self._progress, self._job.reward is not None
        whole = sum([kept(done.tree.error, done.rollouts, scored=scored) for done in finished])
        self._task_queue.done(len(finished), kept=whole)
        self.cut = self.cut or not _CUT.isdisjoint([done.tree.ended for done in finished])
        for done in finished:
            self.broke |= done.tree.error is not None
            if done.task in self._taken:
                self._discount(self._taken[done.task])
            for row in done.rollouts:
                if row.termination in FAILED:
                    self._failed(done.task, row)
        shot.tasks_done += len(finished)
        shot.kept = self._task_queue.kept
        if shot.groups is None:
            # The tasks' rollouts replace the most that their strategy could have made.
            tries = [row.termination != Termination.RETRIED for done in finished for row in done.rollouts]
            shot.rollouts += sum(tries) - self._most * len(finished)
        self.finished.put_nowait([self._tasks[done.task].id for done in finished])
        self._observers.completed(finished)

    def _discount(self, before: TakenRow) -> None:
        self._progress.failed -= before.failed
        self._progress.rollouts -= before.rollouts if self._progress.groups is None else 0

    def _failed(self, task: int, row: RolloutRow) -> None:
        self._progress.failed += 1
        if row.termination == Termination.BAD_REQUEST and not row.turns:
            before = self._taken.get(task)
            if before is None or row.rollout >= before.rollouts:
                self._rejections.note(task, Failure.decode(row.error or "").message)
