"""Summary and other tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from trunkline._internal.text import printable
from trunkline.scoring.confidence import NEEDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trunkline.scoring.metrics import Estimate
    from trunkline.scoring.metrics.at_k import PerSolved
    from trunkline.scoring.metrics.comparison import Calibration, Ratio
    from trunkline.store.stats.calls import EndpointSummary, Spending, Times
    from trunkline.store.stats.metrics import RunMetrics
    from trunkline.store.stats.profile import AgentProfile, Profile, RoleRows, Stretch
    from trunkline.store.stats.summary import Summary, TakenOver
    from trunkline.store.stats.tasks import Filtered, Length, TaskSummary


__all__ = [
    "TableRow",
    "agents_table",
    "calibration_table",
    "calls_table",
    "cost",
    "duration",
    "is_share",
    "metrics_table",
    "money",
    "percent",
    "rows_of",
    "share",
    "table",
    "taken_over",
    "tasks_table",
    "times_table",
]


TableRow = tuple[str, str]


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


CACHE_FLAGS: Final = "vLLM: --enable-prompt-tokens-details, SGLang: --enable-cache-report"
"""How servers are told to report what they had cached."""


def cost(spent: Spending, details: str = "", mark: str = "") -> str:
    """What some calls cost, and how many of them are not in it.

    Args:
        spent: What they cost.
        details: What to say after the amount.
        mark: What to write before it: ``~`` where some of the tokens are estimated.
    """
    told = mark + money(spent.money) + details if spent.known else "not known"
    if spent.unpriced:
        told += f"; not priced: {_count(spent.unpriced, 'request')} whose usage is not known"
    if spent.silent:
        whole = f"{_count(spent.silent, 'request')} whose server does not report cached tokens"
        told += f"; priced as uncached: {whole} ({CACHE_FLAGS})"
    return told


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


def _scores(summary: Summary) -> Iterator[TableRow]:
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


def _diversity(summary: Summary) -> Iterator[TableRow]:
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


def _lengths(summary: Summary) -> Iterator[TableRow]:
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


def _costs(summary: Summary) -> Iterator[TableRow]:
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
        mark = "~" if summary.estimated and not tokens.exact else ""
        yield f"tokens flat ({source})", f"{mark}{tokens.flat:,}  ({mark}{tokens.flat_generated:,} generated)"
        yield "tokens as a tree", f"{mark}{tokens.tree:,}  ({mark}{tokens.tree_generated:,} generated)"
        if summary.estimated:
            first = "usage of several completions in one request was that of the first"
            yield "of these estimated", f"~{summary.estimated:,} generated: {first}"
        if mixed:
            yield "of these from token ids", f"{summary.ids.flat:,} flat, {summary.ids.tree:,} as a tree"
        yield "reuse", f"{tokens.reuse:.1%}".replace("%", " %") + f"  ({tokens.saved:,} tokens shared)"
        if usage.unreported:
            yield "turns without usage", f"{usage.unreported:,}, counted in no total"
        if usage.unreported < usage.calls:
            yield from _prompts(summary)
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
        yield "price", cost(summary.spent, _parts(summary), "~" if summary.estimated else "")


def _prompts(summary: Summary) -> Iterator[TableRow]:
    usage, uncached = summary.usage, summary.usage.prompt - summary.usage.cached
    if summary.cached is None:
        yield "prompt tokens by turn", f"{usage.prompt:,}, cached not reported ({CACHE_FLAGS})"
        if summary.prompt != usage.prompt:
            yield "prompt tokens by request", f"{summary.prompt:,}, cached not reported"
        return
    share = f"  ({percent(usage.cached / usage.prompt)})" if usage.prompt else ""
    yield "prompt tokens by turn", f"{usage.prompt:,}, {usage.cached:,} of them cached{share}, {uncached:,} not"
    silent = f"; {_count(summary.silent, 'request')} did not say" if summary.silent else ""
    if summary.prompt and (silent or (summary.prompt, summary.uncached) != (usage.prompt, uncached)):
        yield "prompt tokens by request", f"{summary.prompt:,}, {summary.uncached:,} of them not cached{silent}"


def _parts(summary: Summary) -> str:
    shares = [(summary.per_task, "a task"), (summary.per_solved, "a solved task")]
    shown = [f"{money(amount)} {what}" for amount, what in shares if amount is not None]
    return f"  ({', '.join(shown)})" if shown else ""


def taken_over(taken: TakenOver) -> str:
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


def _endings(summary: Summary) -> Iterator[TableRow]:
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
        yield "budget of the run", ", ".join(budget.lines("~" if summary.estimated else "")) + refused


def rows_of(summary: Summary) -> list[TableRow]:
    """The lines of the table, each a label and a value, safe to print.

    Args:
        summary: The run's totals.
    """
    done = f"{summary.finished:,} of {summary.tasks:,}"
    if summary.state != "done":
        done += f"  ({summary.state})"
    elif summary.finished < summary.tasks:
        done += f"  ({summary.tasks - summary.finished:,} not needed)"
    rows: list[TableRow] = [("strategy", summary.strategy)] if summary.strategy else []
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


_UNNAMED = "(no name)"


def calls_table(endpoints: Sequence[EndpointSummary]) -> str:
    """What each endpoint answered, as plain text: its name, and its figures under it.

    Args:
        endpoints: What :attr:`trunkline.store.stats.summary.Summary.endpoints` holds.
    """
    lines: list[str] = []
    for endpoint in endpoints:
        lines.append(printable(endpoint.endpoint) or _UNNAMED)
        rows = list(_endpoint_rows(endpoint))
        width = max(len(label) for label, _ in rows)
        lines += [f"  {label:<{width}}  {value}" for label, value in rows]
    return "\n".join(lines) if lines else "no request was made"


def _endpoint_rows(endpoint: EndpointSummary) -> Iterator[tuple[str, str]]:
    failed = f", and {endpoint.failed:,} that failed for good" if endpoint.failed else ""
    yield "requests", f"{endpoint.requests:,}, {endpoint.retries:,} retries{failed}"
    if endpoint.kept:
        yield "out of a cache", f"{endpoint.kept:,} more, counted in nothing below"
    if endpoint.probes:
        yield "probes", f"{endpoint.probes:,} more, to find out what it can do: their tokens are counted below"
    if endpoint.draws != endpoint.requests:
        yield "completions", f"{endpoint.draws:,}"
    if endpoint.unreported < endpoint.requests or endpoint.prompt:
        if endpoint.cached is None:
            told = f"cached not reported ({CACHE_FLAGS})"
        else:
            share = f"  ({percent(endpoint.cached / endpoint.prompt)})" if endpoint.prompt else ""
            silent = f"; {_count(endpoint.silent, 'request')} did not say" if endpoint.silent else ""
            told = f"{endpoint.cached:,} of them cached{share}{silent}"
        yield "prompt tokens by request", f"{endpoint.prompt:,}, {told}"
        mark, guessed = ("~", f"{endpoint.estimated:,} of them estimated, ") if endpoint.estimated else ("", "")
        yield "generated tokens", f"{mark}{endpoint.generated:,}  ({guessed}{endpoint.rate:,.1f} tokens/s)"
    if endpoint.unreported:
        yield "without usage", f"{endpoint.unreported:,}, counted in no total"
    for label, times in (("queue", endpoint.queue), ("first byte", endpoint.first), ("whole call", endpoint.total)):
        if times is not None:
            yield label, _times(times)
    if endpoint.spent is not None:
        yield "price", cost(endpoint.spent, mark="~" if endpoint.estimated else "")


def _times(times: Times) -> str:
    return f"p50 {_seconds(times.p50)}, p95 {_seconds(times.p95)}, max {_seconds(times.max)}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds < 10 else duration(seconds)


_MEASURES_NOTES: Final = """\
pass@k: at least one of k tries is right (a reward of 1 or more); pass^k: all of them are; majority@k: a vote of k tries
each is the mean over all ways to pick k of a task's scored tries, and the 95 % intervals take tasks as the sample
tasks: those with k scored tries; a try that broke is not scored, and counts neither as right nor as wrong"""

_PARTS: Final = "part: what one of the rewards gave that the reward is made of, before its weight"

MeasureRow = tuple[str, str, str]


def metrics_table(found: RunMetrics) -> str:
    """Every metric of a run, as plain text, one line each.

    Args:
        found: What :func:`trunkline.store.stats.metrics.run_metrics` returns.
    """
    if found.accuracy is None and not found.parts:
        return "no metrics: nothing is scored"
    rows = [("metric", "tasks", "value"), *_measure_rows(found)]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = [f"{name:<{widths[0]}}  {tasks:>{widths[1]}}  {value}" for name, tasks, value in rows]
    return "\n".join([*lines, "", *([_PARTS] if found.parts else []), _MEASURES_NOTES])


def calibration_table(name: str, found: Calibration | None, instead: str = "") -> str:
    """How a confidence goes together with right tries, as plain text.

    Args:
        name: What the confidence is called.
        found: What :func:`trunkline.store.stats.metrics.calibrated` returns.
        instead: Another confidence that tries of the run have, to be named if they have none of this.
    """
    if found is None:
        need = f"; it needs {NEEDS[name]}" if name in NEEDS else ""
        return f"confidence {name}: no scored try has one{need}" + (f"; this run has {instead}" if instead else "")
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


def _measure_rows(found: RunMetrics) -> Iterator[MeasureRow]:
    yield from _measure_row("accuracy of one try", found.accuracy)
    for name, mean in found.parts.items():
        yield from _measure_row(f"part {printable(name, 40)}", mean)
    yield from _of_k("pass@", found.pass_at)
    yield from _of_k("pass^", found.pass_hat)
    yield from _of_k("majority@", found.majority)
    yield from _measure_row("best of all", found.best)
    notes = f"; {found.unreported:,} calls without usage are not in it" if found.unreported else ""
    yield from _per("generated tokens a solved task", found.generated_per_solved, notes)
    yield from _per("all tokens a solved task", found.tokens_per_solved, notes)
    if found.cost_per_solved is not None:
        yield from _per("price of a solved task", found.cost_per_solved, "", priced=True)


def _of_k(name: str, by_k: Mapping[int, Estimate]) -> Iterator[MeasureRow]:
    for k, estimate in by_k.items():
        yield from _measure_row(f"{name}{k}", estimate)


def _measure_row(name: str, estimate: Estimate | None) -> Iterator[MeasureRow]:
    yield name, "-" if estimate is None else f"{estimate.tasks:,}", share(estimate, "-")


def _per(name: str, found: PerSolved | None, notes: str, *, priced: bool = False) -> Iterator[MeasureRow]:
    if found is None:
        yield name, "-", "not known: no task is solved, or no server reported usage"
        return
    shown = [money(end) if priced else f"{end:,.0f}" for end in (found.value, found.low or 0.0, found.high or 0.0)]
    ends = "" if found.low is None or found.high is None else f"  (95 %: {shown[1]} to {shown[2]})"
    yield name, f"{found.tasks:,}", f"{shown[0]}{ends}{notes}"


_TASK_CELLS: Final = 24  # cells of a task's id that are shown
_TASKS_HEAD: Final = (
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
_TASKS_NOTES: Final = """\
flat: as if every rollout were a chain of its own; tree: shared parts once; ~ where it is server usage, not token ids
chains: turns on all paths; made: turns that were asked for; cached, uncached: prompt tokens of these turns, - where the
server does not report what it had cached
made, cached and uncached are of this run alone; of draws in one request all but the first count their prompt as cached
effective: independent tries that would say as much as the scored ones; - where that is not known"""


def tasks_table(tasks: Sequence[TaskSummary]) -> str:
    """The figures of each task, as plain text, one line a task.

    Args:
        tasks: What :meth:`trunkline.store.reader.RunReader.by_task` returns.
    """
    if not tasks:
        return "no task is finished"
    rows = [[top for top, _ in _TASKS_HEAD], [under for _, under in _TASKS_HEAD], *map(_task_row, tasks)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_TASKS_HEAD))]
    lines = []
    for name, *figures in rows:
        padded = [f"{figure:>{width}}" for figure, width in zip(figures, widths[1:], strict=True)]
        lines.append("  ".join([f"{name:<{widths[0]}}", *padded]).rstrip())
    return "\n".join([*lines, "", _TASKS_NOTES])


def _task_row(task: TaskSummary) -> list[str]:
    tokens, usage = task.tokens, task.usage
    mark = "" if tokens.exact else "~"
    return [
        printable(task.task, _TASK_CELLS),
        f"{task.rollouts:,}",
        f"{task.scored:,}",
        "-" if task.reward is None else f"{task.reward:.3f}",
        f"{mark}{tokens.flat:,}",
        f"{mark}{tokens.tree:,}",
        f"{mark}{tokens.flat_generated:,}",
        f"{mark}{tokens.tree_generated:,}",
        f"{tokens.reuse:.1%}".replace("%", " %"),
        "-" if task.silent else f"{usage.cached:,}",
        "-" if task.silent else f"{usage.prompt - usage.cached:,}",
        f"{task.paths:,}",
        f"{usage.calls:,}",
        f"{task.actions:,}",
        f"{task.answers:,}",
        "-" if task.effective is None else f"{task.effective:.1f}",
    ]


_TIMES_CELLS = 40


def times_table(profile: Profile) -> str:
    """The time by agent and tool, and the slowest rollouts, as plain text."""
    return "\n".join(_lines(profile))


def _lines(profile: Profile) -> Iterator[str]:
    yield f"wall time  {duration(profile.seconds)}"
    if profile.agents:
        yield f"calls out  in {percent(profile.busy)} of it, {profile.out:,.1f} on the average"
    for agent in profile.agents:
        yield f"agent {printable(agent.name, _TIMES_CELLS)}"
        yield from _stretch_figures(agent)
        yield from _note(agent)
    for tool in profile.tools:
        yield f"tool {printable(tool.name, _TIMES_CELLS)}"
        yield from _stretch_figures(tool)
    for slow in profile.slowest:
        where = f"model {_seconds(slow.llm_seconds)}, tools {_seconds(slow.tool_seconds)}, {slow.turns} turns"
        yield f"slow  {_seconds(slow.seconds)}  {printable(slow.task, _TIMES_CELLS)} rollout {slow.rollout}: {where}"


def _stretch_figures(one: Stretch) -> Iterator[str]:
    failed = f", {one.failed:,} failed" if one.failed else ""
    yield f"  calls     {one.calls:,}{failed}"
    yield f"  time      {duration(one.seconds)}  ({percent(one.share)} of all, {one.at_once:,.1f} at once)"
    if (times := one.times) is not None:
        yield f"  one call  p50 {_seconds(times.p50)}, p95 {_seconds(times.p95)}, max {_seconds(times.max)}"


def _note(agent: AgentProfile) -> Iterator[str]:
    if agent.calls:
        yield f"  out       in {percent(agent.busy)} of the wall time"
        unreported = f"; {agent.unreported:,} calls without usage" if agent.unreported else ""
        cached = "cached not reported" if agent.cached is None else f"{agent.cached:,} cached"
        yield f"  tokens    {agent.prompt:,} prompt, {cached}; {agent.generated:,} generated{unreported}"
    if agent.rows is not None:
        yield from _time_rows(agent.rows)


def _time_rows(rows: RoleRows) -> Iterator[str]:
    inactive = f", {rows.inactive:,} inactive" if rows.inactive else ""
    yield f"  rows      {rows.active:,} active{inactive}; {rows.valid:,} valid actions  ({percent(rows.valid_share)})"
    whole = f"{rows.whole:,} that whole batches carry in {rows.rounds:,} rounds"
    yield f"  active    {percent(rows.active_ratio)} of {whole}"


def percent(share: float) -> str:
    """A share, as people write it."""
    return f"{share:.1%}".replace("%", " %")


_AGENT_CELLS: Final = 24  # cells of a name that are shown
_AGENTS_HEAD: Final = (
    ("agent", ""),
    ("", "calls"),
    ("", "failed"),
    ("tokens", "prompt"),
    ("", "cached"),
    ("", "generated"),
    ("time", "of all"),
    ("", "out"),
    ("call", "p50"),
    ("", "p95"),
)
_ROWS: Final = (("rows", "active"), ("", "inactive"), ("", "ratio"), ("", "valid"))
_AGENTS_NOTES: Final = """\
of all: its share of the time in models and tools; out: the share of the wall time with a call of it out"""
_ROW_NOTES: Final = """
active: rows that something depends on; ratio: these, as a share of what a loop over whole batches carries"""


def agents_table(agents: Sequence[AgentProfile]) -> str:
    """The figures of each agent, as plain text, one line an agent.

    Args:
        agents: What :attr:`trunkline.store.stats.profile.Profile.agents` holds.
    """
    team = any(agent.rows is not None for agent in agents)
    head = _AGENTS_HEAD + _ROWS if team else _AGENTS_HEAD
    rows = [[top for top, _ in head], [under for _, under in head]]
    rows += [_agent_figures(agent) + (_agent_rows(agent) if team else []) for agent in agents]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = []
    for name, *figures in rows:
        padded = [f"{figure:>{width}}" for figure, width in zip(figures, widths[1:], strict=True)]
        lines.append("  ".join([f"{name:<{widths[0]}}", *padded]).rstrip())
    return "\n".join([*lines, "", _AGENTS_NOTES + (_ROW_NOTES if team else "")])


def _agent_figures(agent: AgentProfile) -> list[str]:
    times = agent.times
    return [
        printable(agent.name, _AGENT_CELLS),
        f"{agent.calls:,}",
        f"{agent.failed:,}",
        f"{agent.prompt:,}",
        "-" if agent.cached is None else f"{agent.cached:,}",
        f"{agent.generated:,}",
        percent(agent.share),
        percent(agent.busy),
        "-" if times is None else _seconds(times.p50),
        "-" if times is None else _seconds(times.p95),
    ]


def _agent_rows(agent: AgentProfile) -> list[str]:
    rows = agent.rows
    if rows is None:
        return ["-"] * len(_ROWS)
    return [f"{rows.active:,}", f"{rows.inactive:,}", percent(rows.active_ratio), percent(rows.valid_share)]
