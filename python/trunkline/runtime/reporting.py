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
        total = Reported()
        waiting = iter(run.task_ids())

        async def work() -> None:
            nonlocal total
            for name in waiting:
                tree = run.tree(name)
                try:
                    found = await reporter.write(tree)
                    # Not in one step: what others added while this one waited must count.
                    total += found
                finally:
                    # What came before a failure or an interruption was paid for, too.
                    run.commit(name, tree)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_TOGETHER):
                    group.create_task(work())
        except BaseExceptionGroup as problems:
            raise problems.exceptions[0] from None
        _note(run, reporter.model, total)
        return total


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
        total = Reported()
        for name in run.task_ids():
            tree = run.tree(name)
            total += extract_tree(tree, limit=limit, again=again)
            run.commit(name, tree)
        _note(run, None, total)
        return total


def _note(run: Amender, model: str | None, total: Reported) -> None:
    """Record who wrote, unless nothing was."""
    if not total.written:
        return
    try:
        listed = msgspec.json.decode(run.reader.meta.get(REPORTS, "[]"), type=list[Any])
    except msgspec.MsgspecError:
        listed = []
    usage = {name: count for name, count in msgspec.structs.asdict(total.usage).items() if count}
    one = {"model": model, "written": total.written, "failed": total.failed, "usage": usage, "at": time.time()}
    run.note(**{REPORTS: [*listed, one]})
