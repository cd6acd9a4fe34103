"""Standard output and error, JSON, and what --dry-run prints."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from trunkline._internal.text import printable
from trunkline.cli.tables import labelled, taken_over
from trunkline.errors import InfrastructureError
from trunkline.scoring.notes import graded, read
from trunkline.team.team import Team, context_limit
from trunkline.tree.tokens import Tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trunkline.runner.preflight import Plan
    from trunkline.store.stats.summary import Summary
    from trunkline.store.stats.tasks import TaskSummary
    from trunkline.tree.views import Tree


def put(text: str) -> None:
    """Print a text and a line break on standard output, and flush it.

    Where the reader has left (``| head``) or standard output was closed from the start, nothing is printed, so that the
    exit code still tells how the command ended. Characters that the output's encoding lacks are escaped.
    """
    stream = sys.stdout
    if stream is None or stream.closed:
        return
    try:
        try:
            stream.write(text + "\n")
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
    except BrokenPipeError:
        silence()
    except OSError as problem:
        silence()
        raise InfrastructureError(f"cannot write to standard output: {problem.strerror or problem}") from None


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
