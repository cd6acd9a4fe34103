"""Where the time of a run went, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline.cli.table import duration
from trunkline.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trunkline.store.profile import AgentProfile, Profile, Stretch
    from trunkline.store.rows import Rows

__all__ = ["percent", "times_table"]

_NAME = 40


def times_table(profile: Profile) -> str:
    """The time by agent and tool, and the slowest rollouts, as plain text."""
    return "\n".join(_lines(profile))


def _lines(profile: Profile) -> Iterator[str]:
    yield f"wall time  {duration(profile.seconds)}"
    if profile.agents:
        yield f"calls out  in {percent(profile.busy)} of it, {profile.out:,.1f} on the average"
    for agent in profile.agents:
        yield f"agent {printable(agent.name, _NAME)}"
        yield from _figures(agent)
        yield from _said(agent)
    for tool in profile.tools:
        yield f"tool {printable(tool.name, _NAME)}"
        yield from _figures(tool)
    for slow in profile.slowest:
        where = f"model {_seconds(slow.llm_seconds)}, tools {_seconds(slow.tool_seconds)}, {slow.turns} turns"
        yield f"slow  {_seconds(slow.seconds)}  {printable(slow.task, _NAME)} rollout {slow.rollout}: {where}"


def _figures(one: Stretch) -> Iterator[str]:
    failed = f", {one.failed:,} failed" if one.failed else ""
    yield f"  calls     {one.calls:,}{failed}"
    yield f"  time      {duration(one.seconds)}  ({percent(one.share)} of all, {one.at_once:,.1f} at once)"
    if (times := one.times) is not None:
        yield f"  one call  p50 {_seconds(times.p50)}, p95 {_seconds(times.p95)}, max {_seconds(times.max)}"


def _said(agent: AgentProfile) -> Iterator[str]:
    if agent.calls:
        yield f"  out       in {percent(agent.busy)} of the wall time"
        unreported = f"; {agent.unreported:,} calls without usage" if agent.unreported else ""
        yield f"  tokens    {agent.prompt:,} prompt, {agent.cached:,} cached; {agent.generated:,} generated{unreported}"
    if agent.rows is not None:
        yield from _rows(agent.rows)


def _rows(rows: Rows) -> Iterator[str]:
    inactive = f", {rows.inactive:,} inactive" if rows.inactive else ""
    yield f"  rows      {rows.active:,} active{inactive}; {rows.valid:,} valid actions  ({percent(rows.valid_share)})"
    whole = f"{rows.whole:,} that whole batches carry in {rows.rounds:,} rounds"
    yield f"  active    {percent(rows.active_ratio)} of {whole}"


def percent(share: float) -> str:
    """A share, as people write it."""
    return f"{share:.1%}".replace("%", " %")


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds < 10 else duration(seconds)
