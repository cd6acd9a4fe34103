"""``trunkline show``: a run's summary and one of its trees."""

from __future__ import annotations

import json as stdjson
import shutil
import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from trunkline.cli.agents import agents_table
from trunkline.cli.endpoints import calls_table
from trunkline.cli.measures import metrics_table
from trunkline.cli.output import put
from trunkline.cli.picture import picture
from trunkline.cli.table import rows_of, table
from trunkline.cli.tasks import tasks_table
from trunkline.cli.times import times_table
from trunkline.printable import printable
from trunkline.score.verdicts import read
from trunkline.store.measures import measures
from trunkline.store.reader import RunReader
from trunkline.store.scorings import scorings
from trunkline.tree.tokens import Tokens

if TYPE_CHECKING:
    from pathlib import Path

    from trunkline.store.summary import Summary
    from trunkline.store.tasks import TaskSummary
    from trunkline.tree.tree import Tree

__all__ = ["print_summary", "show", "show_run"]

_LINES = 80


def _plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def _summary_data(summary: Summary) -> dict[str, Any]:
    data: dict[str, Any] = _plain(summary)
    data["usage"] = msgspec.structs.asdict(summary.usage)
    data["tokens"] |= _shared(data["tokens"])
    data["ids"] |= _shared(data["ids"])
    data |= {"rate": summary.rate, "prompt": summary.prompt, "uncached": summary.uncached}
    if summary.diversity is not None:
        data["diversity"]["design_effect"] = summary.diversity.design_effect
    data |= {"per_task": summary.per_task, "per_solved": summary.per_solved}
    return data


def _shared(tokens: dict[str, int]) -> dict[str, float]:
    counted = msgspec.convert(tokens, Tokens)
    return {"saved": counted.saved, "reuse": counted.reuse}


def _task_data(task: TaskSummary) -> dict[str, Any]:
    data: dict[str, Any] = _plain(task)
    data["usage"] = msgspec.structs.asdict(task.usage)
    data["tokens"] |= _shared(data["tokens"])
    return data


def _tree_data(tree: Tree) -> dict[str, Any]:
    return {
        "task": tree.task.id,
        "digest": tree.digest(),
        "answer": tree.answer,
        "reward": tree.reward,
        "tokens": tree.tokens,
        "rollouts": [
            {
                "rollout": rollout.id,
                "path": rollout.path,
                "termination": rollout.termination,
                "answer": rollout.answer,
                "reward": rollout.reward,
                "error": rollout.error,
                "verdicts": read(rollout.note),
                "turns": rollout.turns,
                "nodes": [node.id for node in rollout.nodes],
            }
            for rollout in tree.rollouts
        ],
        "nodes": [
            {
                "node": node.id,
                "parent": node.parent.id,
                "kind": node.kind.name.lower(),
                "message": node.message,
                "weights": node.weights,
                "report": node.compressed_reasoning,
            }
            for node in tree.nodes
            if node.parent is not None
        ],
    }


def _write_json(data: dict[str, Any]) -> None:
    # Everything beyond ASCII is escaped, so that no control character of any kind reaches a terminal.
    put(stdjson.dumps(_plain(data), indent=2))


def print_summary(summary: Summary, *, as_json: bool = False) -> None:
    """Print a run's totals on stdout.

    Args:
        summary: The totals.
        as_json: As one JSON object.
    """
    if as_json:
        _write_json(_summary_data(summary))
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
        json: Print one JSON object instead; the calls by endpoint and the metrics are always in it, and agents where
            there are several.

    Raises:
        RunFileError: The file is not a readable run.
        UsageError: There is no such task.
    """
    with RunReader.open(path) as reader:
        summary = reader.summary()
        scored = scorings(reader.meta)
        named = _interesting(reader) if task is None and not (calls or tasks or time or metrics) else task
        tree = None if named is None else reader.tree(named)
        listed = reader.by_task() if tasks else []
        several = len(reader.agents()) > 1
        spent = reader.profile() if time or several else None
        measured = measures(reader) if metrics or json else None
    if json:
        data: dict[str, Any] = {"run": str(path), "summary": _summary_data(summary), "metrics": _plain(measured)}
        if scored:
            data["scorings"] = _plain(scored)
        if tasks:
            data["tasks"] = [_task_data(each) for each in listed]
        if spent is not None:
            data |= {"time": _plain(spent)} if time else {"agents": _plain(spent.agents)}
        if tree is not None:
            data["tree"] = _tree_data(tree)
        _write_json(data)
        return
    put(f"run file  {printable(str(path))}")
    if scored:
        last = scored[-1]
        part = "" if last.finished else ", in part: trunkline score goes on with it"
        put(f"scored    again, by {printable(last.reward, 80)}{part}")
    print_summary(summary)
    if tasks:
        put("")
        put(tasks_table(listed))
    if measured is not None:
        put("")
        put(metrics_table(measured))
    if calls:
        put("")
        put(calls_table(summary.endpoints))
    if spent is not None:
        put("")
        put(times_table(spent) if time else agents_table(spent.agents))
    if tree is not None:
        width = shutil.get_terminal_size((100, 24)).columns
        put("")
        put(picture(tree, width=width, max_lines=_LINES))
        if tree.task.reference:
            put("accepted: " + ", ".join(printable(answer, 60) for answer in tree.task.reference[:5]))


@click.command()
@click.argument("run", type=click.Path())
@click.option("--task", metavar="ID", help="The task whose tree to show.  [default: one whose rollouts differ]")
@click.option("--tasks", is_flag=True, help="Show tokens, turns and diversity of each task.")
@click.option("--calls", is_flag=True, help="Show usage, times and price of the calls by endpoint.")
@click.option("--time", is_flag=True, help="Show where the time went: by agent, by tool, and the slowest tries.")
@click.option("--metrics", is_flag=True, help="Show pass@k, pass^k, majority@k and what a solved task cost.")
@click.option("--json", is_flag=True, help="Print one JSON object.")
def show(run: str, task: str | None, tasks: bool, calls: bool, time: bool, metrics: bool, json: bool) -> None:
    """Print the summary of RUN and one of its trees, or what each task or endpoint came to."""
    show_run(run, task, tasks=tasks, calls=calls, time=time, metrics=metrics, json=json)
