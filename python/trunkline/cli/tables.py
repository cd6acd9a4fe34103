"""Tables for a terminal: summary, tasks, calls, metrics, agents, times."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, TypeVar

from trunkline._internal.text import by_frequency, cells, counted, duration, printable
from trunkline.llm.servers import REPORTS_CACHED
from trunkline.scoring.confidence import NEEDS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from trunkline.scoring.metrics import Estimate
    from trunkline.scoring.metrics.at_k import PerSolved
    from trunkline.scoring.metrics.comparison import Calibration, Ratio
    from trunkline.scoring.notes import ExternalCalls
    from trunkline.store.stats.calls import EndpointSummary, Spending, Times
    from trunkline.store.stats.metrics import RunMetrics
    from trunkline.store.stats.profile import AgentProfile, Profile, Stretch
    from trunkline.store.stats.summary import Resources, Summary, TakenOver
    from trunkline.store.stats.tasks import Filtered, Length, TaskSummary
    from trunkline.tree.tokens import Tokens
    from trunkline.types import Usage


T = TypeVar("T")
TableRow = tuple[str, str]


def labelled(rows: Iterable[TableRow], indent: str = "") -> str:
    """Rows of a label and a value, one line each, with the values below each other; lines are not wrapped."""
    listed = list(rows)
    width = max(len(label) for label, _ in listed)
    return "\n".join(f"{indent}{label:<{width}}  {value}".rstrip() for label, value in listed)


def grid(rows: Iterable[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Rows of as many cells, one line each; columns are flush right but for those in ``left``."""
    listed = list(rows)
    widths = [max(map(cells, column)) for column in zip(*listed, strict=True)]
    lines = []
    for row in listed:
        padded = []
        for column, (text, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - cells(text))
            padded.append(text + space if column in left else space + text)
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def percent(share: float) -> str:
    """A share in per cent: ``12.5 %``."""
    return f"{share * 100:.1f} %"


def interval(value: float, low: float | None, high: float | None, show: Callable[[float], str], unit: str = "") -> str:
    """A value with its 95 % interval, where that is known."""
    ends = "" if low is None or high is None else f"  (95 %: {show(low)} to {show(high)})"
    return f"{show(value)}{unit}{ends}"


def money(amount: float) -> str:
    """An amount of money with at least four significant digits, and at least cents."""
    decimals = 2 if amount <= 0 else min(max(2, 3 - math.floor(math.log10(amount))), 12)
    return f"{amount:,.{decimals}f}"


CACHE_FLAGS: Final = ", ".join(f"{software}: {flag}" for software, flag in REPORTS_CACHED.items())
"""How servers are told to report what they had cached."""


def cost(spent: Spending, details: str = "", mark: str = "") -> str:
    """What some calls cost, then ``details``, and how many calls are not priced; ``mark`` is ``~`` for an estimate."""
    told = mark + money(spent.money) + details if spent.known else "not known"
    if spent.unpriced:
        told += f"; not priced: {counted(spent.unpriced, 'request')} whose usage is not known"
    if spent.silent:
        whole = f"{counted(spent.silent, 'request')} whose server does not report cached tokens"
        told += f"; priced as uncached: {whole} ({CACHE_FLAGS})"
    return told


def retries(summary: Summary) -> str:
    """How many requests were sent again, and after what."""
    causes = by_frequency(summary.retry_causes)
    # Requests for several draws that were given up are in no rollout.
    total = max(summary.usage.retries, sum(summary.retry_causes.values()))
    return f"{total:,}{f': {causes}' if causes else ''}"


def is_share(estimate: Estimate) -> bool:
    """Whether an estimate reads as per cent: rewards need not be shares, only those between 0 and 1 are."""
    return all(0 <= end <= 1 for end in (estimate.value, estimate.low, estimate.high) if end is not None)


def share(estimate: Estimate | None, missing: str, *, percent: bool = True) -> str:
    """An estimate with its interval, in per cent where it is a share and ``percent``; ``missing`` without one."""
    if estimate is None:
        return missing
    ends = estimate.value, estimate.low, estimate.high
    if percent and is_share(estimate):
        return interval(*ends, lambda end: f"{end * 100:.1f}", " %")
    return interval(*ends, _three_decimals)


def _three_decimals(value: float) -> str:
    return f"{value:.3f}"


def chosen_tries(chosen: int, first: Estimate | None = None) -> str:
    """How many tries were asked again because of their result, and the accuracy of one try without that."""
    said = f"{counted(chosen, 'try', 'tries')} asked again because of their result"
    return said if first is None else f"{said}; first-try accuracy {share(first, '-')}"


def _scores(summary: Summary) -> Iterator[TableRow]:
    missing = f"0 of {summary.rollouts - summary.retried:,} scored"
    yield "accuracy of one try", share(summary.accuracy, missing)
    if summary.accuracy is None:
        return
    best = share(summary.best_of_n, missing)
    if summary.short:
        best += f"  ({summary.short:,} of {summary.finished:,} tasks have fewer than {summary.tries} scored tries)"
    yield f"best of {summary.tries}", best
    yield f"majority of {summary.tries}", share(summary.majority, missing)
    if summary.scored < summary.rollouts - summary.retried:
        yield "scored", f"{summary.scored:,} of {summary.rollouts - summary.retried:,} rollouts"
    if summary.chosen:
        yield "chosen", chosen_tries(summary.chosen, summary.first_try)


def _diversity(summary: Summary) -> Iterator[TableRow]:
    found = summary.diversity
    if found is None or summary.tries < 2:
        return
    yield "distinct first actions per task", f"{found.actions.found:.1f} of {found.actions.of:.1f}"
    yield "distinct answers per task", f"{found.answers.found:.1f} of {found.answers.of:.1f}"
    if not summary.scored:
        return
    if found.effective is None or found.rho is None:
        yield "effective tries per task", "not known: rewards do not vary, or each task has one initial chain only"
        return
    why = "each is a chain of its own"
    if found.shared:
        why = f"rewards of rollouts off one initial chain correlate by {found.rho:.2f}"
    yield "effective tries per task", f"{found.effective:.1f} of {found.scored:.1f}  ({why})"


def _lengths(summary: Summary) -> Iterator[TableRow]:
    if summary.cut is None:
        return
    if summary.kept is not None:
        yield "mean length, ended", _length(summary.kept)
    yield "mean length, cut", f"{_length(summary.cut)}; stopping early favours short rollouts"


def _length(length: Length) -> str:
    generated = "" if length.generated is None else f", {length.generated:,.0f} generated tokens"
    return f"{length.turns:.1f} turns{generated}  ({counted(length.rollouts, 'rollout')})"


def _costs(summary: Summary) -> Iterator[TableRow]:
    tokens, usage = summary.tokens, summary.usage
    counted = tokens.flat or usage.prompt or usage.generated
    if not counted or (not tokens.exact and usage.unreported >= usage.calls):
        yield "tokens (server usage)", no_tokens(usage)
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
        yield "reuse", f"{percent(tokens.reuse)}  ({tokens.saved:,} tokens shared)"
        if usage.unreported:
            yield "turns without usage", f"{usage.unreported:,}, counted in no total"
        if usage.unreported < usage.calls:
            yield from _prompts(summary)
    chains = f"  ({summary.paths:,} if every rollout were a chain)" if summary.paths > usage.calls else ""
    yield "model turns", f"{usage.calls:,}{chains}"
    failed = f", {usage.tool_errors:,} of them failed" if usage.tool_errors else ""
    again = f"; {summary.replayed:,} more were run again for forks" if summary.replayed else ""
    yield "tool calls", f"{usage.tools:,}{failed}{again}"
    if summary.agent_calls is not None:
        yield from _agent_calls(summary.agent_calls)
    if 0 < usage.tools <= usage.tool_errors:
        unseen = "every tool call failed, so the model saw no tool result"
        yield "warning", f"{unseen}: the answers are its own; check the tools"
    yield "retries", retries(summary)
    drifts = [(usage.bridged, "bridged"), (usage.realigned, "realigned"), (usage.forked, "forked")]
    if any(count for count, _ in drifts):
        yield "drifted prompts", ", ".join(f"{count:,} {what}" for count, what in drifts if count)
    if summary.spent is not None:
        yield "price", cost(summary.spent, _parts(summary), "~" if summary.estimated else "")


def _agent_calls(calls: ExternalCalls) -> Iterator[TableRow]:
    """What is known of the calls of an agent of another framework, where there is something to say."""
    spent = f", {calls.seconds:,.1f} CPU s of agents" if calls.seconds else ""
    if calls.again or spent:
        yield "agent", f"replayed {counted(calls.replayed, 'call')} in {counted(calls.again, 'start')}{spent}"
    if calls.diverged:
        branched = f"; {counted(calls.branched, 'branch', 'branches')} went on from there" if calls.branched else ""
        yield (
            "warning",
            f"{calls.diverged:,} of these starts diverged from the record: agent_nondeterministic{branched}",
        )
    told = {
        "differ in what masks cover": calls.masked,
        "hold replies in other words": calls.rewritten,
        "were not alone in flight, so nothing forks there and their order is not controlled": calls.beside,
        "asked for something that is not offered": calls.refused,
    }
    if any(told.values()):
        yield "agent's requests", "; ".join(f"{count:,} {what}" for what, count in told.items() if count)


def no_tokens(usage: Usage) -> str:
    """Why no tokens are known of some calls."""
    return "not reported by the server" if usage.calls else "none, no request was answered"


def _prompts(summary: Summary) -> Iterator[TableRow]:
    usage, uncached = summary.usage, summary.usage.prompt - summary.usage.cached
    if summary.cached is None:
        yield "prompt tokens by turn", f"{usage.prompt:,}, cached not reported ({CACHE_FLAGS})"
        if summary.prompt != usage.prompt:
            yield "prompt tokens by request", f"{summary.prompt:,}, cached not reported"
        return
    share = f"  ({percent(usage.cached / usage.prompt)})" if usage.prompt else ""
    yield "prompt tokens by turn", f"{usage.prompt:,}, {usage.cached:,} of them cached{share}, {uncached:,} not"
    silent = f"; {counted(summary.silent, 'request')} did not say" if summary.silent else ""
    if summary.prompt and (silent or (summary.prompt, summary.uncached) != (usage.prompt, uncached)):
        yield "prompt tokens by request", f"{summary.prompt:,}, {summary.uncached:,} of them not cached{silent}"


def _parts(summary: Summary) -> str:
    shares = [(summary.per_task, "per task"), (summary.per_solved, "per solved task")]
    shown = [f"{money(amount)} {what}" for amount, what in shares if amount is not None]
    return f"  ({', '.join(shown)})" if shown else ""


def taken_over(taken: TakenOver) -> str:
    """The earlier run, and what was taken over of it."""
    on = f", {taken.growing:,} of which had not ended" if taken.growing else ""
    trees, rollouts = counted(taken.trees, "tree"), counted(taken.rollouts, "rollout")
    return f"{taken.run}: {trees}, {rollouts} taken over{on}"


def _filtered(found: Filtered) -> str:
    """What a filter did, in one line."""
    groups = counted(found.groups, "whole group")
    parts = [
        f"{counted(found.masked, 'rollout')} masked" if found.masked else "",
        f"{found.dropped:,} dropped" + (f" ({groups})" if found.groups else "") if found.dropped else "",
        f"{found.penalised:,} penalised" if found.penalised else "",
        f"{counted(found.failed, 'group')} not judged" if found.failed else "",
    ]
    return ", ".join(filter(None, parts))


def _workers(events: Mapping[str, int]) -> str:
    """What happened to workers, and to tasks because of them; empty if nothing did."""
    told = {
        "died": "{} died",
        "hung": "{} hung",
        "recycled": "{} held too much memory",
        "given up": "{} places given up",
        "stale": "{} late batches dropped",
    }
    parts = [text.format(f"{events[kind]:,}") for kind, text in told.items() if kind in events]
    guilty = events.get("quarantined", 0)
    return ", ".join([*parts, f"{counted(guilty, 'task')} quarantined"] if guilty else parts)


def _endings(summary: Summary) -> Iterator[TableRow]:
    """How trees ended, unless all finished or broke; what no budget paid for; what depended on timing."""
    if set(summary.ended) - {"finished", "broken"}:
        yield "trees ended", ", ".join(f"{word} {count:,}" for word, count in summary.ended.items())
    if summary.refused:
        yield "rollouts not started", f"{summary.refused:,}, no budget was left"
    if summary.timing:
        yield "depends on timing", ", ".join(summary.timing)
    budget = summary.budget
    if budget is not None:
        refused = f"; refused {budget.refused:,} times, first: {budget.closed}" if budget.refused else ""
        yield "budget of the run", ", ".join(budget.lines("~" if summary.estimated else "")) + refused


def _resources(taken: Resources | None) -> Iterator[TableRow]:
    """The memory of a run, and what model servers said of themselves."""
    if taken is None:
        return
    if taken.memory:
        yield "memory", f"at most {taken.memory >> 20:,} MiB in all processes of the run"
    for url, use in taken.servers.items():
        cache = "" if use.cache is None else f", its cache {percent(use.cache)} full"
        queue = f"{use.running:,.1f} requests at once, {use.waiting:,.1f} waiting (at most {use.longest:,})"
        yield "server", f"{url}: {queue}{cache}"


def rows_of(summary: Summary) -> list[TableRow]:
    """The lines of a run's summary, each a label and a value, safe to print."""
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
    endings = dict(summary.terminations)
    if summary.empty:
        endings["answer"] -= summary.empty
        endings["empty answer"] = summary.empty
    ended = ", ".join(f"{word} {count:,}" for word, count in endings.items() if count)
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
    rows.extend(_resources(summary.resources))
    return [(label, printable(value)) for label, value in rows]


def table(summary: Summary) -> str:
    """A run's summary as plain text."""
    return labelled(rows_of(summary))


_UNNAMED = "(no name)"


def calls_table(endpoints: Sequence[EndpointSummary]) -> str:
    """What each endpoint answered, as plain text: its name, and its figures under it."""
    lines: list[str] = []
    for endpoint in endpoints:
        lines += [printable(endpoint.endpoint) or _UNNAMED, labelled(_endpoint_rows(endpoint), "  ")]
    return "\n".join(lines) if lines else "no request was made"


def _endpoint_rows(endpoint: EndpointSummary) -> Iterator[tuple[str, str]]:
    failed = f", {endpoint.failed:,} more failed after all retries" if endpoint.failed else ""
    yield "requests", f"{endpoint.requests:,}, {endpoint.retries:,} retries{failed}"
    if endpoint.kept:
        yield "from the cache", f"{endpoint.kept:,} more, in none of the figures below"
    if endpoint.probes:
        why = "to find out what the endpoint can do; their tokens are counted below"
        yield "probes", f"{endpoint.probes:,} more, {why}"
    if endpoint.draws != endpoint.requests:
        yield "completions", f"{endpoint.draws:,}"
    if endpoint.unreported < endpoint.requests or endpoint.prompt:
        if endpoint.cached is None:
            told = f"cached not reported ({CACHE_FLAGS})"
        else:
            share = f"  ({percent(endpoint.cached / endpoint.prompt)})" if endpoint.prompt else ""
            silent = f"; {counted(endpoint.silent, 'request')} did not say" if endpoint.silent else ""
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
    return ", ".join(f"{name} {duration(getattr(times, name), 3)}" for name in ("p50", "p95", "max"))


_MEASURES_NOTES: Final = """\
pass@k: at least one of k tries is right (a reward of 1 or more); pass^k: all of them are; majority@k: a vote of k tries
each is the mean over all ways to pick k of a task's scored tries, and the 95 % intervals take tasks as the sample
tasks: those with k scored tries; a try that broke is not scored, and counts neither as right nor as wrong"""

_PARTS: Final = "part: what one of the rewards gave that the reward is made of, before its weight"

MeasureRow = tuple[str, str, str]


def metrics_table(found: RunMetrics) -> str:
    """Every metric of a run, as plain text, one line each."""
    if found.accuracy is None and not found.parts:
        return "no metrics: nothing is scored"
    rows = [("metric", "tasks", "value"), *_measure_rows(found)]
    return "\n".join([grid(rows, (0, 2)), "", *([_PARTS] if found.parts else []), _MEASURES_NOTES])


def calibration_table(name: str, found: Calibration | None, instead: str = "") -> str:
    """How a confidence goes together with right tries, as plain text."""
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
    table = [labelled(lines)]
    if found.bins:
        table += ["", f"{'confidence':<15}  {'tries':>7}  {'mean':>6}  {'right':>6}"]
        table += [
            f"{f'{row.low:.3f} to {row.high:.3f}':<15}  {row.tries:>7,}  {row.confidence:>6.3f}  {row.right:>6.3f}"
            for row in found.bins
        ]
    return "\n".join(table)


def _ratio(found: Ratio) -> str:
    return interval(found.value, found.low, found.high, _three_decimals)


def _measure_rows(found: RunMetrics) -> Iterator[MeasureRow]:
    yield from _measure_row("accuracy of one try", found.accuracy)
    for name, mean in found.parts.items():
        yield from _measure_row(f"part {printable(name, 40)}", mean)
    yield from _of_k("pass@", found.pass_at)
    yield from _of_k("pass^", found.pass_hat)
    yield from _of_k("majority@", found.majority)
    yield from _measure_row("best of all", found.best)
    notes = f"; {found.unreported:,} calls without usage are not in it" if found.unreported else ""
    yield from _per("generated tokens per solved task", found.generated_per_solved, notes, "{:,.0f}".format)
    yield from _per("tokens per solved task", found.tokens_per_solved, notes, "{:,.0f}".format)
    if found.cost_per_solved is not None:
        yield from _per("price per solved task", found.cost_per_solved, "", money)


def _of_k(name: str, by_k: Mapping[int, Estimate]) -> Iterator[MeasureRow]:
    for k, estimate in by_k.items():
        yield from _measure_row(f"{name}{k}", estimate)


def _measure_row(name: str, estimate: Estimate | None) -> Iterator[MeasureRow]:
    yield name, "-" if estimate is None else f"{estimate.tasks:,}", share(estimate, "-")


def _per(name: str, found: PerSolved | None, notes: str, show: Callable[[float], str]) -> Iterator[MeasureRow]:
    if found is None:
        yield name, "-", "not known: no task is solved, or no server reported usage"
    else:
        yield name, f"{found.tasks:,}", interval(found.value, found.low, found.high, show) + notes


_TASK_CELLS: Final = 24  # cells of a task's id that are shown
_TASKS: Final[tuple[tuple[str, str, Callable[[TaskSummary], str]], ...]] = (
    ("task", "", lambda task: printable(task.task, _TASK_CELLS)),
    ("", "rollouts", lambda task: f"{task.rollouts:,}"),
    ("", "scored", lambda task: f"{task.scored:,}"),
    ("", "reward", lambda task: "-" if task.reward is None else f"{task.reward:.3f}"),
    ("tokens", "flat", lambda task: _counted(task.tokens.flat, task.tokens)),
    ("", "tree", lambda task: _counted(task.tokens.tree, task.tokens)),
    ("generated", "flat", lambda task: _counted(task.tokens.flat_generated, task.tokens)),
    ("", "tree", lambda task: _counted(task.tokens.tree_generated, task.tokens)),
    ("", "reuse", lambda task: percent(task.tokens.reuse)),
    ("prompt", "cached", lambda task: "-" if task.silent else f"{task.usage.cached:,}"),
    ("", "uncached", lambda task: "-" if task.silent else f"{task.usage.prompt - task.usage.cached:,}"),
    ("turns", "chains", lambda task: f"{task.paths:,}"),
    ("", "made", lambda task: f"{task.usage.calls:,}"),
    ("distinct", "actions", lambda task: f"{task.actions:,}"),
    ("", "answers", lambda task: f"{task.answers:,}"),
    ("", "effective", lambda task: "-" if task.effective is None else f"{task.effective:.1f}"),
)
"""Columns of the table of tasks: two lines of a head, and the cell of a task."""

_TASKS_NOTES: Final = """\
flat: as if every rollout were a chain of its own; tree: shared parts once; ~ where it is server usage, not token ids
chains: turns on all paths; made: turns that were asked for; cached, uncached: prompt tokens of these turns, - where the
server does not report what it had cached
made, cached and uncached are of this run alone; of draws in one request all but the first count their prompt as cached
effective: independent tries that would say as much as the scored ones; - where that is not known"""


def tasks_table(tasks: Sequence[TaskSummary]) -> str:
    """The figures of each task, as plain text, one line a task."""
    if not tasks:
        return "no task is finished"
    return f"{_columns(_TASKS, tasks)}\n\n{_TASKS_NOTES}"


def _counted(amount: int, tokens: Tokens) -> str:
    return f"{'' if tokens.exact else '~'}{amount:,}"


def _columns(columns: Iterable[tuple[str, str, Callable[[T], str]]], items: Iterable[T]) -> str:
    above, below, shown = zip(*columns, strict=True)
    return grid([above, below, *([show(item) for show in shown] for item in items)])


_TIMES_CELLS = 40


def times_table(profile: Profile) -> str:
    """The time by agent and tool, and the slowest rollouts, as plain text."""
    return "\n".join(_lines(profile))


def _lines(profile: Profile) -> Iterator[str]:
    yield f"wall time  {duration(profile.seconds)}"
    if profile.agents:
        yield f"calls      in flight in {percent(profile.busy)} of it, {profile.out:,.1f} on average"
    for agent in profile.agents:
        yield f"agent {printable(agent.name, _TIMES_CELLS)}"
        yield from _stretch_figures(agent)
        yield from _note(agent)
    for tool in profile.tools:
        yield f"tool {printable(tool.name, _TIMES_CELLS)}"
        yield from _stretch_figures(tool)
    for slow in profile.slowest:
        where = f"model {duration(slow.llm_seconds, 3)}, tools {duration(slow.tool_seconds, 3)}, {slow.turns} turns"
        yield f"slow  {duration(slow.seconds, 3)}  {printable(slow.task, _TIMES_CELLS)} rollout {slow.rollout}: {where}"


def _stretch_figures(one: Stretch) -> Iterator[str]:
    failed = f", {one.failed:,} failed" if one.failed else ""
    yield f"  calls     {one.calls:,}{failed}"
    yield f"  time      {duration(one.seconds)}  ({percent(one.share)} of all, {one.at_once:,.1f} at once)"
    if one.times is not None:
        yield f"  one call  {_times(one.times)}"


def _note(agent: AgentProfile) -> Iterator[str]:
    if agent.calls:
        yield f"  in flight in {percent(agent.busy)} of the wall time"
        unreported = f"; {agent.unreported:,} calls without usage" if agent.unreported else ""
        cached = "cached not reported" if agent.cached is None else f"{agent.cached:,} cached"
        yield f"  tokens    {agent.prompt:,} prompt, {cached}; {agent.generated:,} generated{unreported}"
    if (rows := agent.rows) is None:
        return
    inactive = f", {rows.inactive:,} inactive" if rows.inactive else ""
    yield f"  rows      {rows.active:,} active{inactive}; {rows.valid:,} valid actions  ({percent(rows.valid_share)})"
    whole = f"{rows.whole:,} that whole batches carry in {rows.rounds:,} rounds"
    yield f"  active    {percent(rows.active_ratio)} of {whole}"


_AGENT_CELLS: Final = 24  # cells of a name that are shown
_AGENTS: Final[tuple[tuple[str, str, Callable[[AgentProfile], str]], ...]] = (
    ("agent", "", lambda agent: printable(agent.name, _AGENT_CELLS)),
    ("", "calls", lambda agent: f"{agent.calls:,}"),
    ("", "failed", lambda agent: f"{agent.failed:,}"),
    ("tokens", "prompt", lambda agent: f"{agent.prompt:,}"),
    ("", "cached", lambda agent: "-" if agent.cached is None else f"{agent.cached:,}"),
    ("", "generated", lambda agent: f"{agent.generated:,}"),
    ("time", "of all", lambda agent: percent(agent.share)),
    ("", "in flight", lambda agent: percent(agent.busy)),
    ("call", "mean", lambda agent: duration(agent.seconds / agent.calls, 3) if agent.calls else "-"),
    ("", "p50", lambda agent: "-" if agent.times is None else duration(agent.times.p50, 3)),
    ("", "p95", lambda agent: "-" if agent.times is None else duration(agent.times.p95, 3)),
)
_ROWS: Final[tuple[tuple[str, str, Callable[[AgentProfile], str]], ...]] = (
    ("rows", "active", lambda agent: "-" if agent.rows is None else f"{agent.rows.active:,}"),
    ("", "inactive", lambda agent: "-" if agent.rows is None else f"{agent.rows.inactive:,}"),
    ("", "ratio", lambda agent: "-" if agent.rows is None else percent(agent.rows.active_ratio)),
    ("", "valid", lambda agent: "-" if agent.rows is None else percent(agent.rows.valid_share)),
)
_AGENTS_NOTES: Final = """\
of all: share of the time in models and tools; in flight: share of the wall time with a call of the agent in flight"""
_ROW_NOTES: Final = """
active: rows that something depends on; ratio: their share of the rows that a loop over whole batches carries"""


def agents_table(agents: Sequence[AgentProfile], *, notes: bool = True) -> str:
    """The figures of each agent, as plain text, one line an agent; under them what the columns mean."""
    team = any(agent.rows is not None for agent in agents)
    columns = _columns(_AGENTS + _ROWS if team else _AGENTS, agents)
    return f"{columns}\n\n{_AGENTS_NOTES}{_ROW_NOTES if team else ''}" if notes else columns
