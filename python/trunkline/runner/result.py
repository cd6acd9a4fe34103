"""The result of a run, read from its file on demand."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trunkline._internal.registry import load_extra
from trunkline._internal.text import duration
from trunkline.errors import TrunklineError
from trunkline.store.export.tables import to_arrow
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


def open(path: str | Path) -> Run:  # noqa: A001 - trunkline.open
    """Open the run of a file: the object that ``trunkline.run`` returned for it.

    The run may still be running; its ``state`` is then ``running``.

    Args:
        path: The run file.

    Raises:
        RunFileError: There is no file, or it is not a run.
        DamagedRunFile: Its log is missing or damaged.
    """
    with RunReader.open(path) as reader:
        return Run(reader.path, reader.meta.get("state", "unknown"))


class Run:
    """A run: its file, read on demand. Trees are rebuilt one at a time, so memory stays that of one tree.

    Args:
        path: The run file.
        state: ``done``, ``exhausted`` (tasks ran out before enough groups were kept), ``budget`` or ``deadline`` (tasks
            were not begun, or tries were cut, for want of budget or time), ``interrupted``, or ``running``.
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
        """Return the tree of one task by its id; raises ``UsageError`` for an unknown id."""
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

    def to_arrow(self, level: str = "rollout") -> Any:
        """Return a ``pyarrow.Table`` (extra ``arrow``).

        ``docs/reference/exports.md`` lists the columns. The table is in memory as a whole, unlike with
        ``trunkline.export``, which writes any run with the memory of one batch.

        Args:
            level: What a row is: ``task``, ``rollout``, ``turn`` (a model turn) or ``call`` (a request).

        Raises:
            ConfigError: There is no such level, or pyarrow is missing.
            UsageError: The run is scored again in part.
        """
        return self._arrow(level, "arrow", "to_arrow")

    def to_pandas(self, level: str = "rollout") -> Any:
        """Return a ``pandas.DataFrame`` (extra ``pandas``): ``to_arrow`` as pandas converts it."""
        load_extra("pandas", "pandas", "to_pandas")
        return self._arrow(level, "pandas", "to_pandas").to_pandas()

    def to_polars(self, level: str = "rollout") -> Any:
        """Return a ``polars.DataFrame`` (extra ``polars``): ``to_arrow`` as polars converts it."""
        polars = load_extra("polars", "polars", "to_polars")
        return polars.from_arrow(self._arrow(level, "polars", "to_polars"))

    def _arrow(self, level: str, extra: str, what: str) -> Any:
        with RunReader.open(self.path) as reader:
            return to_arrow(reader, level, extra, what)

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
