"""Every metric of a run, as a table for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trunkline.cli.table import money, share
from trunkline.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trunkline.score.metrics.estimate import Estimate
    from trunkline.score.metrics.reliability import Calibration, Ratio
    from trunkline.score.metrics.solving import PerSolved
    from trunkline.store.measures import Measures

__all__ = ["calibration_table", "metrics_table"]

_NOTES: Final = """\
pass@k: at least one of k tries is right (a reward of 1 or more); pass^k: all of them are; majority@k: a vote of k tries
each is the mean over all ways to pick k of a task's scored tries, and the 95 % intervals take tasks as the sample
tasks: those with k scored tries; a try that broke is not scored, and counts neither as right nor as wrong"""

_PARTS: Final = "part: what one of the rewards gave that the reward is made of, before its weight"

Row = tuple[str, str, str]


def metrics_table(found: Measures) -> str:
    """Every metric of a run, as plain text, one line each.

    Args:
        found: What :func:`trunkline.store.measures.measures` returns.
    """
    if found.accuracy is None and not found.parts:
        return "no metrics: nothing is scored"
    rows = [("metric", "tasks", "value"), *_rows(found)]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = [f"{name:<{widths[0]}}  {tasks:>{widths[1]}}  {value}" for name, tasks, value in rows]
    return "\n".join([*lines, "", *([_PARTS] if found.parts else []), _NOTES])


def calibration_table(name: str, found: Calibration | None) -> str:
    """How a confidence goes together with right tries, as plain text.

    Args:
        name: What the confidence is called.
        found: What :func:`trunkline.store.measures.calibrated` returns.
    """
    if found is None:
        return f"confidence {name}: no scored try has one"
    lines = [
        ("confidence", f"{name}, of {found.tries:,} scored tries; {found.left_out:,} more have none"),
        ("right tries", f"{found.right:.3f}"),
        ("AUROC", "not known: all are right, or all are wrong" if found.auroc is None else _ratio(found.auroc)),
    ]
    if found.brier is None or found.gap is None or found.ece is None:
        lines.append(("calibration", "not known: a confidence lies outside 0 to 1"))
    else:
        lines += [
            ("Brier score", _ratio(found.brier)),
            ("mean confidence less right", _ratio(found.gap)),
            ("calibration error", f"{found.ece:.3f}  (of {len(found.bins)} bins; chance alone makes it more than 0)"),
        ]
    table = [f"{label:<26}  {value}" for label, value in lines]
    if found.bins:
        table += ["", f"{'confidence':<15}  {'tries':>7}  {'mean':>6}  {'right':>6}"]
        table += [
            f"{f'{row.low:.3f} to {row.high:.3f}':<15}  {row.tries:>7,}  {row.confidence:>6.3f}  {row.right:>6.3f}"
            for row in found.bins
        ]
    return "\n".join(table)


def _ratio(found: Ratio) -> str:
    ends = "" if found.low is None or found.high is None else f"  (95 %: {found.low:.3f} to {found.high:.3f})"
    return f"{found.value:.3f}{ends}"


def _rows(found: Measures) -> Iterator[Row]:
    yield from _row("accuracy of one try", found.accuracy)
    for name, mean in found.parts.items():
        yield from _row(f"part {printable(name, 40)}", mean)
    yield from _of_k("pass@", found.pass_at)
    yield from _of_k("pass^", found.pass_hat)
    yield from _of_k("majority@", found.majority)
    yield from _row("best of all", found.best)
    notes = f"; {found.unreported:,} calls without usage are not in it" if found.unreported else ""
    yield from _per("generated tokens a solved task", found.generated_per_solved, notes)
    yield from _per("all tokens a solved task", found.tokens_per_solved, notes)
    if found.cost_per_solved is not None:
        yield from _per("price of a solved task", found.cost_per_solved, "", priced=True)


def _of_k(name: str, by_k: Mapping[int, Estimate]) -> Iterator[Row]:
    for k, estimate in by_k.items():
        yield from _row(f"{name}{k}", estimate)


def _row(name: str, estimate: Estimate | None) -> Iterator[Row]:
    yield name, "-" if estimate is None else f"{estimate.tasks:,}", share(estimate, "-")


def _per(name: str, found: PerSolved | None, notes: str, *, priced: bool = False) -> Iterator[Row]:
    if found is None:
        yield name, "-", "not known: no task is solved, or no server reported usage"
        return
    shown = [money(end) if priced else f"{end:,.0f}" for end in (found.value, found.low or 0.0, found.high or 0.0)]
    ends = "" if found.low is None or found.high is None else f"  (95 %: {shown[1]} to {shown[2]})"
    yield name, f"{found.tasks:,}", f"{shown[0]}{ends}{notes}"
