"""The figures of each agent of a run, as a table for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trunkline.cli.table import duration
from trunkline.cli.times import percent
from trunkline.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.store.profile import AgentProfile

__all__ = ["agents_table"]

_NAME: Final = 24  # cells of a name that are shown
_HEAD: Final = (
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
_NOTES: Final = """\
of all: its share of the time in models and tools; out: the share of the wall time with a call of it out"""
_ROW_NOTES: Final = """
active: rows that something depends on; ratio: these, as a share of what a loop over whole batches carries"""


def agents_table(agents: Sequence[AgentProfile]) -> str:
    """The figures of each agent, as plain text, one line an agent.

    Args:
        agents: What :attr:`trunkline.store.profile.Profile.agents` holds.
    """
    team = any(agent.rows is not None for agent in agents)
    head = _HEAD + _ROWS if team else _HEAD
    rows = [[top for top, _ in head], [under for _, under in head]]
    rows += [_figures(agent) + (_rows(agent) if team else []) for agent in agents]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = []
    for name, *figures in rows:
        padded = [f"{figure:>{width}}" for figure, width in zip(figures, widths[1:], strict=True)]
        lines.append("  ".join([f"{name:<{widths[0]}}", *padded]).rstrip())
    return "\n".join([*lines, "", _NOTES + (_ROW_NOTES if team else "")])


def _figures(agent: AgentProfile) -> list[str]:
    times = agent.times
    return [
        printable(agent.name, _NAME),
        f"{agent.calls:,}",
        f"{agent.failed:,}",
        f"{agent.prompt:,}",
        f"{agent.cached:,}",
        f"{agent.generated:,}",
        percent(agent.share),
        percent(agent.busy),
        "-" if times is None else _seconds(times.p50),
        "-" if times is None else _seconds(times.p95),
    ]


def _rows(agent: AgentProfile) -> list[str]:
    rows = agent.rows
    if rows is None:
        return ["-"] * len(_ROWS)
    return [f"{rows.active:,}", f"{rows.inactive:,}", percent(rows.active_ratio), percent(rows.valid_share)]


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds < 10 else duration(seconds)
