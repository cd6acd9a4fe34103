"""The audience of a run: whoever watches it, counts it or traces it. Nobody there is none of the run's business."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from trunkline.runtime.stall import Stalls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trunkline.runtime.job import Job
    from trunkline.runtime.observer import Observer
    from trunkline.runtime.snapshot import Snapshot
    from trunkline.runtime.wire import Batch, Done
    from trunkline.store.schema import TakenRow
    from trunkline.types import Task

__all__ = ["Audience"]


class Audience:
    """Shows a run to those who want to see it; see :class:`~trunkline.runtime.observer.Observer`.

    Args:
        snapshot: The state of the run, which its times are written into.
        watch: Called with it whenever it has changed.
        observers: Who is told of what passes.
    """

    def __init__(
        self, snapshot: Snapshot, watch: Callable[[Snapshot], None] | None, observers: Sequence[Observer]
    ) -> None:
        self._snapshot = snapshot
        self._watch = watch
        self._observers = observers
        self._stalls = Stalls()
        self._began = self._grown = time.monotonic()

    def begin(self, job: Job, tasks: Sequence[Task], taken: Mapping[int, TakenRow]) -> None:
        """The run begins."""
        for observer in self._observers:
            observer.begin(job, tasks, taken)

    def grew(self) -> None:
        """Something got into the run file."""
        self._grown = time.monotonic()

    def committed(self, seat: int, batch: Batch, seconds: float) -> None:
        """A batch is in the run file."""
        for observer in self._observers:
            observer.committed(seat, batch, seconds)

    def completed(self, done: Done) -> None:
        """A task is over."""
        for observer in self._observers:
            observer.completed(done)

    def look(self) -> None:
        """A second has passed."""
        for observer in self._observers:
            observer.look(self._snapshot)

    def show(self, silent: Mapping[int, float]) -> None:
        """Something has changed, or a second has passed; workers that are silent are given with their seconds."""
        shot, now = self._snapshot, time.monotonic()
        shot.seconds, shot.quiet, shot.silent = now - self._began, now - self._grown, dict(silent)
        self._stalls.look(shot)
        if self._watch is not None:
            self._watch(shot)

    def end(self) -> None:
        """The run is over."""
        for observer in self._observers:
            observer.end(self._snapshot)
