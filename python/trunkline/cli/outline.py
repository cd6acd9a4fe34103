"""What ``trunkline run --dry-run`` prints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline.cli.output import put
from trunkline.cli.table import taken_over
from trunkline.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trunkline.runtime.outline import Outline

__all__ = ["print_outline"]


def print_outline(outline: Outline, *, as_json: bool = False) -> None:
    """Print what a run would do on stdout.

    Args:
        outline: What it would do.
        as_json: As one JSON object.
    """
    if as_json:
        put(json.dumps(msgspec.to_builtins(outline), indent=2))
        return
    rows = list(_rows(outline))
    width = max(len(label) for label, _ in rows)
    put("\n".join(f"{label:<{width}}  {printable(value)}" for label, value in rows))


def _rows(outline: Outline) -> Iterator[tuple[str, str]]:
    """The lines, each a label and a value."""
    agent, strategy, llm = (outline.settings[part] for part in ("agent", "strategy", "llm"))
    yield "dry run", "nothing was sent, and no file made"
    refill = outline.settings["refill"]
    groups = f" at most, until {refill['groups']:,} groups were kept" if refill else ""
    yield "tasks", f"{outline.tasks:,}{groups}"
    if outline.taken is not None:
        yield "continues", taken_over(outline.taken)
    yield "model", f"{agent['model']} at {', '.join(llm.get('base_urls', [llm.get('kind', '')]))}"
    yield "tools", ", ".join(tool["function"]["name"] for tool in agent["tools"]) or "none"
    yield "strategy", strategy["kind"] + _options(strategy["options"])
    yield "rollouts a task", outline.formula
    yield "rollouts", f"{outline.tasks * outline.rollouts:,} at most"
    yield "model turns", f"{outline.calls:,} at most  ({agent['max_turns']} a rollout)"
    limit = agent["sampling"].get("max_tokens")
    if outline.generated is None:
        yield "generated tokens", "no bound: set --max-tokens"
    else:
        yield "generated tokens", f"{outline.generated:,} at most  ({limit:,} a turn)"
    for label, name in (("budget of the run", "budget"), ("budget of a task", "task_budget")):
        if given := outline.settings[name]:
            yield label, ", ".join(f"{currency} {limit:,g}" for currency, limit in given.items())
    stopping = outline.settings["stopping"]
    if stopping["enough"] is not None:
        yield "enough", f"{stopping['enough']} of {outline.rollouts}, the others: {stopping['tail']}"
    if stopping["settled"] is not None:
        yield "settled", f"{stopping['settled']}"
    if outline.settings["program"]:
        yield "program", outline.settings["program"]
    yield "reward", outline.settings["reward"] or "none: rollouts stay unscored"
    for judging in outline.settings["filters"]:
        yield "filter", judging["kind"] + _options(judging["options"])
    yield "workers", f"{outline.workers}" if outline.workers else "none but this process"
    seed = outline.settings["seed"]
    yield "seed", "drawn when the run starts" if seed is None else f"{seed}"
    there = "" if outline.finished is None else f", which would be resumed: {outline.finished:,} tasks are finished"
    yield "run file", (outline.out or "a temporary one") + there


def _options(options: Mapping[str, Any] | str) -> str:
    """A strategy's options behind its name, as far as they are data."""
    if isinstance(options, str):
        return ""
    return f" ({', '.join(f'{name}={value}' for name, value in options.items())})" if options else ""
