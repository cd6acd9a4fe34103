"""``trunkline compare``: two runs on the same tasks, and what changed."""

from __future__ import annotations

import json as stdjson
from typing import TYPE_CHECKING, Final

import click
import msgspec

from trunkline.cli.output import put
from trunkline.cli.table import cost, is_share, share
from trunkline.printable import cells, printable
from trunkline.store.compare import compare as compared

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trunkline.store.compare import Comparison, Side

__all__ = ["compare"]

_NAME: Final = 40  # cells of a task's id that are shown
_IDS: Final = 5  # ids in a line

Row = tuple[str, str]


def _shares(found: Comparison) -> bool:
    """Whether both runs are shown in per cent; they have one scale."""
    return is_share(found.a.estimate) and is_share(found.b.estimate)


def _sides(found: Comparison) -> Iterator[Row]:
    for label, side in (("A", found.a), ("B", found.b)):
        scored = side.estimate.scored
        tries = f"{side.rollouts:,} rollouts" + ("" if scored == side.rollouts else f", {scored:,} of them count")
        yield f"{found.metric} of {label}", f"{share(side.estimate, '-', percent=_shares(found))}  {tries}"


def _difference(found: Comparison) -> Iterator[Row]:
    paired = found.paired
    scale, unit, digits = (100, " points", 1) if _shares(found) else (1, "", 3)
    text = f"{paired.difference * scale:+.{digits}f}{unit}"
    if paired.low is not None and paired.high is not None:
        text += f"  (95 %: {paired.low * scale:+.{digits}f} to {paired.high * scale:+.{digits}f})"
    yield "B less A", text
    how = "exact" if paired.exact else "normal approximation"
    chance = "below 0.0001" if paired.p < 0.0001 else f"{paired.p:.4f}"
    yield "p, two-sided", f"{chance}  (sign-flip permutation of tasks, {how})"
    yield "tasks compared", f"{paired.tasks:,}: {paired.better:,} better, {paired.worse:,} worse, {paired.same:,} same"


def _left_out(found: Comparison) -> Iterator[Row]:
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


def _spent(label: str, side: Side) -> Iterator[Row]:
    usage = side.usage
    missing = f"; {usage.unreported:,} calls without usage are not in it" if usage.unreported else ""
    if usage.prompt or usage.generated:
        text = f"{usage.prompt:,} prompt, {usage.generated:,} generated{missing}"
    else:
        text = "not reported by the server" if usage.calls else "none, no request was answered"
    yield f"tokens of {label}", text
    if side.spent is not None:
        yield f"price of {label}", cost(side.spent)


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
    width = max(len(label) for label, _value in rows)
    return "\n".join([*(f"{label:<{width}}  {value}" for label, value in rows), *_changes(found, most)])


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
@click.option("--json", is_flag=True, help="Print one JSON object, with all tasks that changed.")
def compare(a: str, b: str, metric: str, tasks: int, common: bool, json: bool) -> None:
    """Compare the runs A and B task by task: what B is better at, and whether by more than chance."""
    found = compared(a, b, metric, common=common)
    if json:
        # Everything beyond ASCII is escaped, so that no control character of any kind reaches a terminal.
        data = msgspec.json.decode(msgspec.json.encode(found))
        for name, side in (("a", found.a), ("b", found.b)):
            data[name]["usage"] = msgspec.structs.asdict(side.usage)
        put(stdjson.dumps(data, indent=2))
        return
    put(_table(found, tasks))
