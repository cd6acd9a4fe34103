"""The task queue, the workers with their credits, and the assignment of tasks."""

from __future__ import annotations

import time
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import msgspec

from trunkline.controller.component import Component, DeathReport
from trunkline.controller.poison_tasks import PoisonTaskDetector
from trunkline.protocol.messages import AssignTasks, EarlierDeltas, ToWorker, write_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trunkline.protocol.job import Refill
    from trunkline.protocol.messages import Batch
    from trunkline.store.schema import TakenRow
    from trunkline.store.writer import RunWriter
    from trunkline.types import Task


_WORK_BYTES = 8 * 1024 * 1024
"""About how many bytes of tasks one message carries."""


class TaskDispatcher(Component):
    """Assigns tasks to workers under their credits: suspected tasks first, then the others in order."""

    def __init__(
        self,
        tasks: Sequence[Task],
        task_queue: TaskQueue,
        registry: WorkerRegistry,
        writer: RunWriter,
        taken: Mapping[int, TakenRow],
        send: Callable[[int, ToWorker], None],
        begun: Iterable[int] = (),
    ) -> None:
        self._tasks = tasks
        self._task_queue = task_queue
        self._registry = registry
        self._writer = writer
        self._taken = taken
        self._send = send
        self._detector = PoisonTaskDetector()
        self._begun = set(begun)

    def feed(self) -> None:
        """Assign tasks one at a time, each to the worker that takes most."""
        avoided = self._suspects()
        free: dict[int, int] = {}
        room: dict[int, int] = {}
        given: dict[int, list[int]] = {}
        for worker_id, entry in sorted(self._registry.items()):
            most = min(entry.credits, self._detector.room(worker_id, entry.slots))
            if worker_id != avoided and most > 0:
                free[worker_id], room[worker_id], given[worker_id] = entry.credits, most, []
        while free and (index := self._task_queue.take()) is not None:
            worker_id = max(free, key=free.__getitem__)
            tasks = given[worker_id]
            tasks.append(index)
            free[worker_id] -= 1
            if len(tasks) == room[worker_id]:
                del free[worker_id]
        for worker_id, tasks in given.items():
            if tasks:
                self._give(worker_id, tasks)

    def on_commit(self, worker_id: int, batch: Batch, seconds: float) -> None:
        trial = self._detector.trial(worker_id)
        grown = [delta.task for delta in batch.deltas if delta.task in trial and (delta.turns or delta.rollouts)]
        self._detector.passed(worker_id, grown)
        done = [done.task for done in batch.done]
        self._registry[worker_id].tasks.difference_update(done)
        self._detector.done(worker_id, done)

    def died(self, worker_id: int, reason: str) -> DeathReport:
        """Put back the tasks of a dead worker, but for the guilty ones; they are continued from the run file."""
        self._begun.update(self._registry.tasks(worker_id))
        self._registry.strike(worker_id)
        report = self._detector.died(worker_id, reason)
        self._task_queue.put_back(report.free)
        return report

    def _suspects(self) -> int | None:
        """Assign suspects; returns the worker that gets no other task, so that it has room for the next one."""
        while (index := self._detector.next) is not None:
            worker_id = self._registry.freest(lambda worker_id, index=index: self._admits(worker_id, index))  # type: ignore[misc]
            if worker_id is None:
                return self._registry.quietest()
            self._give(worker_id, [index])
        return None

    def _admits(self, worker_id: int, index: int) -> bool:
        return self._detector.admits(worker_id, self._registry[worker_id].slots, index)

    def _give(self, worker_id: int, indices: Sequence[int]) -> None:
        self._registry[worker_id].tasks.update(indices)
        self._detector.take(worker_id, indices)
        work: list[tuple[int, bytes]] = []
        size = 0
        for index in indices:
            if index in self._begun or index in self._taken:
                self._send_earlier(worker_id, index)
            data = write_task(self._tasks[index])
            work.append((index, data))
            size += len(data)
            if size >= _WORK_BYTES:
                self._send(worker_id, AssignTasks(work))
                work, size = [], 0
        if work:
            self._send(worker_id, AssignTasks(work))

    def _send_earlier(self, worker_id: int, index: int) -> None:
        """Send the deltas of a task that was begun, in messages of a size that can be sent."""
        begun = self._taken.get(index)
        taken = 0 if begun is None else begun.deltas
        part: list[bytes] = []
        size = 0
        for data in self._writer.deltas(index):
            if part and size + len(data) > _WORK_BYTES:
                self._send(worker_id, EarlierDeltas(index, part, taken))
                part, size = [], 0
            part.append(data)
            size += len(data)
        if part:
            self._send(worker_id, EarlierDeltas(index, part, taken))


class TaskQueue:
    """Hands tasks out in their order.

    With a refill, kept groups and growing tasks never exceed the groups that are wanted. So the tasks handed out are
    the shortest prefix that has enough kept groups, for any number of workers and any order in which they finish.
    """

    def __init__(
        self,
        tasks: int,
        refill: Refill | None = None,
        *,
        finished: Iterable[int] = (),
        begun: Iterable[int] = (),
        kept: int = 0,
    ) -> None:
        self._back = sorted(begun)
        known = {*finished, *self._back}
        most = tasks if refill is None else refill.max_tasks
        # Last one first, so that the next is at the end.
        self._fresh = [index for index in range(most - 1, -1, -1) if index not in known]
        self._groups = refill.groups if refill else None
        self.growing = len(self._back)
        self.kept = kept

    @property
    def open(self) -> int:
        """Tasks that grow, and those that may still be handed out."""
        return self.growing + self.left

    @property
    def left(self) -> int:
        return 0 if self.full else len(self._fresh)

    @property
    def more(self) -> bool:
        """Whether a task that was never handed out is needed now."""
        return bool(self._fresh) and (self._groups is None or self.kept + self.growing < self._groups)

    @property
    def full(self) -> bool:
        return self._groups is not None and self.kept >= self._groups

    @property
    def short(self) -> bool:
        """Whether groups are missing that no task is left for."""
        return self._groups is not None and not self.open and not self.full

    def take(self) -> int | None:
        """Return the index of the next task, which grows from now on; None if none is there, or needed now."""
        if self._back:
            return heappop(self._back)
        if not self._fresh or (self._groups is not None and not self.more):
            return None
        self.growing += 1
        return self._fresh.pop()

    def put_back(self, indices: Iterable[int]) -> None:
        for index in indices:
            heappush(self._back, index)

    def done(self, tasks: int, *, kept: int) -> None:
        self.growing -= tasks
        self.kept += kept


class WorkerEntry(msgspec.Struct):
    """A worker, started at ``since``; takes ``slots`` tasks at a time, ``least`` at first, none once ``retired``."""

    since: float
    up: bool = False
    least: int = 0
    slots: int = 0
    tasks: set[int] = msgspec.field(default_factory=set)
    retired: bool = False

    @property
    def credits(self) -> int:
        return self.slots - len(self.tasks) if self.up and not self.retired else 0


class WorkerRegistry(dict[int, WorkerEntry]):
    """The workers of a run that are alive; ``gone`` are the others."""

    def __init__(self) -> None:
        super().__init__()
        self.gone: set[int] = set()

    @property
    def starting(self) -> dict[int, float]:
        """Workers that are not ready yet, each with when it was started."""
        return {worker_id: entry.since for worker_id, entry in self.items() if not entry.up}

    @property
    def ready(self) -> list[int]:
        return [worker_id for worker_id, entry in self.items() if entry.up]

    @property
    def busy(self) -> bool:
        return any(entry.tasks for entry in self.values())

    def add(self, worker_id: int) -> None:
        if worker_id not in self and worker_id not in self.gone:
            self[worker_id] = WorkerEntry(time.monotonic())

    def came_up(self, worker_id: int, slots: int) -> None:
        self.add(worker_id)
        entry = self[worker_id]
        entry.up, entry.least, entry.slots = True, slots, slots

    def resize(self, worker_id: int, slots: int) -> None:
        """Let a worker take so many tasks at a time from now on, but no fewer than at first."""
        entry = self[worker_id]
        entry.slots = max(entry.least, slots)

    def tasks(self, worker_id: int) -> list[int]:
        entry = self.get(worker_id)
        return [] if entry is None else sorted(entry.tasks)

    def freest(self, admits: Callable[[int], bool]) -> int | None:
        """The admitted worker that takes the most more tasks; None if none takes any."""
        found, most = None, 0
        for worker_id, entry in self.items():
            free = entry.credits
            if free > most and admits(worker_id):
                found, most = worker_id, free
        return found

    def quietest(self) -> int | None:
        """The worker with the fewest tasks, of those that are not retired."""
        quiet = [(len(entry.tasks), worker_id) for worker_id, entry in self.items() if entry.up and not entry.retired]
        return min(quiet)[1] if quiet else None

    def retire(self, worker_id: int) -> bool:
        entry = self.get(worker_id)
        if entry is None or entry.retired:
            return False
        entry.retired = True
        return True

    def idle(self) -> list[int]:
        return [worker_id for worker_id, entry in self.items() if entry.retired and not entry.tasks]

    def strike(self, worker_id: int) -> None:
        self.pop(worker_id, None)
        self.gone.add(worker_id)
