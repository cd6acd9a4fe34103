"""What a run has come to: every batch and every finished task is counted here, once it is in the run file."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import TYPE_CHECKING

from trunkline import errors
from trunkline.errors import InfrastructureError, TrunklineError
from trunkline.observability.observers import opening
from trunkline.store.stats.calls import ESTIMATED_USAGE
from trunkline.store.stats.tasks import kept
from trunkline.tree.records import Failure
from trunkline.types import FAILED, Termination

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trunkline.controller.scheduler import TaskQueue
    from trunkline.protocol.job import Job, Refill
    from trunkline.protocol.messages import Batch, Done, Fatal
    from trunkline.store.schema import RolloutRow, TakenRow
    from trunkline.store.writer import RunWriter
    from trunkline.types import Task


__all__ = ["ProgressCounter", "RejectionDetector", "reported"]


_ENOUGH = 10
"""So many first requests refused alike, and none answered, stop a run."""

_VARYING = re.compile(r"[0-9a-f]{8}[0-9a-f-]*|\d+", re.IGNORECASE)
"""Request ids, counts and times in an error message: two refusals that differ in these alone are the same."""


class RejectionDetector:
    """Counts the requests that were refused while none has been answered.

    One question that an endpoint dislikes is refused once a try, so refusals of as many questions are asked for, as far
    as the run may hand out.

    Args:
        tasks: How many tasks the run may hand out.
    """

    def __init__(self, tasks: int) -> None:
        self._questions = min(_ENOUGH, tasks)
        self._refused: set[int] = set()
        self._kinds: set[str] = set()
        self._count = 0
        self._first = ""

    def note(self, task: int, message: str) -> None:
        """Note one refused request.

        Args:
            task: The task's index.
            message: How it was refused.
        """
        self._first = self._first or message
        self._count += 1
        self._refused.add(task)
        if len(self._kinds) < _ENOUGH:
            self._kinds.add(_VARYING.sub("#", message))

    @property
    def reason(self) -> str | None:
        """Why the run makes no sense, or None while that is not certain."""
        if self._count < _ENOUGH or len(self._refused) < self._questions or len(self._kinds) != 1:
            return None
        return f"the first {_ENOUGH} requests were all refused alike: {self._first}"


def reported(fatal: Fatal) -> TrunklineError:
    """Make the error that a worker reported."""
    kind = getattr(errors, fatal.kind, None)
    if isinstance(kind, type) and issubclass(kind, TrunklineError):
        return kind(fatal.message)
    return InfrastructureError(fatal.message)


class ProgressCounter:
    """Counts what is committed.

    Args:
        job: What is done with each task.
        tasks: The tasks.
        writer: The run file; where it was opened, counting goes on from what is in it.
        task_queue: Is told of each finished task.
        taken: What was taken over of tasks that an earlier run has begun.
        refill: How many groups are wanted of the tasks, if that was said.

    Attributes:
        snapshot: The state of the run.
        finished: The ids of tasks as they are finished.
    """

    def __init__(
        self,
        job: Job,
        tasks: Sequence[Task],
        writer: RunWriter,
        task_queue: TaskQueue,
        taken: Mapping[int, TakenRow],
        refill: Refill | None,
    ) -> None:
        self._job = job
        self._tasks = tasks
        self._writer = writer
        self._task_queue = task_queue
        self._taken = taken
        self._served = set(writer.progress.served)
        self._estimated = Counter(writer.progress.estimated)
        self._rejections = RejectionDetector(len(tasks) if refill is None else refill.max_tasks)
        self.snapshot = opening(writer.progress, len(tasks), job.strategy.rollouts(), taken, refill)
        self.finished: asyncio.Queue[str | None] = asyncio.Queue()

    @property
    def rejected(self) -> str | None:
        """Why the settings must be wrong: every request so far was refused in the same way. None if that is not so."""
        return None if self.snapshot.calls else self._rejections.reason

    def batch(self, batch: Batch) -> None:
        """Count a batch, but for the tasks that are done in it."""
        shot = self.snapshot
        shot.calls += sum(delta.turns for delta in batch.deltas)
        shot.rollouts_done += sum(delta.rollouts for delta in batch.deltas)
        shot.called(call for delta in batch.deltas for call in delta.calls)
        shot.used(use for delta in batch.deltas for use in delta.tools)
        new = set(batch.served) - self._served
        if new:
            self._served |= new
            self._writer.note("served", sorted(self._served))
        if batch.estimated:
            self._estimated.update(batch.estimated)
            self._writer.note(ESTIMATED_USAGE, dict(self._estimated))

    def done(self, done: Done) -> None:
        """Count a finished task."""
        shot, before = self.snapshot, self._taken.get(done.task)
        self._task_queue.done(kept=kept(done.tree.error, done.rollouts, scored=self._job.reward is not None))
        shot.tasks_done += 1
        shot.kept = self._task_queue.kept
        shot.failed -= 0 if before is None else before.failed
        if shot.groups is None:
            # What the task came to, in the place of the most that its strategy could have made.
            had = 0 if before is None else before.rollouts
            shot.rollouts += len(done.rollouts) - had - self._job.strategy.rollouts()
        for row in done.rollouts:
            if row.termination in FAILED:
                shot.failed += 1
            if row.termination == Termination.BAD_REQUEST and not row.turns and not _is_old(row, before):
                self._rejections.note(done.task, Failure.decode(row.error or "").message)
        self.finished.put_nowait(self._tasks[done.task].id)

    def lost(self, done: Done) -> None:
        """Count what a task that was given up has lost."""
        self.snapshot.lost += 1
        self.snapshot.rollouts_done += sum(row.termination == Termination.LOST for row in done.rollouts)


def _is_old(row: RolloutRow, before: TakenRow | None) -> bool:
    """Whether a rollout was there before the run."""
    return before is not None and row.rollout < before.rollouts
