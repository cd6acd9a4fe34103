"""Checking the calls of a run file. They are derived from nothing, but they must fit the deltas they came with."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline._core import TURN, Tree
from trunkline.printable import printable, quoted
from trunkline.store.calls import cached
from trunkline.store.schema import CALL_COLUMNS, CALL_NAMED, CALLS_NAMED, CallRow
from trunkline.types import Usage

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet


__all__ = ["CallTotals", "audit", "misfits", "turns_by_agent"]

# The names in these statements are our own.
_CALLS = f"SELECT task, call, {CALL_NAMED} FROM {CALLS_NAMED} ORDER BY call"  # noqa: S608
_LOOSE = (
    "SELECT task, count(*) FROM calls WHERE NOT EXISTS "
    "(SELECT 1 FROM deltas WHERE delta = (calls.task << 32) + calls.seq) GROUP BY task ORDER BY task"
)
_GAPS = "SELECT coalesce(max(call), 0) - count(*) FROM calls"

_UNKNOWN = -1
_FIGURES = [column for column in CALL_COLUMNS if column not in {"endpoint", "agent"}]
_LEAST = {"prompt": _UNKNOWN, "cached": _UNKNOWN, "generated": _UNKNOWN, "first": _UNKNOWN}
_COMPARED = ("prompt", "cached", "generated", "unreported")


class CallTotals(msgspec.Struct):
    """What the calls of one task come to.

    Attributes:
        draws: Completions they brought.
        plural: Calls that brought another number than one.
        by_agent: Completions by who asked.
        usage: Their usage; those out of a cache count too, as the turns made of them do.
    """

    draws: int = 0
    plural: int = 0
    by_agent: Counter[str] = msgspec.field(default_factory=Counter)
    usage: Usage = msgspec.field(default_factory=Usage)

    def add(self, call: CallRow) -> None:
        """Count a call, unless it failed: then it has led to no turn."""
        if call.failed:
            return
        usage = self.usage
        self.draws += call.draws
        self.by_agent[call.agent] += call.draws
        self.plural += call.draws != 1
        usage.calls += 1
        if call.reported:
            usage.prompt += call.prompt
            usage.cached += cached(call)
            usage.generated += call.generated
        else:
            usage.unreported += 1


def audit(connection: sqlite3.Connection, totals: dict[int, CallTotals]) -> Iterator[str]:
    """Read all calls.

    Args:
        connection: The file, open for reading.
        totals: What the calls of each task come to is put here, by the task's number.

    Yields:
        A printable line for each problem that lies in the calls themselves.
    """
    for task, count in connection.execute(_LOOSE):
        yield f"calls: {count} of task number {printable(repr(task), 60)} came with a delta that is not there"
    ((gaps,),) = connection.execute(_GAPS)
    if gaps:
        yield f"calls: {gaps} are missing between the first and the last"
    for task, number, *values in connection.execute(_CALLS):
        try:
            call = _call(values)
        except ValueError as problem:  # msgspec's own errors derive from it
            yield f"call {number}: {printable(str(problem), 120)}"
        else:
            totals.setdefault(task, CallTotals()).add(call)


def _call(values: list[Any]) -> CallRow:
    call = msgspec.convert(values, CallRow)
    for column in _FIGURES:
        if getattr(call, column) < _LEAST.get(column, 0):
            raise ValueError(f"{column} is {getattr(call, column)}")
    return call


def turns_by_agent(core: Tree) -> Counter[str]:
    """Count the model turns of a tree by who took them; equal ones are one."""
    nodes = (core.node(node) for node in range(1, len(core)))
    return Counter(node.agent for node in nodes if node.kind == TURN)


def misfits(core: Tree, calls: CallTotals, paid: Usage, before: Counter[str]) -> Iterator[str]:
    """Compare the calls of a task with its turns.

    A turn in the file has its call in the file. A call can have brought fewer turns than draws: some were of no use, or
    their rollouts were no more. Where each call brought one draw and each draw is a turn, both have the same usage.

    Args:
        core: The task's tree.
        calls: What its calls come to.
        paid: What its turns had cost in an earlier run that this one continues; those calls are there.
        before: The turns that it had there, by who took them.
    """
    turns = Usage() - paid
    for rollout in range(core.rollouts):
        turns += Usage(*core.rollout(rollout).usage)
    if turns.calls > calls.draws:
        yield f"calls: they brought {calls.draws} completions, but {turns.calls} turns are in the deltas"
    if "" not in calls.by_agent:
        yield from _misnamed(turns_by_agent(core) - before, calls.by_agent)
    if calls.plural or turns.calls != calls.draws:
        return
    for name in _COMPARED:
        here, there = getattr(calls.usage, name), getattr(turns, name)
        if here != there:
            yield f"calls: {name} is {here} in the rows and {there} in the deltas"


def _misnamed(turns: Counter[str], draws: Counter[str]) -> Iterator[str]:
    """Compare turns and completions by agent; names in which a secret was hidden are compared together."""
    named = turns.keys() & draws.keys()
    pairs = [(quoted(agent, 60), turns[agent], draws[agent]) for agent in sorted(named)]
    pairs.append(("others", _but(turns, named), _but(draws, named)))
    for agent, made, brought in pairs:
        if made > brought:
            yield f"calls: those of {agent} brought {brought} completions, but {made} turns are in the deltas"


def _but(counted: Counter[str], named: AbstractSet[str]) -> int:
    return sum(count for agent, count in counted.items() if agent not in named)
