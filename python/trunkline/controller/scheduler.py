"""Task queue, worker credits, assignment."""

from __future__ import annotations

import time
from collections import Counter
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import msgspec

from trunkline.controller.component import Component, DeathReport
from trunkline.controller.poison_tasks import PoisonTaskDetector
from trunkline.protocol.messages import AssignTasks, EarlierDeltas, ToWorker, write_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from trunkline.protocol.job import Refill
    from trunkline.protocol.messages import Batch
    from trunkline.store.schema import TakenRow
    from trunkline.store.writer import RunWriter
    from trunkline.types import Task


__all__ = ["TaskDispatcher", "TaskQueue", "WorkerRegistry"]


_WORK_BYTES = 8 * 1024 * 1024
"""About how many bytes of tasks one message carries."""


class TaskDispatcher(Component):
    """Hands tasks to engines under their credits: first those that are suspected of a death, then the others in order.

    Args:
        tasks: All tasks.
        task_queue: Which of them is next.
        registry: The engines.
        writer: The run file, which has what there is of tasks that were begun.
        taken: What was taken over of tasks that an earlier run has begun.
        send: Takes a seat and a message for it.
        begun: Tasks that the run file has something of.
    """

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
        self._work: dict[int, list[tuple[int, bytes]]] = {}
        self._sizes: Counter[int] = Counter()

    def feed(self) -> None:
        """Hand out what can be, one at a time to the engine that takes most."""
        avoided = self._suspects()
        while (worker_id := self._freest(avoided)) is not None and (index := self._task_queue.take()) is not None:
            self._give(worker_id, index)
        work, self._work = self._work, {}
        self._sizes.clear()
        for worker_id, tasks in work.items():
            self._send(worker_id, AssignTasks(tasks))

    def on_commit(self, worker_id: int, batch: Batch, seconds: float) -> None:
        for delta in batch.deltas:
            if delta.turns or delta.rollouts:
                self._detector.passed(worker_id, delta.task)
        for done in batch.done:
            self._registry.done(worker_id, done.task)
            self._detector.done(worker_id, done.task)

    def died(self, worker_id: int, reason: str) -> DeathReport:
        """Note that an engine is gone: its tasks go on elsewhere from the run file, but for those that are guilty."""
        self._begun.update(self._registry.tasks(worker_id))
        self._registry.gone(worker_id)
        report = self._detector.died(worker_id, reason)
        self._task_queue.put_back(report.free)
        return report

    def _suspects(self) -> int | None:
        """Hand out suspects; returns the engine that takes no other task, so that the next one can be tried there."""
        while (index := self._detector.next) is not None:
            worker_id = self._registry.freest(lambda worker_id, index=index: self._admits(worker_id, index))  # type: ignore[misc]
            if worker_id is None:
                return self._registry.quietest()
            self._give(worker_id, index)
        return None

    def _freest(self, avoided: int | None) -> int | None:
        """The engine for a task that nothing is known of."""
        return self._registry.freest(lambda worker_id: worker_id != avoided and self._admits(worker_id, -1))

    def _admits(self, worker_id: int, index: int) -> bool:
        return self._detector.admits(worker_id, self._registry.slots(worker_id), index)

    def _give(self, worker_id: int, index: int) -> None:
        self._send_earlier(worker_id, index)
        data = write_task(self._tasks[index])
        self._registry.take(worker_id, index)
        self._detector.take(worker_id, index)
        self._work.setdefault(worker_id, []).append((index, data))
        self._sizes[worker_id] += len(data)
        if self._sizes[worker_id] >= _WORK_BYTES:
            self._send(worker_id, AssignTasks(self._work.pop(worker_id)))
            self._sizes[worker_id] = 0

    def _send_earlier(self, worker_id: int, index: int) -> None:
        """Send what there is of a task that was begun, in messages of a size that can be sent."""
        begun = self._taken.get(index)
        if begun is None and index not in self._begun:
            return
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

    With a refill, groups that were kept and tasks that grow never exceed the groups that are wanted. So a task is
    handed out only if those before it cannot be enough: what is handed out is the shortest beginning of the tasks that
    has enough kept groups, for any number of workers and any order in which they finish.

    Args:
        tasks: Tasks of the run.
        refill: How many groups are wanted of them; all tasks are handed out when None.
        finished: Tasks that are done already.
        begun: Tasks that were handed out before and are not done: they come first.
        kept: Groups of finished tasks that were kept.
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
        self._growing = len(self._back)
        self.kept = kept

    @property
    def open(self) -> int:
        """Tasks that grow, and those that may still be handed out."""
        return self._growing + self.left

    @property
    def growing(self) -> int:
        """Tasks that were handed out and have not ended."""
        return self._growing

    @property
    def left(self) -> int:
        """Tasks that may still be handed out."""
        return 0 if self.full else len(self._fresh)

    @property
    def more(self) -> bool:
        """Whether a task that was never handed out is needed now."""
        return bool(self._fresh) and (self._groups is None or self.kept + self._growing < self._groups)

    @property
    def full(self) -> bool:
        """Whether as many groups were kept as are wanted."""
        return self._groups is not None and self.kept >= self._groups

    @property
    def short(self) -> bool:
        """Whether groups are missing that no task is left for."""
        return self._groups is not None and not self.open and not self.full

    def take(self) -> int | None:
        """Return the index of the next task, which grows from now on; None if there is none, or none is needed now."""
        if self._back:
            return heappop(self._back)
        if not self.more:
            return None
        self._growing += 1
        return self._fresh.pop()

    def put_back(self, indices: Iterable[int]) -> None:
        """Take back tasks that were handed out and go on elsewhere; they are handed out again before all others."""
        for index in indices:
            heappush(self._back, index)

    def done(self, *, kept: bool) -> None:
        """Note that a task has ended.

        Args:
            kept: Whether its group is one to train on.
        """
        self._growing -= 1
        self.kept += kept


class _WorkerEntry(msgspec.Struct):
    """One engine.

    Attributes:
        since: When it was started, in seconds of the monotonic clock.
        up: Whether it has said that it is ready.
        least: How many tasks it takes at a time, whatever it holds.
        slots: How many tasks it takes at a time now.
        tasks: What it has taken on and not finished.
        retired: Whether it is given nothing any more.
    """

    since: float
    up: bool = False
    least: int = 0
    slots: int = 0
    tasks: set[int] = msgspec.field(default_factory=set)
    retired: bool = False

    @property
    def credits(self) -> int:
        """How many more tasks it takes."""
        return self.slots - len(self.tasks) if self.up and not self.retired else 0


class WorkerRegistry:
    """The engines of a run that are alive, by their seats."""

    def __init__(self) -> None:
        self._entries: dict[int, _WorkerEntry] = {}
        self._gone: set[int] = set()

    def __iter__(self) -> Iterator[int]:
        """Yield the seats."""
        return iter(list(self._entries))

    def __bool__(self) -> bool:
        """Whether any engine is alive."""
        return bool(self._entries)

    @property
    def starting(self) -> dict[int, float]:
        """Engines that are not up yet, each with when it was started."""
        return {worker_id: place.since for worker_id, place in self._entries.items() if not place.up}

    @property
    def ready(self) -> list[int]:
        """Engines that are up."""
        return [worker_id for worker_id, place in self._entries.items() if place.up]

    @property
    def busy(self) -> bool:
        """Whether an engine has a task."""
        return any(place.tasks for place in self._entries.values())

    def add(self, worker_id: int) -> None:
        """Note an engine that was started."""
        if worker_id not in self._entries and worker_id not in self._gone:
            self._entries[worker_id] = _WorkerEntry(time.monotonic())

    def came_up(self, worker_id: int, slots: int) -> None:
        """Note that an engine is up, and how many tasks it takes at a time."""
        self.add(worker_id)
        place = self._entries[worker_id]
        place.up, place.least, place.slots = True, slots, slots

    def resize(self, worker_id: int, slots: int) -> None:
        """Note that an engine takes so many tasks at a time from now on, but no fewer than it said at first."""
        place = self._entries[worker_id]
        place.slots = max(place.least, slots)

    def is_up(self, worker_id: int) -> bool:
        """Whether an engine is there and up."""
        place = self._entries.get(worker_id)
        return place is not None and place.up

    def is_gone(self, worker_id: int) -> bool:
        """Whether there was such an engine, and is no more."""
        return worker_id in self._gone

    def tasks(self, worker_id: int) -> list[int]:
        """What an engine has taken on and not finished."""
        place = self._entries.get(worker_id)
        return [] if place is None else sorted(place.tasks)

    def slots(self, worker_id: int) -> int:
        """How many tasks an engine takes at a time."""
        return self._entries[worker_id].slots

    def freest(self, admits: Callable[[int], bool]) -> int | None:
        """The engine that takes the most more tasks, of those that are admitted; None if none takes any."""
        free = [
            (place.credits, -worker_id)
            for worker_id, place in self._entries.items()
            if place.credits > 0 and admits(worker_id)
        ]
        return -max(free)[1] if free else None

    def quietest(self) -> int | None:
        """The engine that has the fewest tasks, of those that are given any."""
        quiet = [
            (len(place.tasks), worker_id)
            for worker_id, place in self._entries.items()
            if place.up and not place.retired
        ]
        return min(quiet)[1] if quiet else None

    def take(self, worker_id: int, task: int) -> None:
        """Note that an engine was given a task."""
        self._entries[worker_id].tasks.add(task)

    def done(self, worker_id: int, task: int) -> None:
        """Note that an engine has finished a task."""
        self._entries[worker_id].tasks.discard(task)

    def retire(self, worker_id: int) -> bool:
        """Give an engine nothing any more; returns whether that is new."""
        place = self._entries.get(worker_id)
        if place is None or place.retired:
            return False
        place.retired = True
        return True

    def idle(self) -> list[int]:
        """Engines that are given nothing any more and have nothing left."""
        return [worker_id for worker_id, place in self._entries.items() if place.retired and not place.tasks]

    def gone(self, worker_id: int) -> None:
        """Strike an engine off."""
        self._entries.pop(worker_id, None)
        self._gone.add(worker_id)
