"""The figures of each task of a run, as a table for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trunkline.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.store.tasks import TaskSummary

__all__ = ["tasks_table"]

_NAME: Final = 24  # cells of a task's id that are shown
_HEAD: Final = (
    ("task", ""),
    ("", "rollouts"),
    ("", "scored"),
    ("", "reward"),
    ("tokens", "flat"),
    ("", "tree"),
    ("generated", "flat"),
    ("", "tree"),
    ("", "reuse"),
    ("prompt", "cached"),
    ("", "uncached"),
    ("turns", "chains"),
    ("", "made"),
    ("different", "actions"),
    ("", "answers"),
    ("", "effective"),
)
_NOTES: Final = """\
flat: as if every rollout were a chain of its own; tree: shared parts once; ~ where it is server usage, not token ids
chains: turns on all paths; made: turns that were asked for; cached, uncached: prompt tokens of these turns
made, cached and uncached are of this run alone; of draws in one request all but the first count their prompt as cached
effective: independent tries that would say as much as the scored ones; - where that is not known"""


def tasks_table(tasks: Sequence[TaskSummary]) -> str:
    """The figures of each task, as plain text, one line a task.

    Args:
        tasks: What :meth:`trunkline.store.reader.RunReader.by_task` returns.
    """
    if not tasks:
        return "no task is finished"
    rows = [[top for top, _ in _HEAD], [under for _, under in _HEAD], *map(_row, tasks)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = []
    for name, *figures in rows:
        padded = [f"{figure:>{width}}" for figure, width in zip(figures, widths[1:], strict=True)]
        lines.append("  ".join([f"{name:<{widths[0]}}", *padded]).rstrip())
    return "\n".join([*lines, "", _NOTES])


def _row(task: TaskSummary) -> list[str]:
    tokens, usage = task.tokens, task.usage
    mark = "" if tokens.exact else "~"
    return [
        printable(task.task, _NAME),
        f"{task.rollouts:,}",
        f"{task.scored:,}",
        "-" if task.reward is None else f"{task.reward:.3f}",
        f"{mark}{tokens.flat:,}",
        f"{mark}{tokens.tree:,}",
        f"{mark}{tokens.flat_generated:,}",
        f"{mark}{tokens.tree_generated:,}",
        f"{tokens.reuse:.1%}".replace("%", " %"),
        f"{usage.cached:,}",
        f"{usage.prompt - usage.cached:,}",
        f"{task.paths:,}",
        f"{usage.calls:,}",
        f"{task.actions:,}",
        f"{task.answers:,}",
        "-" if task.effective is None else f"{task.effective:.1f}",
    ]
