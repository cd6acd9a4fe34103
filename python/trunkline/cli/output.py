"""Standard output and error, JSON, the summary of a run, and what --dry-run prints."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from trunkline._internal.text import counted, duration, printable
from trunkline.cli.tables import TableRow, is_share, labelled, no_tokens, percent, retries, rows_of, taken_over
from trunkline.errors import InfrastructureError
from trunkline.rollout.sampling.inflight import UNKNOWN
from trunkline.scoring.notes import graded, read
from trunkline.team.team import Team, context_limit
from trunkline.tree.tokens import Tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trunkline.runner.preflight import Plan
    from trunkline.scoring.metrics import Estimate
    from trunkline.store.stats.summary import Summary
    from trunkline.store.stats.tasks import TaskSummary
    from trunkline.tree.views import Tree


def put(text: str) -> bool:
    """Print a text and a line break on standard output, and flush it.

    Where the reader has left (``| head``) or standard output was closed from the start, nothing is printed, so that the
    exit code still tells how the command ended. Characters that the output's encoding lacks are escaped.

    Returns:
        Whether there is a reader.
    """
    stream = sys.stdout
    if stream is None or stream.closed:
        return False
    try:
        try:
            stream.write(text + "\n")
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
    except BrokenPipeError:
        silence()
        return False
    except OSError as problem:
        silence()
        raise InfrastructureError(f"cannot write to standard output: {problem.strerror or problem}") from None
    return True


def tell(line: str) -> None:
    """Print one line on standard error, safe for a terminal; where the stream is closed, nowhere."""
    with contextlib.suppress(OSError, ValueError):
        click.echo(printable(line), err=True)


_SOON: Final = 1.0
"""Seconds of work after which its line is printed."""

_LARGE: Final = 32 << 20
"""Bytes of files that may take that long to read."""


@contextlib.contextmanager
def telling(line: str, *files: str | Path, quiet: bool = False) -> Iterator[None]:
    """Print a line on standard error if the work on large files takes longer than about a second."""
    timer = threading.Timer(_SOON, tell, (line,))
    timer.daemon = True
    if not quiet and sum(map(_size, files)) >= _LARGE:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _size(file: str | Path) -> int:
    try:
        return Path(file).stat().st_size
    except (OSError, ValueError):
        return 0


def silence() -> None:
    """Discard what is still to be written on standard output, since its reader has left or it failed."""
    # The buffer is written again when the interpreter ends, and would fail again.
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, sys.stdout.fileno())
        finally:
            os.close(null)


def plain(value: Any) -> Any:
    """A value as JSON holds it."""
    return msgspec.json.decode(msgspec.json.encode(value))


def summary_data(summary: Summary) -> dict[str, Any]:
    """A run's totals, with the figures that follow from them."""
    data: dict[str, Any] = plain(summary)
    data["usage"] = msgspec.structs.asdict(summary.usage)
    data["tokens"] |= _shared(data["tokens"])
    data["ids"] |= _shared(data["ids"])
    data |= {"rate": summary.rate, "prompt": summary.prompt, "cached": summary.cached, "uncached": summary.uncached}
    data |= {"estimated": summary.estimated}
    if summary.cached is None:
        data["usage"]["cached"] = None
    if summary.diversity is not None:
        data["diversity"]["design_effect"] = summary.diversity.design_effect
    data |= {"per_task": summary.per_task, "per_solved": summary.per_solved}
    return data


def _shared(tokens: dict[str, int]) -> dict[str, float]:
    counted = msgspec.convert(tokens, Tokens)
    return {"saved": counted.saved, "reuse": counted.reuse}


def task_data(task: TaskSummary) -> dict[str, Any]:
    """A task's figures."""
    data: dict[str, Any] = plain(task)
    data["usage"] = msgspec.structs.asdict(task.usage) | ({"cached": None} if task.silent else {})
    data["tokens"] |= _shared(data["tokens"])
    return data


def tree_data(tree: Tree) -> dict[str, Any]:
    """A tree with its rollouts and nodes."""
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
                "graded": [msgspec.structs.asdict(one) for one in graded(rollout.note)],
                "turns": rollout.turns,
                "nodes": tree.core.path(rollout.leaf.id),
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


def write_json(data: dict[str, Any]) -> None:
    """Print an object on stdout; what is beyond ASCII is escaped, so that no control character reaches a terminal."""
    put(json.dumps(plain(data), indent=2))


_NAME: Final = 60  # cells of a model's or a reward's name

_ENDED: Final = {
    "answer": "answered",
    "max_turns": "out of turns",
    "max_tokens": "out of tokens",
    "max_context": "out of context",
    "tool_limit": "out of tool calls",
    "filtered": "filtered",
    "censored": "cut",
    "cancelled": "cancelled",
    "retried": "asked again",
    "growing": "growing",
}
"""How endings are called in a summary; what broke is called an error."""

_FEW: Final = 3  # tools that failed which a summary names


def heading(summary: Summary, name: str = "") -> str:
    """What was run, and how it ended, in one line that is safe to print."""
    tried = counted(summary.tries, "rollout")
    state, left = summary.state, summary.tasks - summary.finished
    if state != "done":
        state = f"{summary.finished:,} tasks done, {state}"
    elif left:
        state = f"done, {left:,} not needed,"
    parts = [
        printable(summary.model, _NAME),
        counted(summary.tasks, "task") + (f" × {tried}" if summary.tries else ""),
        printable(summary.reward, _NAME),
        f"{state} in {duration(summary.seconds)}",
    ]
    said = " · ".join(filter(None, parts))
    return f"{printable(name)}   {said}" if name else said


def summary_rows(summary: Summary, name: str = "") -> list[TableRow]:
    """The lines of a run's summary below its heading, each a label and a value, safe to print; ``name`` is its file."""
    rows = [
        *_measured(summary),
        ("ended", _ended(summary)),
        *[row for row in rows_of(summary) if row[0] in _ALSO or row[0].startswith("judged by ")],
        *_work(summary),
        *_next(summary, name),
    ]
    return [(label, printable(value)) for label, value in rows]


_ALSO: Final = frozenset(
    {
        "continues",
        "groups kept",
        "tasks broken",
        "trees ended",
        "rollouts not started",
        "most frequent error",
        "forks refused",
        "chosen",
        "agent",
        "agent's requests",
        "warning",
        "depends on timing",
        "drifted prompts",
        "turns without usage",
        "budget of the run",
        "price",
        "server",
    }
)
"""Lines of the long form that a summary has as well, where there is something to say."""


def _measured(summary: Summary) -> Iterator[TableRow]:
    accuracy, best, scored = summary.accuracy, summary.best_of_n, summary.rollouts - summary.retried
    if accuracy is None:
        yield "accuracy", f"not known: 0 of {scored:,} rollouts are scored"
        return
    yield "accuracy", f"{_bracketed(accuracy)}  one rollout{' is right' if is_share(accuracy) else ''}"
    if best is not None and summary.tries > 1:
        right = math.isclose(best.value, summary.solved / max(best.tasks, 1), abs_tol=1e-9)
        fewer = f"; {summary.short:,} tasks have fewer scored" if summary.short else ""
        yield (
            f"{'pass' if right else 'best'}@{summary.tries}",
            f"{_bracketed(best)}  {'at least one' if right else 'the best'} of {summary.tries}{fewer}",
        )
    if summary.majority is not None and summary.tries > 1:
        yield f"majority@{summary.tries}", f"{_bracketed(summary.majority)}  the vote"
    if summary.scored < scored:
        yield "scored", f"{summary.scored:,} of {scored:,} rollouts"


def _bracketed(estimate: Estimate) -> str:
    """An estimate with its 95 % interval in brackets, in per cent where it is a share."""
    by, unit = (100, " %") if is_share(estimate) else (1, "")
    show = "{:.1f}".format if unit else "{:.3f}".format
    if estimate.low is None or estimate.high is None:
        return f"{show(estimate.value * by)}{unit}"
    return f"{show(estimate.value * by)}{unit}  [{show(estimate.low * by)}, {show(estimate.high * by)}]"


def _ended(summary: Summary) -> str:
    counts = dict(summary.terminations)
    parts = [f"{counts.get('answer', 0) - summary.empty:,} answered"]
    parts += [counted(summary.empty, "empty answer")] if summary.empty else []
    parts += [f"{count:,} {_ENDED[word]}" for word, count in counts.items() if word != "answer" and word in _ENDED]
    errors = [f"{word} {count:,}" for word, count in counts.items() if word not in _ENDED]
    return " · ".join([*parts, counted(summary.failed, "error") + (f" ({', '.join(errors)})" if errors else "")])


def _amount(tokens: int) -> str:
    """So many tokens: ``842``, ``15.2 k``, ``0.54 M``."""
    if tokens < 10_000:
        return f"{tokens:,}"
    return f"{tokens / 1e3:.1f} k" if tokens < 100_000 else f"{tokens / 1e6:,.2f} M"


def _work(summary: Summary) -> Iterator[TableRow]:
    usage, tokens = summary.usage, summary.tokens
    if usage.tools:
        failed = ""
        if usage.tool_errors:
            called = {name: printable(name, _NAME) for name in summary.tool_failures} | {UNKNOWN: "unknown names"}
            named = [f"{called[name]} {times:,}" for name, times in summary.tool_failures.items()]
            more = [f"{len(named) - _FEW} more"] if len(named) > _FEW else []
            failed = f", {usage.tool_errors:,} failed" + (f": {', '.join([*named[:_FEW], *more])}" if named else "")
        yield "tools", f"{usage.tools:,} calls{failed}"
    if usage.unreported >= usage.calls and not tokens.exact:
        yield "tokens", no_tokens(usage)
    else:
        cached = (
            f" ({percent(usage.cached / usage.prompt)} cached)" if summary.cached is not None and usage.prompt else ""
        )
        mark = "~" if summary.estimated else ""
        yield "tokens", f"{_amount(usage.prompt)} in{cached} · {mark}{_amount(usage.generated)} out"
        if tokens.saved and not summary.strategy.startswith("Chain("):
            yield "sharing", f"saved {percent(tokens.reuse)} of the tokens"
    if usage.retries or summary.retry_causes:
        yield "retries", retries(summary)
    busy = summary.llm_seconds + summary.tool_seconds
    tools = f", tools {100 * summary.tool_seconds / busy:.0f} %" if usage.tools and busy else ""
    taken = summary.resources
    memory = f", at most {taken.memory >> 20:,} MiB of memory" if taken is not None and taken.memory else ""
    yield "time", f"{summary.rate:,.1f} rollouts/s{tools}{memory}"


def _next(summary: Summary, name: str) -> Iterator[TableRow]:
    """The command that most likely comes next."""
    if not name:
        return
    file = shlex.quote(printable(name))
    measured = summary.best_of_n.tasks if summary.best_of_n is not None else 0
    if summary.state not in {"done", "exhausted"}:
        yield "next", f"trunkline resume {file}"
    elif summary.failed:
        yield "next", f"trunkline resume {file} --retry broken    {counted(summary.failed, 'try', 'tries')} that broke"
    elif measured > summary.solved:
        # Of tasks with fewer scored tries some may be solved, and are not counted here.
        unsolved = "tasks" if summary.short else counted(measured - summary.solved, "task")
        yield "next", f"trunkline show {file} --wrong    {unsolved} that no rollout solved"


def print_summary(summary: Summary, name: str = "", *, as_json: bool = False, verbose: bool = False) -> None:
    """Print a run's totals on stdout: what matters, all of it where ``verbose``, or one JSON object."""
    if as_json:
        write_json(summary_data(summary))
        return
    rows = rows_of(summary) if verbose else summary_rows(summary, name)
    if sys.stdout is None or sys.stdout.closed or not sys.stdout.isatty():
        put(f"{heading(summary, name)}\n{labelled(rows)}")
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout)
    width = max(len(label) for label, _value in rows)
    with console.capture() as drawn:
        # Soft wrap leaves long lines to the terminal, so that they can be copied whole.
        console.print(Text(heading(summary, name), "bold"), soft_wrap=True)
        for label, value in rows:
            style = _COLOURS.get(label, "")
            console.print(Text.assemble((f"{label:<{width}}", "bold"), "  ", (value, style)), soft_wrap=True)
    put(drawn.get().removesuffix("\n"))


_COLOURS: Final = {"accuracy": "green", "next": "cyan", "most frequent error": "red", "warning": "yellow"}


_EVERY_TEAM: Final = tuple(field.name for field in msgspec.structs.fields(Team))
"""Settings that every team has."""


def print_plan(plan: Plan, *, as_json: bool = False) -> None:
    """Print on stdout what a run would do, as a table or as one JSON object."""
    if as_json:
        put(json.dumps(msgspec.to_builtins(plan), indent=2))
        return
    put(labelled((label, printable(value)) for label, value in _rows(plan)))


def _rows(plan: Plan) -> Iterator[tuple[str, str]]:
    agent, strategy, team = (plan.settings[part] for part in ("agent", "strategy", "team"))
    yield "dry run", "nothing was sent, and no file made"
    refill = plan.settings["refill"]
    groups = f" at most, until {refill['groups']:,} groups were kept" if refill else ""
    yield "tasks", f"{plan.tasks:,}{groups}"
    if plan.taken is not None:
        yield "continues", taken_over(plan.taken)
    llm, others = plan.settings["llm"], plan.settings["llms"] or {}
    yield "model", agent["model"] + ("" if llm is None else f" at {_where(llm)}")
    yield from ((f"llm {name}", _where(other)) for name, other in others.items())
    yield from [("tools", _tools(agent) or "none")] if team is None else _team(plan.settings["program"], team)
    yield from ((f"mcp {name}", _mcp(server)) for name, server in plan.settings.get("mcp", {}).items())
    yield "strategy", strategy["kind"] + _options(strategy["options"])
    yield "rollouts per task", plan.formula
    yield "rollouts", f"{plan.tasks * plan.rollouts:,} at most"
    yield "model turns", f"{plan.calls:,} at most  ({agent['max_turns']} per rollout)"
    if plan.generated is None:
        yield "generated tokens", "no bound: set --max-tokens"
    else:
        yield "generated tokens", f"{plan.generated:,} at most  ({plan.generated // plan.calls:,} per turn)"
    for label, name in (("budget of the run", "budget"), ("budget of a task", "task_budget")):
        if given := plan.settings[name]:
            yield label, ", ".join(f"{currency} {limit:,g}" for currency, limit in given.items())
    stopping = plan.settings["stopping"]
    if stopping["enough"] is not None:
        yield "enough", f"{stopping['enough']} of {plan.rollouts}, the others: {stopping['tail']}"
    if stopping["settled"] is not None:
        yield "stop when", f"{stopping['settled']}"
    if plan.settings["program"] and team is None:
        yield "program", plan.settings["program"]
    yield "reward", plan.settings["reward"] or "none: rollouts stay unscored"
    for judging in plan.settings["filters"]:
        yield "filter", judging["kind"] + _options(judging["options"])
    yield "workers", f"{plan.workers}" if plan.workers else "none but this process"
    seed = plan.settings["seed"]
    yield "seed", "drawn when the run starts" if seed is None else f"{seed}"
    there = "" if plan.finished is None else f", which would be resumed: {plan.finished:,} tasks are finished"
    yield "run file", (plan.out or "a temporary one") + there


def _where(llm: Mapping[str, Any]) -> str:
    return ", ".join(llm.get("base_urls", [llm.get("kind", "")]))


def _options(options: Mapping[str, Any] | str) -> str:
    if isinstance(options, str):
        return ""
    return f" ({', '.join(f'{name}={value}' for name, value in options.items())})" if options else ""


def _mcp(server: Mapping[str, Any]) -> str:
    """What is known of an MCP server; what it says of its tools is shown, and counts for nothing."""
    hints = [name for name, hint in server["tools"].items() if hint["says_read_only"]]
    said = f"; says that these only read: {', '.join(hints)}" if hints else ""
    state = "stateless" if server["stateless"] else f"effects {server['effects']}"
    return f"{counted(len(server['tools']), 'tool')}, {state}, protocol {server['version']}{said}"


def _tools(agent: Mapping[str, Any]) -> str:
    return ", ".join(tool["function"]["name"] for tool in agent["tools"])


def _team(name: str, team: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "team", name + _options({setting: value for setting, value in team.items() if setting not in _EVERY_TEAM})
    yield from (("role " + role, _role(described)) for role, described in team["roles"].items())
    off = [switch for switch in _EVERY_TEAM if team.get(switch) is False]
    yield "switches", f"all on but {', '.join(off)}" if off else "all on"
    if limit := context_limit(team["max_context_length"], team.get("tokenizer")):
        yield "context", printable(limit, 200)


def _role(role: Mapping[str, Any]) -> str:
    asked = role["model"] + (f" at {role['llm']}" if role.get("llm") else "")
    sampled = [f"{name} {value}" for name, value in role["sampling"].items() if value is not None]
    tools = [f"tools {_tools(role)}"] if role["tools"] else []
    return ", ".join([asked, *sampled, *tools])
