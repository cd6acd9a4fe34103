"""What a run has come to: every batch and every finished task is counted here, once it is in the run file."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from trunkline.runtime.refusals import Refusals
from trunkline.runtime.snapshot import opening
from trunkline.store.judgements import kept
from trunkline.tree.failure import Failure
from trunkline.types import FAILED, Termination

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trunkline.runtime.handout import Handout, Refill
    from trunkline.runtime.job import Job
    from trunkline.runtime.wire import Batch, Done
    from trunkline.store.schema import RolloutRow, TakenRow
    from trunkline.store.writer import RunWriter
    from trunkline.types import Task

__all__ = ["Tally"]


class Tally:
    """Counts what is committed.

    Args:
        job: What is done with each task.
        tasks: The tasks.
        writer: The run file; where it was opened, counting goes on from what is in it.
        handout: Is told of each finished task.
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
        handout: Handout,
        taken: Mapping[int, TakenRow],
        refill: Refill | None,
    ) -> None:
        self._job = job
        self._tasks = tasks
        self._writer = writer
        self._handout = handout
        self._taken = taken
        self._served = set(writer.standing.served)
        self._refusals = Refusals(len(tasks) if refill is None else refill.max_tasks)
        self.snapshot = opening(writer.standing, len(tasks), job.strategy.rollouts(), taken, refill)
        self.finished: asyncio.Queue[str | None] = asyncio.Queue()

    @property
    def refused(self) -> str | None:
        """Why the settings must be wrong: every request so far was refused in the same way. None if that is not so."""
        return None if self.snapshot.calls else self._refusals.verdict

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

    def done(self, done: Done) -> None:
        """Count a finished task."""
        shot, before = self.snapshot, self._taken.get(done.task)
        self._handout.done(kept=kept(done.tree.error, done.rollouts, scored=self._job.reward is not None))
        shot.tasks_done += 1
        shot.kept = self._handout.kept
        shot.failed -= 0 if before is None else before.failed
        if shot.groups is None:
            # What the task came to, in the place of the most that its strategy could have made.
            had = 0 if before is None else before.rollouts
            shot.rollouts += len(done.rollouts) - had - self._job.strategy.rollouts()
        for row in done.rollouts:
            if row.termination in FAILED:
                shot.failed += 1
            if row.termination == Termination.BAD_REQUEST and not row.turns and not _is_old(row, before):
                self._refusals.note(done.task, Failure.decode(row.error or "").message)
        self.finished.put_nowait(self._tasks[done.task].id)

    def lost(self, done: Done) -> None:
        """Count what a task that was given up has lost."""
        self.snapshot.lost += 1
        self.snapshot.rollouts_done += sum(row.termination == Termination.LOST for row in done.rollouts)


def _is_old(row: RolloutRow, before: TakenRow | None) -> bool:
    """Whether a rollout was there before the run."""
    return before is not None and row.rollout < before.rollouts
