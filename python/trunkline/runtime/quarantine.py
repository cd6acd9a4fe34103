"""Quarantine: tasks that kill their workers, and how their rollouts end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from trunkline._core import Tree as Core
from trunkline.errors import WorkerError
from trunkline.printable import quoted
from trunkline.rollout.effects import lose
from trunkline.rollout.opening import begin
from trunkline.runtime.wire import Done
from trunkline.score.filters.filter import unjudged
from trunkline.store.derive import rows
from trunkline.tree.failure import Failure
from trunkline.tree.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.runtime.job import Job
    from trunkline.store.writer import RunWriter
    from trunkline.types import Task

__all__ = ["Quarantine"]

logger = logging.getLogger(__name__)

_MOST = 5
"""Tasks that may be found guilty in a row while no turn gets into the run file: then it is not the tasks."""


class Quarantine:
    """Keeps guilty tasks until somebody else has got on, and then ends them: a broken tool condemns nobody.

    Args:
        job: What the run does.
        tasks: All tasks.
        writer: The run file.
    """

    def __init__(self, job: Job, tasks: Sequence[Task], writer: RunWriter) -> None:
        self._job = job
        self._tasks = tasks
        self._writer = writer
        self._held: dict[int, list[str]] = {}

    def __len__(self) -> int:
        """How many tasks are kept and not ended yet."""
        return len(self._held)

    def add(self, index: int, deaths: Sequence[str]) -> None:
        """Keep a task from all workers.

        Args:
            index: The task.
            deaths: How the workers ended that it had for itself.

        Raises:
            WorkerError: Workers die of every task.
        """
        self._held[index] = list(deaths)
        if len(self._held) >= _MOST:
            raise WorkerError(
                f"the last {len(self._held)} tasks that were tried alone each killed their workers and nothing was "
                f"made in between ({deaths[-1]}): something that they all use is broken"
            )

    def settle(self) -> list[Done]:
        """End what is kept; returns these tasks, which are in the run file."""
        held, self._held = self._held, {}
        return [self._lose(index, deaths) for index, deaths in held.items()]

    def _lose(self, index: int, deaths: Sequence[str]) -> Done:
        """Close a task's rollouts for good with a typed error, as one more delta of its tree."""
        task, core, known = self._tasks[index], Core(), self._writer.deltas(index)
        for data in known:
            core.apply(data)
        if not core.rollouts:
            begin(Tree(task, core), self._job.agent, self._job.strategy, self._job.seed)
        reason = f"it killed {len(deaths)} workers that had nothing else to do: {'; '.join(deaths)}"
        logger.warning("task %s is given to no worker any more: %s", quoted(task.id), reason)
        lose(core, Failure("WorkerError", reason, retryable=True, blame="worker"))
        unjudged(self._job.filters, core, reason)
        delta = core.delta()
        tree, rollouts = rows(core, reason)
        self._writer.commit([(index, len(known), delta)] if delta else [], [(index, tree, rollouts)])
        self._writer.event("quarantined", task=index, deaths=list(deaths))
        return Done(index, tree, rollouts)
