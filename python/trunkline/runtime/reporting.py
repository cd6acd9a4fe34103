"""Reports for a run that is over: written tree by tree, each into the run file as soon as it is there."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline.score.reports.extract import extract_tree
from trunkline.score.reports.outcome import Reported
from trunkline.store.amend import Amender

if TYPE_CHECKING:
    from pathlib import Path

    from trunkline.score.reports.reporter import Reporter
    from trunkline.tree.tree import Tree

__all__ = ["REPORTS", "extract_run", "report_run"]

REPORTS: Final = "reports"
"""Where a run file's meta keeps who wrote reports into it, and what they cost: the run's own figures do not have it."""

_TOGETHER: Final = 8
"""Trees that are reported on at once, so that one that is nearly done holds nobody up."""


async def report_run(path: str | Path, reporter: Reporter) -> Reported:
    """Write reports on all trees of a run that is over, with the help of a model.

    What is written stays in the file, however this ends, and is not asked for again.

    Args:
        path: The run file.
        reporter: Who writes them; closing it is up to who made it.

    Returns:
        What was written in all trees together; nodes of problems are those of their own trees.

    Raises:
        RunFileError: It is no run that can be changed here, or another process writes it.
        EndpointError: The endpoint serves nobody.
        InfrastructureError: The file cannot be written.
    """
    with Amender.open(path) as run:
        record = _Record(run, reporter.model)
        waiting = iter(run.task_ids())

        async def write() -> None:
            for name in waiting:
                tree = run.tree(name)
                work = reporter.work_on(tree)
                try:
                    await work.execute()
                finally:
                    # What came before a failure or an interruption was paid for, too.
                    record.commit(name, tree, work.reported)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_TOGETHER):
                    group.create_task(write())
        except BaseExceptionGroup as problems:
            raise problems.exceptions[0] from None
        return record.total


def extract_run(path: str | Path, *, limit: int, again: bool = False) -> Reported:
    """Write an extracted report on every leaf of a run that is over; no model is asked.

    Args:
        path: The run file.
        limit: Most characters of a report.
        again: Whether a leaf that has a report gets another one.

    Raises:
        RunFileError: It is no run that can be changed here, or another process writes it.
        ConfigError: The limit is too small.
        InfrastructureError: The file cannot be written.
    """
    with Amender.open(path) as run:
        record = _Record(run, None)
        for name in run.task_ids():
            tree = run.tree(name)
            record.commit(name, tree, extract_tree(tree, limit=limit, again=again))
        return record.total


class _Record:
    """Who writes into a run file and what that has cost so far: it is written with each tree, and survives any end.

    Args:
        run: The open file.
        model: The model's name; None where none is asked.
    """

    def __init__(self, run: Amender, model: str | None) -> None:
        self.total = Reported()
        self._run = run
        self._model = model
        try:
            self._before = msgspec.json.decode(run.reader.meta.get(REPORTS, "[]"), type=list[Any])
        except msgspec.MsgspecError:
            self._before = []

    def commit(self, name: str, tree: Tree, found: Reported) -> None:
        """Write a tree, and with it what its reports cost."""
        self.total += found
        facts: dict[str, Any] = {}
        if self.total.written or self.total.usage.calls:
            facts[REPORTS] = [*self._before, self._entry()]
        self._run.commit(name, tree, **facts)

    def _entry(self) -> dict[str, Any]:
        usage = {name: count for name, count in msgspec.structs.asdict(self.total.usage).items() if count}
        written, failed = self.total.written, self.total.failed
        return {"model": self._model, "written": written, "failed": failed, "usage": usage, "at": time.time()}
