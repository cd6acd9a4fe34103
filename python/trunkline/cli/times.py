"""Where the time of a run went, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline.cli.table import duration
from trunkline.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trunkline.store.profile import Profile, Stretch

__all__ = ["times_table"]

_NAME = 40


def times_table(profile: Profile) -> str:
    """The time by agent and tool, and the slowest rollouts, as plain text."""
    return "\n".join(_lines(profile))


def _lines(profile: Profile) -> Iterator[str]:
    yield f"wall time  {duration(profile.seconds)}"
    for kind, stretches in (("agent", profile.agents), ("tool", profile.tools)):
        for one in stretches:
            yield f"{kind} {printable(one.name, _NAME)}"
            yield from _figures(one)
    for slow in profile.slowest:
        where = f"model {_seconds(slow.llm_seconds)}, tools {_seconds(slow.tool_seconds)}, {slow.turns} turns"
        yield f"slow  {_seconds(slow.seconds)}  {printable(slow.task, _NAME)} rollout {slow.rollout}: {where}"


def _figures(one: Stretch) -> Iterator[str]:
    failed = f", {one.failed:,} failed" if one.failed else ""
    yield f"  calls     {one.calls:,}{failed}"
    share = f"{one.share:.1%}".replace("%", " %")
    yield f"  time      {duration(one.seconds)}  ({share} of all, {one.at_once:,.1f} at once)"
    times = one.times
    yield f"  one call  p50 {_seconds(times.p50)}, p95 {_seconds(times.p95)}, max {_seconds(times.max)}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds < 10 else duration(seconds)
