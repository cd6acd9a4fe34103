"""Task queue, worker credits, assignment."""

from __future__ import annotations

import time
from collections import Counter
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import msgspec

from trunkline.controller.poison_tasks import DeathReport, PoisonTaskDetector
from trunkline.protocol.messages import AssignTasks, EarlierDeltas, ToWorker, write_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from trunkline.protocol.job import Refill
    from trunkline.store.schema import TakenRow
    from trunkline.store.writer import RunWriter
    from trunkline.types import Task


__all__ = ["TaskDispatcher", "TaskQueue", "WorkerRegistry"]


_WORK_BYTES = 8 * 1024 * 1024
"""About how many bytes of tasks one message carries."""


class TaskDispatcher:
    """Hands tasks to engines under their credits: first those that are suspected of a death, then the others in order.

    Args:
        tasks: All tasks.
        handout: Which of them is next.
        roster: The engines.
        writer: The run file, which has what there is of tasks that were begun.
        taken: What was taken over of tasks that an earlier run has begun.
        send: Takes a seat and a message for it.
        begun: Tasks that the run file has something of.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        handout: TaskQueue,
        roster: WorkerRegistry,
        writer: RunWriter,
        taken: Mapping[int, TakenRow],
        send: Callable[[int, ToWorker], None],
        begun: Iterable[int] = (),
    ) -> None:
        self._tasks = tasks
        self._handout = handout
        self._roster = roster
        self._writer = writer
        self._taken = taken
        self._send = send
        self._blame = PoisonTaskDetector()
        self._begun = set(begun)
        self._work: dict[int, list[tuple[int, bytes]]] = {}
        self._sizes: Counter[int] = Counter()

    def feed(self) -> None:
        """Hand out what can be, one at a time to the engine that takes most."""
        ward = self._suspects()
        while (seat := self._freest(ward)) is not None and (index := self._handout.take()) is not None:
            self._give(seat, index)
        work, self._work = self._work, {}
        self._sizes.clear()
        for seat, tasks in work.items():
            self._send(seat, AssignTasks(tasks))

    def passed(self, seat: int, index: int) -> None:
        """Note that a turn of a task, made by this engine, is in the run file."""
        self._blame.passed(seat, index)

    def done(self, seat: int, index: int) -> None:
        """Note that an engine has finished a task."""
        self._roster.done(seat, index)
        self._blame.done(seat, index)

    def died(self, seat: int, reason: str) -> DeathReport:
        """Note that an engine is gone: its tasks go on elsewhere from the run file, but for those that are guilty."""
        self._begun.update(self._roster.tasks(seat))
        self._roster.gone(seat)
        toll = self._blame.died(seat, reason)
        self._handout.put_back(toll.free)
        return toll

    def _suspects(self) -> int | None:
        """Hand out suspects; returns the engine that takes no other task, so that the next one can be tried there."""
        while (index := self._blame.next) is not None:
            seat = self._roster.freest(lambda seat, index=index: self._admits(seat, index))  # type: ignore[misc]
            if seat is None:
                return self._roster.quietest()
            self._give(seat, index)
        return None

    def _freest(self, ward: int | None) -> int | None:
        """The engine for a task that nothing is known of."""
        return self._roster.freest(lambda seat: seat != ward and self._admits(seat, -1))

    def _admits(self, seat: int, index: int) -> bool:
        return self._blame.admits(seat, self._roster.slots(seat), index)

    def _give(self, seat: int, index: int) -> None:
        self._send_earlier(seat, index)
        data = write_task(self._tasks[index])
        self._roster.take(seat, index)
        self._blame.take(seat, index)
        self._work.setdefault(seat, []).append((index, data))
        self._sizes[seat] += len(data)
        if self._sizes[seat] >= _WORK_BYTES:
            self._send(seat, AssignTasks(self._work.pop(seat)))
            self._sizes[seat] = 0

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
                self._send(seat, EarlierDeltas(index, part, taken))
                part, size = [], 0
            part.append(data)
            size += len(data)
        if part:
            self._send(seat, EarlierDeltas(index, part, taken))


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
        self._places: dict[int, _WorkerEntry] = {}
        self._gone: set[int] = set()

    def __iter__(self) -> Iterator[int]:
        """Yield the seats."""
        return iter(list(self._places))

    def __bool__(self) -> bool:
        """Whether any engine is alive."""
        return bool(self._places)

    @property
    def starting(self) -> dict[int, float]:
        """Engines that are not up yet, each with when it was started."""
        return {seat: place.since for seat, place in self._places.items() if not place.up}

    @property
    def ready(self) -> list[int]:
        """Engines that are up."""
        return [seat for seat, place in self._places.items() if place.up]

    @property
    def busy(self) -> bool:
        """Whether an engine has a task."""
        return any(place.tasks for place in self._places.values())

    def add(self, seat: int) -> None:
        """Note an engine that was started."""
        if seat not in self._places and seat not in self._gone:
            self._places[seat] = _WorkerEntry(time.monotonic())

    def came_up(self, seat: int, slots: int) -> None:
        """Note that an engine is up, and how many tasks it takes at a time."""
        self.add(seat)
        place = self._places[seat]
        place.up, place.least, place.slots = True, slots, slots

    def resize(self, seat: int, slots: int) -> None:
        """Note that an engine takes so many tasks at a time from now on, but no fewer than it said at first."""
        place = self._places[seat]
        place.slots = max(place.least, slots)

    def is_up(self, seat: int) -> bool:
        """Whether an engine is there and up."""
        place = self._places.get(seat)
        return place is not None and place.up

    def is_gone(self, seat: int) -> bool:
        """Whether there was such an engine, and is no more."""
        return seat in self._gone

    def tasks(self, seat: int) -> list[int]:
        """What an engine has taken on and not finished."""
        place = self._places.get(seat)
        return [] if place is None else sorted(place.tasks)

    def slots(self, seat: int) -> int:
        """How many tasks an engine takes at a time."""
        return self._places[seat].slots

    def freest(self, admits: Callable[[int], bool]) -> int | None:
        """The engine that takes the most more tasks, of those that are admitted; None if none takes any."""
        free = [(place.credits, -seat) for seat, place in self._places.items() if place.credits > 0 and admits(seat)]
        return -max(free)[1] if free else None

    def quietest(self) -> int | None:
        """The engine that has the fewest tasks, of those that are given any."""
        quiet = [(len(place.tasks), seat) for seat, place in self._places.items() if place.up and not place.retired]
        return min(quiet)[1] if quiet else None

    def take(self, seat: int, task: int) -> None:
        """Note that an engine was given a task."""
        self._places[seat].tasks.add(task)

    def done(self, seat: int, task: int) -> None:
        """Note that an engine has finished a task."""
        self._places[seat].tasks.discard(task)

    def retire(self, seat: int) -> bool:
        """Give an engine nothing any more; returns whether that is new."""
        place = self._places.get(seat)
        if place is None or place.retired:
            return False
        place.retired = True
        return True

    def idle(self) -> list[int]:
        """Engines that are given nothing any more and have nothing left."""
        return [seat for seat, place in self._places.items() if place.retired and not place.tasks]

    def gone(self, seat: int) -> None:
        """Strike an engine off."""
        self._places.pop(seat, None)
        self._gone.add(seat)
