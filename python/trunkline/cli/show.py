"""The commands ``show``, ``compare`` and ``check``."""

from __future__ import annotations

import shlex
import shutil
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import msgspec

from trunkline._internal.text import cells, counted, printable
from trunkline.cli.options import read_confidence
from trunkline.cli.output import (
    plain,
    print_summary,
    put,
    summary_data,
    task_data,
    tell,
    telling,
    tree_data,
    write_json,
)
from trunkline.cli.tables import (
    TableRow,
    agents_table,
    calibration_table,
    calls_table,
    chosen_tries,
    cost,
    interval,
    is_share,
    labelled,
    metrics_table,
    no_tokens,
    share,
    tasks_table,
    times_table,
)
from trunkline.cli.tree_view import picture
from trunkline.cli.tries import TryFilter, check_choice, show_transcript, show_tries
from trunkline.scoring.confidence import CONFIDENCES, entropy
from trunkline.store.log import refuse
from trunkline.store.migrate import migrate as bring_up
from trunkline.store.reader import RunReader
from trunkline.store.recover import recover as salvage
from trunkline.store.schema import SCHEMA_VERSION
from trunkline.store.state import rescorings
from trunkline.store.stats.compare import compare as compared
from trunkline.store.stats.metrics import calibrated, run_metrics
from trunkline.store.stats.where import FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trunkline.scoring.metrics.comparison import Calibration
    from trunkline.store.state import Scoring
    from trunkline.store.stats.compare import Comparison, Side
    from trunkline.store.stats.metrics import RunMetrics
    from trunkline.store.stats.profile import Profile
    from trunkline.store.stats.summary import Summary
    from trunkline.store.stats.tasks import TaskSummary
    from trunkline.tree.views import Tree


_LINES = 80


def show_run(
    path: str | Path,
    task: str | None = None,
    *,
    tasks: bool = False,
    calls: bool = False,
    time: bool = False,
    metrics: bool = False,
    confidence: str | None = None,
    verbose: bool = False,
    json: bool = False,
) -> None:
    """Print a run's summary and one of its trees, or what is asked for instead; of several agents, a line each.

    ``tasks``, ``calls``, ``time``, ``metrics`` and ``confidence`` take the place of a tree that was not named. As JSON,
    the calls by endpoint and the metrics are always there.
    """
    with telling(f"reading all rows of {path}", path, quiet=json), RunReader.open(path, partial=True) as reader:
        calibration = None if confidence is None else calibrated(reader, read_confidence(confidence))
        # Both need log-probs; users try the first.
        other = "entropy" if confidence == "logprob" and calibration is None and calibrated(reader, entropy) else ""
        chosen = task is not None or not (tasks or calls or time or metrics or confidence)
        named = reader.differing() if chosen and task is None else task
        several = len(reader.agents()) > 1
        shown = _Shown(
            str(path),
            reader.summary(),
            rescorings(reader.meta),
            reader.by_task() if tasks else None,
            run_metrics(reader) if metrics or json else None,
            confidence,
            calibration,
            other,
            reader.profile() if time or several else None,
            None if named is None else reader.tree(named),
            task is not None or tasks or calls or time or metrics or confidence is not None,
        )
    if json:
        write_json(_data(shown, time=time))
    else:
        _print(shown, calls=calls, time=time, verbose=verbose)
    refuse(reader.path, reader.loss, partial=False)


class _Shown(NamedTuple):
    """Everything to be shown of a run; None for what is not."""

    path: str
    summary: Summary
    rescorings: list[Scoring]
    tasks: list[TaskSummary] | None
    metrics: RunMetrics | None
    confidence: str | None
    calibration: Calibration | None
    instead: str
    spent: Profile | None
    tree: Tree | None
    asked: bool


def _data(shown: _Shown, *, time: bool) -> dict[str, Any]:
    data: dict[str, Any] = {"run": shown.path, "summary": summary_data(shown.summary), "metrics": plain(shown.metrics)}
    if shown.rescorings:
        data["scorings"] = plain(shown.rescorings)
    if shown.confidence is not None:
        data["calibration"] = {"confidence": shown.confidence} | (plain(shown.calibration) or {})
    if shown.tasks is not None:
        data["tasks"] = [task_data(each) for each in shown.tasks]
    if shown.spent is not None:
        data |= {"time": plain(shown.spent)} if time else {"agents": plain(shown.spent.agents)}
    if shown.tree is not None:
        data["tree"] = tree_data(shown.tree)
    return data


def _print(shown: _Shown, *, calls: bool, time: bool, verbose: bool) -> None:
    """Print the totals, or in their place what was asked for."""
    sections = list(_sections(shown, calls=calls, time=time))
    last = shown.rescorings[-1] if shown.rescorings else None
    part = "" if last is None or last.finished else ", in part: trunkline score continues it"
    if not shown.asked:
        print_summary(shown.summary, shown.path, verbose=verbose)
    if last is not None and (part or not shown.asked):
        put(f"scored    again, by {printable(last.reward, 80)}{part}")
    if sections:
        put(("" if shown.asked else "\n") + "\n\n".join(sections))


def _sections(shown: _Shown, *, calls: bool, time: bool) -> Iterator[str]:
    if shown.tasks is not None:
        yield tasks_table(shown.tasks)
    if shown.metrics is not None:
        yield metrics_table(shown.metrics)
    if shown.confidence is not None:
        yield calibration_table(shown.confidence, shown.calibration, shown.instead)
    if calls:
        yield calls_table(shown.summary.endpoints)
    if shown.spent is not None:
        yield times_table(shown.spent) if time else agents_table(shown.spent.agents)
    if shown.tree is not None:
        width = shutil.get_terminal_size((100, 24)).columns
        reference = ", ".join(printable(answer, 60) for answer in shown.tree.task.reference[:5])
        yield picture(shown.tree, width=width, max_lines=_LINES) + (f"\nreference: {reference}" if reference else "")


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
    help=f"Show whether surer tries are right: by {CONFIDENCES}, or by your own function of a rollout. "
    "logprob needs token ids (--tokens), entropy --top-logprobs.",
)
@click.option("--rollout", type=click.IntRange(0), metavar="N", help="With --task: what was said in one try.")
@click.option("--full", is_flag=True, help="With --rollout: long texts whole.")
@click.option("--wrong", is_flag=True, help="Tasks that no try solved, with what was answered.")
@click.option("--errors", is_flag=True, help="Tries that broke, and why.")
@click.option("--empty", is_flag=True, help="Tries that ended with an answer without text.")
@click.option(
    "--where",
    metavar="EXPR",
    help="Tries for which it holds, such as \"outcome == 'max_turns' and turns > 5\"; names are "
    f"{', '.join(FIELDS)}, and those of the tasks' metadata.",
)
@click.option("--by", metavar="FIELD", help="Accuracy by a field of the tasks' metadata, or of the tries.")
@click.option("--limit", type=click.IntRange(0), default=20, show_default=True, help="Most lines; 0 for all.")
@click.option("--verbose", "-v", is_flag=True, help="All figures of the summary.")
@click.option("--json", is_flag=True, help="Print one JSON object.")
def show(run: str, **given: Any) -> None:
    """Print the summary of RUN and one of its trees, or in its place what is asked for."""
    check_choice(given)
    choice = TryFilter(*(given.pop(name) for name in TryFilter._fields))
    number, full, as_json = given.pop("rollout"), given.pop("full"), given["json"]
    if not choice and number is None:
        return show_run(run, **given)
    with telling(f"reading all rows of {run}", run, quiet=as_json), RunReader.open(run, partial=True) as reader:
        if number is not None:
            show_transcript(reader.tree(given["task"]), number, full=full, as_json=as_json)
        else:
            show_tries(reader, choice, as_json=as_json)
    return refuse(reader.path, reader.loss, partial=False)


_NAME: Final = 40  # cells of a task's id that are shown
_IDS: Final = 5  # ids in a line


def _shares(found: Comparison) -> bool:
    """Whether both runs are shown in per cent."""
    return is_share(found.a.estimate) and is_share(found.b.estimate)


def _sides(found: Comparison) -> Iterator[TableRow]:
    for label, side in (("A", found.a), ("B", found.b)):
        scored = side.estimate.scored
        tries = f"{side.rollouts:,} rollouts" + ("" if scored == side.rollouts else f", {scored:,} of them count")
        yield f"{found.metric} of {label}", f"{share(side.estimate, '-', percent=_shares(found))}  {tries}"


def _difference(found: Comparison) -> Iterator[TableRow]:
    paired = found.paired
    ends = paired.difference, paired.low, paired.high
    points = interval(*ends, lambda end: f"{end * 100:+.1f}", " points")
    yield "B less A", points if _shares(found) else interval(*ends, lambda end: f"{end:+.3f}")
    how = "exact" if paired.exact else "normal approximation"
    chance = "below 0.0001" if paired.p < 0.0001 else f"{paired.p:.4f}"
    yield "p, two-sided", f"{chance}  (sign-flip permutation of tasks, {how})"
    yield "tasks compared", f"{paired.tasks:,}: {paired.better:,} better, {paired.worse:,} worse, {paired.same:,} same"


def _left_out(found: Comparison) -> Iterator[TableRow]:
    listed = [
        ("only in A", found.only_a),
        ("only in B", found.only_b),
        ("other content", found.different),
        ("not finished in both", found.unfinished),
        ("too few scored tries", found.unmeasured),
    ]
    for label, names in listed:
        if names:
            yield label, f"{len(names):,}: {_ids(names)}"


def _ids(names: Sequence[str]) -> str:
    shown = ", ".join(printable(name, _NAME) for name in names[:_IDS])
    return shown + (", ..." if len(names) > _IDS else "")


def _spent(label: str, side: Side) -> Iterator[TableRow]:
    usage = side.usage
    missing = f"; {usage.unreported:,} calls without usage are not in it" if usage.unreported else ""
    counts = f"{usage.prompt:,} prompt, {usage.generated:,} generated{missing}"
    yield f"tokens of {label}", counts if usage.prompt or usage.generated else no_tokens(usage)
    if side.spent is not None:
        yield f"price of {label}", cost(side.spent)
    if side.chosen:
        yield f"retried in {label}", chosen_tries(side.chosen, side.first_try)


def _changes(found: Comparison, most: int) -> Iterator[str]:
    if not found.changed or not most:
        return
    rows = [("task", "A", "B", "B less A")]
    rows += [
        (printable(one.task, _NAME), f"{one.a:.3f}", f"{one.b:.3f}", f"{one.difference:+.3f}")
        for one in found.changed[:most]
    ]
    width = max(cells(row[0]) for row in rows)
    yield ""
    for name, *figures in rows:
        yield "  ".join([name + " " * (width - cells(name)), *(f"{figure:>8}" for figure in figures)])
    rest = len(found.changed) - most
    if rest > 0:
        yield f"{rest:,} more changed; --tasks {len(found.changed)} shows all"


def _table(found: Comparison, most: int) -> str:
    rows = [
        ("A", printable(found.a.run)),
        ("B", printable(found.b.run)),
        *_sides(found),
        *_difference(found),
        *_left_out(found),
        *_spent("A", found.a),
        *_spent("B", found.b),
    ]
    return "\n".join([labelled(rows), *_changes(found, most)])


@click.command()
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@click.option(
    "--metric",
    metavar="NAME",
    default="accuracy",
    show_default=True,
    help="accuracy, best, majority, avg@K, pass@K, pass^K or majority@K, with K tries.",
)
@click.option(
    "--tasks",
    metavar="N",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="How many of the tasks that changed to show.",
)
@click.option("--common", is_flag=True, help="Leave out tasks of the same id and another prompt or answer.")
@click.option(
    "--allow-selected", is_flag=True, help="Compare also where tries were asked again because of their result."
)
@click.option("--json", is_flag=True, help="Print one JSON object, with all tasks that changed.")
def compare(a: str, b: str, metric: str, tasks: int, common: bool, allow_selected: bool, json: bool) -> None:
    """Compare the runs A and B task by task: what B is better at, and whether by more than chance."""
    with telling(f"reading all rows of {a} and {b}", a, b, quiet=json):
        found = compared(a, b, metric, common=common, allow_selected=allow_selected)
    if json:
        data = plain(found)
        for name, side in (("a", found.a), ("b", found.b)):
            data[name]["usage"] = msgspec.structs.asdict(side.usage)
        write_json(data)
        return
    put(_table(found, tasks))


@click.command()
@click.argument("run", type=click.Path())
@click.pass_context
def check(ctx: click.Context, run: str) -> None:
    """Re-derive every row of RUN from its deltas and walk every tree's invariants.

    Prints each problem found and exits with 1, or one line and exits with 0.
    """
    with telling(f"checking all of {run}", run), RunReader.open(run, partial=True) as reader:
        problems = reader.check()
        tasks = 0 if problems else len(reader.tasks())
    for problem in problems:
        put(printable(problem))
    if problems:
        ctx.exit(1)
    put(f"{printable(run)}: {counted(tasks, 'task')}, every row follows from the deltas")


@click.command()
@click.argument("run", type=click.Path())
@click.argument("out", type=click.Path())
def recover(run: str, out: str) -> None:
    """Write what is whole of the damaged RUN into the new file OUT, and say what is lost. RUN is not changed.

    A task that lost its last part goes on from what is left of it: trunkline resume OUT.
    """
    with telling(f"reading all of {run}", run):
        found = salvage(run, out)
    for what in found.lost:
        put(f"lost: {what}")
    more = f", {found.begun:,} begun" if found.begun else ""
    put(f"{printable(out)}: {counted(found.tasks, 'task')}, {found.finished:,} finished{more}")
    if found.finished < found.tasks:
        tell(f"go on with it: trunkline resume {shlex.quote(out)}")


@click.command()
@click.argument("run", type=click.Path())
@click.argument("out", type=click.Path(), required=False)
def migrate(run: str, out: str | None) -> None:
    """Bring RUN, a run file of an earlier version, to the present one: in its place, or in the new file OUT.

    The original is kept; without OUT it is renamed RUN.1, RUN.2 and so on. A file of the present version is left alone.
    """
    with telling(f"checking all of {run}", run):
        found = bring_up(run, out)
    if found is None:
        put(f"{printable(run)}: of the present version (schema {SCHEMA_VERSION}), nothing to migrate")
        return
    put(
        f"{printable(str(found.path))}: schema {SCHEMA_VERSION}, every row with its checksum; the original "
        f"(schema {found.schema}) is {printable(str(found.kept))}"
    )
