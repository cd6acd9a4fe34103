"""``trunkline show``: a run's summary and one of its trees."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from trunkline.cli.agents import agents_table
from trunkline.cli.confidences import read_confidence
from trunkline.cli.endpoints import calls_table
from trunkline.cli.measures import calibration_table, metrics_table
from trunkline.cli.output import put
from trunkline.cli.picture import picture
from trunkline.cli.plain import plain, summary_data, task_data, tree_data, write_json
from trunkline.cli.table import rows_of, table
from trunkline.cli.tasks import tasks_table
from trunkline.cli.times import times_table
from trunkline.printable import printable
from trunkline.score.confidence import CONFIDENCES
from trunkline.store.measures import calibrated, measures
from trunkline.store.reader import RunReader
from trunkline.store.scorings import scorings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trunkline.score.metrics.reliability import Calibration
    from trunkline.store.measures import Measures
    from trunkline.store.profile import Profile
    from trunkline.store.scorings import Scoring
    from trunkline.store.summary import Summary
    from trunkline.store.tasks import TaskSummary
    from trunkline.tree.tree import Tree

__all__ = ["print_summary", "show", "show_run"]

_LINES = 80


def print_summary(summary: Summary, *, as_json: bool = False) -> None:
    """Print a run's totals on stdout.

    Args:
        summary: The totals.
        as_json: As one JSON object.
    """
    if as_json:
        write_json(summary_data(summary))
        return
    if sys.stdout is None or sys.stdout.closed or not sys.stdout.isatty():
        put(table(summary))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout)
    rows = rows_of(summary)
    width = max(len(label) for label, _value in rows)
    with console.capture() as drawn:
        for label, value in rows:
            # Soft wrap leaves long lines to the terminal, so that they can be copied whole.
            console.print(Text.assemble((f"{label:<{width}}", "bold"), "  ", value), soft_wrap=True)
    put(drawn.get().removesuffix("\n"))


def _interesting(reader: RunReader) -> str | None:
    """The task to show when none was named: one whose rollouts differ in reward, else one that is done."""
    rewards: dict[int, set[float]] = {}
    for number, row in reader.rollouts():
        if row.reward is not None:
            rewards.setdefault(number, set()).add(row.reward)
    mixed = [number for number, found in rewards.items() if len(found) > 1]
    done = mixed or [number for number, _row in reader.rows()]
    return reader.tasks()[done[0]].id if done else None


def show_run(
    path: str | Path,
    task: str | None = None,
    *,
    tasks: bool = False,
    calls: bool = False,
    time: bool = False,
    metrics: bool = False,
    confidence: str | None = None,
    json: bool = False,
) -> None:
    """Print a run's summary and one of its trees, or its tasks or calls, on stdout; of several agents, a line of each.

    Args:
        path: The run file.
        task: The task whose tree to show; one whose rollouts differ when not given.
        tasks: Show the figures of each task in place of a tree that was not named.
        calls: Show the calls by endpoint in place of a tree that was not named.
        time: Show where the time went in place of a tree that was not named.
        metrics: Show every metric in place of a tree that was not named.
        confidence: Show whether this confidence means what it says, in place of a tree that was not named; see
            :func:`trunkline.cli.confidences.read_confidence`.
        json: Print one JSON object instead; the calls by endpoint and the metrics are always in it, and agents where
            there are several.

    Raises:
        RunFileError: The file is not a readable run.
        UsageError: There is no such task.
    """
    with RunReader.open(path) as reader:
        chosen = task is not None or not (tasks or calls or time or metrics or confidence)
        named = _interesting(reader) if chosen and task is None else task
        several = len(reader.agents()) > 1
        shown = _Shown(
            str(path),
            reader.summary(),
            scorings(reader.meta),
            reader.by_task() if tasks else None,
            measures(reader) if metrics or json else None,
            confidence,
            None if confidence is None else calibrated(reader, read_confidence(confidence)),
            reader.profile() if time or several else None,
            None if named is None else reader.tree(named),
        )
    if json:
        write_json(_data(shown, time=time))
    else:
        _print(shown, calls=calls, time=time)


class _Shown(NamedTuple):
    """What is to be shown of a run; None where it is not."""

    path: str
    summary: Summary
    scorings: list[Scoring]
    tasks: list[TaskSummary] | None
    metrics: Measures | None
    confidence: str | None
    calibration: Calibration | None
    spent: Profile | None
    tree: Tree | None


def _data(shown: _Shown, *, time: bool) -> dict[str, Any]:
    """Return it as one JSON object."""
    data: dict[str, Any] = {"run": shown.path, "summary": summary_data(shown.summary), "metrics": plain(shown.metrics)}
    if shown.scorings:
        data["scorings"] = plain(shown.scorings)
    if shown.confidence is not None:
        data["calibration"] = {"confidence": shown.confidence} | (plain(shown.calibration) or {})
    if shown.tasks is not None:
        data["tasks"] = [task_data(each) for each in shown.tasks]
    if shown.spent is not None:
        data |= {"time": plain(shown.spent)} if time else {"agents": plain(shown.spent.agents)}
    if shown.tree is not None:
        data["tree"] = tree_data(shown.tree)
    return data


def _print(shown: _Shown, *, calls: bool, time: bool) -> None:
    """Print it for people: the totals, and below them what else was asked for."""
    put(f"run file  {printable(shown.path)}")
    if shown.scorings:
        last = shown.scorings[-1]
        part = "" if last.finished else ", in part: trunkline score goes on with it"
        put(f"scored    again, by {printable(last.reward, 80)}{part}")
    print_summary(shown.summary)
    for text in _sections(shown, calls=calls, time=time):
        put("")
        put(text)


def _sections(shown: _Shown, *, calls: bool, time: bool) -> Iterator[str]:
    """Yield the tables below the totals, and the tree."""
    if shown.tasks is not None:
        yield tasks_table(shown.tasks)
    if shown.metrics is not None:
        yield metrics_table(shown.metrics)
    if shown.confidence is not None:
        yield calibration_table(shown.confidence, shown.calibration)
    if calls:
        yield calls_table(shown.summary.endpoints)
    if shown.spent is not None:
        yield times_table(shown.spent) if time else agents_table(shown.spent.agents)
    if shown.tree is not None:
        width = shutil.get_terminal_size((100, 24)).columns
        accepted = ", ".join(printable(answer, 60) for answer in shown.tree.task.reference[:5])
        yield picture(shown.tree, width=width, max_lines=_LINES) + (f"\naccepted: {accepted}" if accepted else "")


@click.command()
@click.argument("run", type=click.Path())
@click.option("--task", metavar="ID", help="The task whose tree to show.  [default: one whose rollouts differ]")
@click.option("--tasks", is_flag=True, help="Show tokens, turns and diversity of each task.")
@click.option("--calls", is_flag=True, help="Show usage, times and price of the calls by endpoint.")
@click.option("--time", is_flag=True, help="Show where the time went: by agent, by tool, and the slowest tries.")
@click.option("--metrics", is_flag=True, help="Show pass@k, pass^k, majority@k and what a solved task cost.")
@click.option(
    "--confidence",
    metavar="NAME|MODULE:ATTR",
    help=f"Show whether surer tries are right: by {', '.join(CONFIDENCES)}, or by your own function of a rollout.",
)
@click.option("--json", is_flag=True, help="Print one JSON object.")
def show(
    run: str,
    task: str | None,
    tasks: bool,
    calls: bool,
    time: bool,
    metrics: bool,
    confidence: str | None,
    json: bool,
) -> None:
    """Print the summary of RUN and one of its trees, or what each task or endpoint came to."""
    show_run(run, task, tasks=tasks, calls=calls, time=time, metrics=metrics, confidence=confidence, json=json)
