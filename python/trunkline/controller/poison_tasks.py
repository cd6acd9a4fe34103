"""Finds tasks that kill their workers, and fails them."""

from __future__ import annotations

import logging
from collections import Counter
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import msgspec

from trunkline._internal.text import quoted
from trunkline.controller.component import Component, DeathReport
from trunkline.errors import WorkerError
from trunkline.protocol.messages import Done
from trunkline.rollout.moves import begin
from trunkline.rollout.side_effects import lose
from trunkline.scoring.filters.base import unjudged
from trunkline.store.derive import rebuilt, rows
from trunkline.tree.records import Failure
from trunkline.tree.views import Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from trunkline.controller.component import Death
    from trunkline.protocol.job import Job
    from trunkline.protocol.messages import Batch
    from trunkline.store.writer import RunWriter
    from trunkline.types import Task


_NARROW = 4
"""Each death divides the number of tasks that may be suspected together by this."""

_KILLS = 2
"""Workers that a task may kill."""

_STRIDE = 0x9E3779B1
"""Separates neighbours, modulo 2**32."""


class _Suspicion(msgspec.Struct):
    """Workers in a row that died before a task got anywhere, and how those ended that it had for itself."""

    deaths: int = 0
    kills: list[str] = msgspec.field(default_factory=list)


class _WorkerTasks(msgspec.Struct):
    """A worker's tasks: on trial are those without a committed turn, ``deaths`` counts these by their deaths."""

    tasks: set[int] = msgspec.field(default_factory=set)
    trial: set[int] = msgspec.field(default_factory=set)
    deaths: Counter[int] = msgspec.field(default_factory=Counter)
    alone: bool = False


class PoisonTaskDetector:
    """Finds the tasks that kill their workers by group testing.

    A task is on trial at a worker until a turn of it there is in the run file. When the worker dies, the tasks on trial
    are suspected, since one that kills does so again before it gets any further. Suspects share their trials with ever
    fewer others, and at last have a worker for themselves; a death there is their kill, and after two of them they are
    guilty. A turn clears a suspect. So workers that die of something else make no task guilty, but for tasks that were
    alone and got nowhere each time.
    """

    def __init__(self) -> None:
        self._records: dict[int, _Suspicion] = {}
        self._workers: dict[int, _WorkerTasks] = {}
        self._waiting: list[tuple[int, int, int]] = []

    @property
    def next(self) -> int | None:
        """The waiting suspect with most deaths; among equals, neighbours are tried apart."""
        return self._waiting[0][2] if self._waiting else None

    def admits(self, worker_id: int, slots: int, task: int) -> bool:
        """Whether a task may be tried beside those of a worker that takes so many at a time."""
        worker = self._workers.get(worker_id)
        if worker is None or not worker.tasks:
            return True
        deaths = self._deaths(task)
        if _company(deaths, slots) == 1:
            return False
        return len(worker.trial) < _company(max((deaths, *worker.deaths)), slots)

    def trial(self, worker_id: int) -> Collection[int]:
        """The tasks that are on trial at a worker."""
        worker = self._workers.get(worker_id)
        return () if worker is None else worker.trial

    def room(self, worker_id: int, slots: int) -> int:
        """How many more tasks without deaths may be tried at a worker that takes so many at a time."""
        worker = self._workers.get(worker_id)
        if worker is None or not worker.tasks:
            return slots
        return 0 if slots == 1 else max(0, _company(max(worker.deaths, default=0), slots) - len(worker.trial))

    def take(self, worker_id: int, tasks: Collection[int]) -> None:
        """Note that a worker is given tasks: several of them without deaths, or one."""
        if worker_id not in self._workers:
            self._workers[worker_id] = _WorkerTasks()
        worker = self._workers[worker_id]
        worker.alone = not worker.tasks and len(tasks) == 1
        worker.tasks.update(tasks)
        worker.trial.update(tasks)
        worker.deaths += self._by_deaths(tasks)
        if self._waiting and self.next in tasks:
            heappop(self._waiting)

    def passed(self, worker_id: int, tasks: Iterable[int]) -> None:
        """Note that turns of some tasks are in the run file, which clears these."""
        worker = self._workers.get(worker_id)
        if worker is not None and (cleared := worker.trial.intersection(tasks)):
            worker.trial -= cleared
            worker.deaths -= self._by_deaths(cleared)
            for task in cleared & self._records.keys():
                del self._records[task]

    def done(self, worker_id: int, tasks: Collection[int]) -> None:
        """Note that some tasks are over."""
        self.passed(worker_id, tasks)
        if tasks:
            self._workers[worker_id].tasks.difference_update(tasks)

    def died(self, worker_id: int, reason: str) -> DeathReport:
        """Note that a worker died with the tasks it had, and suspect them."""
        worker = self._workers.pop(worker_id, _WorkerTasks())
        known = bool(worker.trial) and all(task in self._records for task in worker.trial)
        guilty = {}
        for task in sorted(worker.trial):
            record = self._records.setdefault(task, _Suspicion())
            record.deaths += 1
            record.kills += [reason] if worker.alone else []
            if len(record.kills) >= _KILLS:
                guilty[task] = record.kills
            else:
                heappush(self._waiting, (-record.deaths, task * _STRIDE % 2**32, task))
        return DeathReport(sorted(worker.tasks - worker.trial), guilty, known)

    def _by_deaths(self, tasks: Collection[int]) -> Counter[int]:
        if not self._records:
            return Counter({0: len(tasks)})
        return Counter([self._records[task].deaths if task in self._records else 0 for task in tasks])

    def _deaths(self, task: int) -> int:
        return self._records[task].deaths if task in self._records else 0


def _company(deaths: int, slots: int) -> int:
    """How many tasks may be on trial with one of so many deaths, itself included."""
    return slots if not deaths else max(1, slots // _NARROW**deaths)


logger = logging.getLogger(__name__)

_MOST = 5
"""Tasks that may be found guilty in a row without a commit in between: with more, the tasks are not the cause."""


class Quarantine(Component):
    """Holds tasks that killed their workers until another task got on, so that a tool broken for all fails none."""

    def __init__(self, job: Job, tasks: Sequence[Task], writer: RunWriter, ended: Callable[[Done], None]) -> None:
        self._job = job
        self._tasks = tasks
        self._writer = writer
        self._ended = ended
        self._held: dict[int, list[str]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def on_commit(self, worker_id: int, batch: Batch, seconds: float) -> None:
        if batch.progressed:
            self.settle()

    def on_lost(self, worker_id: int, death: Death) -> None:
        if not death.expected():
            for task, deaths in death.report.guilty.items():
                self.add(task, deaths)

    def add(self, index: int, deaths: Sequence[str]) -> None:
        """Hold a task, given the ends of its own workers; WorkerError if workers die of every task."""
        self._held[index] = list(deaths)
        if len(self._held) >= _MOST:
            raise WorkerError(
                f"the last {len(self._held)} tasks that were tried alone each killed their workers and nothing was "
                f"made in between ({deaths[-1]}): something that they all use is broken"
            )

    def settle(self) -> None:
        held, self._held = self._held, {}
        for index, deaths in held.items():
            self._ended(self._lose(index, deaths))

    def _lose(self, index: int, deaths: Sequence[str]) -> Done:
        """Close a task's rollouts with a typed error, as one more delta of its tree."""
        task, known = self._tasks[index], self._writer.deltas(index)
        core = rebuilt(known)
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
