"""The summary of a run, as a table for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trunkline.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trunkline.score.metrics import Estimate
    from trunkline.store.calls import Spending
    from trunkline.store.judgements import Filtered
    from trunkline.store.summary import Summary, Taken
    from trunkline.store.tasks import Length

__all__ = ["cost", "duration", "is_share", "money", "rows_of", "share", "table", "taken_over"]

Row = tuple[str, str]


def duration(seconds: float) -> str:
    """A stretch of time in the units that a person would use."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def money(amount: float) -> str:
    """An amount with at least four digits of it, and at least cents; in which currency, its owner knows."""
    decimals = 2 if amount <= 0 else min(max(2, 3 - math.floor(math.log10(amount))), 12)
    return f"{amount:,.{decimals}f}"


def cost(spent: Spending, details: str = "") -> str:
    """What some calls cost, and how many of them are not in it.

    Args:
        spent: What they cost.
        details: What to say after the amount.
    """
    if not spent.unpriced:
        return money(spent.money) + details
    known = money(spent.money) + details if spent.known else "not known"
    requests = "1 request" if spent.unpriced == 1 else f"{spent.unpriced:,} requests"
    return f"{known}; not priced: {requests} whose usage is not known"


def is_share(estimate: Estimate) -> bool:
    """Whether an estimate reads as per cent: rewards need not be shares, only those between 0 and 1 are."""
    return all(0 <= end <= 1 for end in (estimate.value, estimate.low, estimate.high) if end is not None)


def share(estimate: Estimate | None, missing: str, *, percent: bool = True) -> str:
    """An estimate with its interval, in per cent where it is a share.

    Args:
        estimate: The estimate.
        missing: What to say where there is none.
        percent: Whether a share is shown in per cent.
    """
    if estimate is None:
        return missing
    scale, unit, digits = (100, " %", 1) if percent and is_share(estimate) else (1, "", 3)
    text = f"{estimate.value * scale:.{digits}f}{unit}"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text}  (95 %: {estimate.low * scale:.{digits}f} to {estimate.high * scale:.{digits}f})"


def _scores(summary: Summary) -> Iterator[Row]:
    missing = f"0 of {summary.rollouts:,} scored"
    yield "accuracy of one try", share(summary.accuracy, missing)
    if summary.accuracy is None:
        return
    best = share(summary.best_of_n, missing)
    if summary.short:
        best += f"  ({summary.short:,} of {summary.finished:,} tasks have fewer than {summary.tries} scored tries)"
    yield f"best of {summary.tries}", best
    yield f"majority of {summary.tries}", share(summary.majority, missing)
    if summary.scored < summary.rollouts:
        yield "scored", f"{summary.scored:,} of {summary.rollouts:,} rollouts"


def _diversity(summary: Summary) -> Iterator[Row]:
    found = summary.diversity
    if found is None or summary.tries < 2:
        return
    yield "first actions a task", f"{found.actions.found:.1f} different ones of {found.actions.of:.1f}"
    yield "answers a task", f"{found.answers.found:.1f} different ones of {found.answers.of:.1f}"
    if not summary.scored:
        return
    if found.effective is None or found.rho is None:
        yield "effective tries", "not known: rewards do not vary, or a task has but one initial chain"
        return
    why = (
        f"rewards of rollouts off one initial chain correlate by {found.rho:.2f}"
        if found.shared
        else "each is a chain of its own"
    )
    yield "effective tries", f"{found.effective:.1f} of {found.scored:.1f} a task  ({why})"


def _lengths(summary: Summary) -> Iterator[Row]:
    # Only what was cut says anything about what was kept.
    if summary.cut is None:
        return
    if summary.kept is not None:
        yield "mean length, ended", _length(summary.kept)
    yield "mean length, cut", f"{_length(summary.cut)}; stopping early favours short rollouts"


def _length(length: Length) -> str:
    generated = "" if length.generated is None else f", {length.generated:,.0f} generated tokens"
    rollouts = "1 rollout" if length.rollouts == 1 else f"{length.rollouts:,} rollouts"
    return f"{length.turns:.1f} turns{generated}  ({rollouts})"


def _costs(summary: Summary) -> Iterator[Row]:
    tokens, usage = summary.tokens, summary.usage
    counted = tokens.flat or usage.prompt or usage.generated
    if not counted or (not tokens.exact and usage.unreported >= usage.calls):
        yield (
            "tokens (server usage)",
            "not reported by the server" if usage.calls else "none, no request was answered",
        )
    else:
        mixed = 0 < summary.ids.flat < tokens.flat
        source = "token ids" if tokens.exact else "token ids and server usage" if mixed else "server usage"
        yield f"tokens flat ({source})", f"{tokens.flat:,}  ({tokens.flat_generated:,} generated)"
        yield "tokens as a tree", f"{tokens.tree:,}  ({tokens.tree_generated:,} generated)"
        if mixed:
            yield "of these from token ids", f"{summary.ids.flat:,} flat, {summary.ids.tree:,} as a tree"
        yield "reuse", f"{tokens.reuse:.1%}".replace("%", " %") + f"  ({tokens.saved:,} tokens shared)"
        if usage.unreported:
            yield "turns without usage", f"{usage.unreported:,}, counted in no total"
        share = f"  ({usage.cached / usage.prompt:.1%})".replace("%", " %") if usage.prompt else ""
        if usage.unreported < usage.calls:
            uncached = usage.prompt - usage.cached
            yield "prompt tokens by turn", f"{usage.prompt:,}, {usage.cached:,} of them cached{share}, {uncached:,} not"
        if summary.prompt and (summary.prompt, summary.uncached) != (usage.prompt, usage.prompt - usage.cached):
            yield "prompt tokens by request", f"{summary.prompt:,}, {summary.uncached:,} of them not cached"
    chains = f"  ({summary.paths:,} if every rollout were a chain)" if summary.paths > usage.calls else ""
    yield "model turns", f"{usage.calls:,}{chains}"
    failed = f", {usage.tool_errors:,} of them failed" if usage.tool_errors else ""
    again = f"; {summary.replayed:,} more were run again for forks" if summary.replayed else ""
    yield "tool calls", f"{usage.tools:,}{failed}{again}"
    if 0 < usage.tools <= usage.tool_errors:
        yield (
            "warning",
            "every tool call failed, so the model saw no tool result: the answers are its own; check the tools",
        )
    yield "retries", f"{usage.retries:,}"
    drifts = [(usage.bridged, "bridged"), (usage.realigned, "realigned"), (usage.forked, "forked")]
    if any(count for count, _ in drifts):
        yield "drifted prompts", ", ".join(f"{count:,} {what}" for count, what in drifts if count)
    if summary.spent is not None:
        yield "price", cost(summary.spent, _parts(summary))


def _parts(summary: Summary) -> str:
    shares = [(summary.per_task, "a task"), (summary.per_solved, "a solved task")]
    shown = [f"{money(amount)} {what}" for amount, what in shares if amount is not None]
    return f"  ({', '.join(shown)})" if shown else ""


def taken_over(taken: Taken) -> str:
    """What was taken over of an earlier run."""
    on = f", {taken.growing:,} of which had not ended" if taken.growing else ""
    trees, rollouts = _count(taken.trees, "tree"), _count(taken.rollouts, "rollout")
    return f"{taken.run}: {trees}, {rollouts} taken over{on}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _filtered(found: Filtered) -> str:
    """What a filter did, in one line."""
    groups = _count(found.groups, "whole group")
    parts = [
        f"{_count(found.masked, 'rollout')} masked" if found.masked else "",
        f"{found.dropped:,} dropped" + (f" ({groups})" if found.groups else "") if found.dropped else "",
        f"{found.penalised:,} penalised" if found.penalised else "",
        f"{_count(found.failed, 'group')} not judged" if found.failed else "",
    ]
    return ", ".join(filter(None, parts))


def _workers(events: Mapping[str, int]) -> str:
    """What became of workers, and of tasks because of them; empty if nothing did."""
    told = {
        "died": "{} died",
        "hung": "{} hung",
        "recycled": "{} held too much memory",
        "given up": "{} places given up",
        "stale": "{} late batches dropped",
    }
    parts = [text.format(f"{events[kind]:,}") for kind, text in told.items() if kind in events]
    guilty = events.get("quarantined", 0)
    return ", ".join([*parts, f"{_count(guilty, 'task')} quarantined"] if guilty else parts)


def _endings(summary: Summary) -> Iterator[Row]:
    """How trees ended, where not every strategy was done with its own."""
    if set(summary.ended) - {"finished", "broken"}:
        yield "trees ended", ", ".join(f"{word} {count:,}" for word, count in summary.ended.items())
    if summary.refused:
        yield "rollouts not started", f"{summary.refused:,}, for want of budget"
    if summary.timing:
        yield "depends on timing", ", ".join(summary.timing)
    budget = summary.budget
    if budget is not None:
        refused = f"; refused {budget.refused:,} times, first: {budget.closed}" if budget.refused else ""
        yield "budget of the run", ", ".join(budget.lines()) + refused


def rows_of(summary: Summary) -> list[Row]:
    """The lines of the table, each a label and a value, safe to print.

    Args:
        summary: The run's totals.
    """
    done = f"{summary.finished:,} of {summary.tasks:,}"
    if summary.state != "done":
        done += f"  ({summary.state})"
    elif summary.finished < summary.tasks:
        done += f"  ({summary.tasks - summary.finished:,} not needed)"
    rows: list[Row] = [("strategy", summary.strategy)] if summary.strategy else []
    rows.append(("tasks done", done))
    if summary.taken is not None:
        rows.append(("continues", taken_over(summary.taken)))
    if summary.groups is not None:
        rows.append(("groups kept", f"{summary.groups_kept:,} of {summary.groups:,} wanted"))
    if summary.broken:
        rows.append(("tasks broken", f"{summary.broken:,}"))
    if workers := _workers(summary.events):
        rows.append(("workers", workers))
    rows.extend(_endings(summary))
    ended = ", ".join(f"{word} {count:,}" for word, count in summary.terminations.items())
    rows.append(("rollouts", f"{summary.rollouts:,}" + (f"  ({ended})" if ended else "")))
    if summary.failed:
        rows.append(("rollouts that broke", f"{summary.failed:,}, not scored"))
    for message, count in summary.failures[:1]:
        rows.append(("most frequent error", f"({count:,} of {summary.failed:,}) {message}"))
    for message, _count in summary.refusals[:1]:
        rows.append(("forks refused", f"{summary.forks_refused:,}, most often because {message}"))
    rows.extend(_lengths(summary))
    rows.extend(("judged by " + found.filter, _filtered(found)) for found in summary.filters)
    rows.extend(_scores(summary))
    rows.extend(_diversity(summary))
    rows.extend(_costs(summary))
    rows.append(("wall time", f"{duration(summary.seconds)}  ({summary.rate:,.1f} rollouts/s)"))
    return [(label, printable(value)) for label, value in rows]


def table(summary: Summary) -> str:
    """The table as plain text, one line a row; lines are not wrapped.

    Args:
        summary: The run's totals.
    """
    rows = rows_of(summary)
    width = max(len(label) for label, _value in rows)
    return "\n".join(f"{label:<{width}}  {value}" for label, value in rows)
