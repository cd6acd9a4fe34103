"""Dispatch: which task goes to which engine."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trunkline.runtime.blame import Blame, Toll
from trunkline.runtime.wire import Earlier, ToWorker, Work, write_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trunkline.runtime.handout import Handout
    from trunkline.runtime.roster import Roster
    from trunkline.store.schema import TakenRow
    from trunkline.store.writer import RunWriter
    from trunkline.types import Task

__all__ = ["Dispatch"]

_WORK_BYTES = 8 * 1024 * 1024
"""About how many bytes of tasks one message carries."""


class Dispatch:
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
        handout: Handout,
        roster: Roster,
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
        self._blame = Blame()
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
            self._send(seat, Work(tasks))

    def passed(self, seat: int, index: int) -> None:
        """Note that a turn of a task, made by this engine, is in the run file."""
        self._blame.passed(seat, index)

    def done(self, seat: int, index: int) -> None:
        """Note that an engine has finished a task."""
        self._roster.done(seat, index)
        self._blame.done(seat, index)

    def died(self, seat: int, reason: str) -> Toll:
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
            self._send(seat, Work(self._work.pop(seat)))
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
                self._send(seat, Earlier(index, part, taken))
                part, size = [], 0
            part.append(data)
            size += len(data)
        if part:
            self._send(seat, Earlier(index, part, taken))
