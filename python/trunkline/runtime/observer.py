"""Who observes a run from the controller: metrics, traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trunkline.runtime.job import Job
    from trunkline.runtime.snapshot import Snapshot
    from trunkline.runtime.wire import Batch, Done
    from trunkline.store.schema import TakenRow
    from trunkline.types import Task

__all__ = ["Observer"]


class Observer(Protocol):
    """Is told of what passes the controller, in its event loop: nothing here may wait or raise."""

    def begin(self, job: Job, tasks: Sequence[Task], taken: Mapping[int, TakenRow]) -> None:
        """A run begins.

        Args:
            job: What it does.
            tasks: Its tasks; others name them by their places.
            taken: What it took over of some of them.
        """
        ...

    def committed(self, seat: int, batch: Batch, seconds: float) -> None:
        """A batch of a worker is in the run file; the commit that it was in took so many seconds."""
        ...

    def completed(self, done: Done) -> None:
        """A task is over, and in the run file."""
        ...

    def look(self, snapshot: Snapshot) -> None:
        """A second has passed."""
        ...

    def end(self, snapshot: Snapshot) -> None:
        """The run is over."""
        ...
