"""The result of a run, read from its file on demand."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from trunkline._internal.text import duration
from trunkline.errors import TrunklineError
from trunkline.store.reader import RunReader
from trunkline.tree.html import interval, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trunkline.store.schema import CallRow
    from trunkline.store.stats.calls import Spending
    from trunkline.store.stats.profile import Profile
    from trunkline.store.stats.summary import Summary
    from trunkline.store.stats.tasks import TaskSummary
    from trunkline.tree.views import Tree


class TemporaryRunDir:
    """A temporary folder that is removed with the last object that holds it, or with the process."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="trunkline-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class Run:
    """A run that is over: its file, read on demand. Trees are rebuilt one at a time, so memory stays that of one tree.

    Args:
        path: The run file.
        state: ``done``, ``exhausted`` (tasks ran out before enough groups were kept), ``budget`` or ``deadline`` (tasks
            were not begun, or tries were cut, for want of budget or time) or ``interrupted``.
        folder: Where the file is, when it has no other home; the file goes with this object.
    """

    def __init__(self, path: Path, state: str, folder: TemporaryRunDir | None = None) -> None:
        self.path = path
        self.state = state
        self._folder = folder

    @property
    def temporary(self) -> bool:
        """Whether the run file goes with this object."""
        return self._folder is not None

    def __iter__(self) -> Iterator[Tree]:
        """Yield the tree of each task, in the order of the tasks; refused while the run is scored again in part."""
        with RunReader.open(self.path) as reader:
            yield from reader.trees()

    def __len__(self) -> int:
        """How many tasks are finished: so many trees the iteration yields."""
        with RunReader.open(self.path) as reader:
            return reader.finished

    def __bool__(self) -> bool:
        """A run is something even before a task is finished."""
        return True

    def __contains__(self, task_id: object) -> bool:
        """Whether the run has a task of that id, finished or not."""
        with RunReader.open(self.path) as reader:
            return task_id in reader.task_ids()

    def __getitem__(self, task_id: str) -> Tree:
        """Return the tree of one task by its id; raises :class:`~trunkline.errors.UsageError` if there is none."""
        with RunReader.open(self.path) as reader:
            return reader.tree(task_id)

    def calls(self) -> Iterator[tuple[str, CallRow]]:
        """Yield each request that was answered with the id of its task, in the order in which they were written."""
        with RunReader.open(self.path) as reader:
            names = reader.task_ids()
            yield from ((names[number], call) for number, call in reader.calls())

    def costs(self) -> dict[str, Spending]:
        """Return what each task cost, by its id, for a run that was given a price; empty for others."""
        with RunReader.open(self.path) as reader:
            return reader.costs()

    def summary(self) -> Summary:
        """Recompute the run's figures from its rows."""
        with RunReader.open(self.path) as reader:
            return reader.summary()

    def profile(self) -> Profile:
        """Return where the time went: by agent, by tool, and the slowest rollouts."""
        with RunReader.open(self.path) as reader:
            return reader.profile()

    def by_task(self) -> list[TaskSummary]:
        """Recompute the figures of each finished task from its rows."""
        with RunReader.open(self.path) as reader:
            return reader.by_task()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.state})"

    def _repr_html_(self) -> str:
        """What a notebook shows: the run's most important figures."""
        try:
            found = self.summary()
        except TrunklineError as error:
            return table(repr(self), [("unreadable", str(error))])
        estimates = {
            "accuracy of one rollout": found.accuracy,
            f"best of {found.tries}": found.best_of_n,
            f"majority of {found.tries}": found.majority,
        }
        rows = [("tasks", f"{found.finished:,} of {found.tasks:,} finished"), ("rollouts", f"{found.rollouts:,}")]
        rows += [
            (name, interval(one.value, one.low, one.high))
            for name, one in estimates.items()
            if one is not None and (found.tries > 1 or name.startswith("accuracy"))
        ]
        rows += [("ended", ", ".join(f"{count:,} {word}" for word, count in found.terminations.items()))]
        rows += [("broke", f"{count:,}: {message}") for message, count in found.failures]
        rows += [("tokens", f"{found.prompt:,} in, {found.usage.generated:,} out"), ("time", duration(found.seconds))]
        return table(repr(self), rows)
