"""Rows from a tree and its deltas. The only place where they are made, for writing and for checking alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import astuple

from trunkline import _core
from trunkline.scoring.answers import action
from trunkline.scoring.notes import replays
from trunkline.store.schema import CallRow, RolloutRow, TakenRow, ToolRow, TreeEnding, TreeRow
from trunkline.tree.records import Failure
from trunkline.tree.tokens import count
from trunkline.types import FAILED, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable

_FINISHED = TreeEnding()
_ERROR, _RETRIES = map(RolloutRow.__struct_fields__.index, ("error", "retries"))


def rebuilt(deltas: Iterable[bytes]) -> _core.CoreTree:
    """Rebuild a tree from its deltas."""
    core = _core.CoreTree()
    for data in deltas:
        core.apply(data)
    return core


def calls_of(delta: bytes) -> tuple[list[CallRow], list[ToolRow]] | None:
    """The calls that came with a delta, begun on the machine's clock; None of a format that has none; or TreeError."""
    found = _core.calls_of(delta)
    if found is None:
        return None
    calls, tools = found
    return [CallRow(*call) for call in calls], [ToolRow(*tool) for tool in tools]


def rows(
    core: _core.CoreTree, error: str | None = None, ending: TreeEnding = _FINISHED
) -> tuple[TreeRow, list[RolloutRow]]:
    """Derive the row of a tree and the rows of its rollouts."""
    nodes, digest, totals, facts = core.rows()
    rollouts: list[RolloutRow] = []
    actions: dict[int | None, str | None] = {None: None}
    for columns in map(list, facts):
        first = columns[-1]
        if first not in actions:
            actions[first] = action(msgspec.json.decode(core.message(first)))
        columns[-1] = actions[first]
        if columns[_ERROR]:
            columns[_RETRIES] += Failure.decode(columns[_ERROR]).attempts - 1
        rollouts.append(RolloutRow(*columns))
    flat, shared, flat_generated, tree_generated, longest, unreported, exact = (
        astuple(count(core)) if totals[-1] else totals
    )
    tree = TreeRow(
        nodes,
        len(rollouts),
        digest,
        flat,
        shared,
        longest,
        flat_generated,
        tree_generated,
        unreported,
        int(exact),
        error,
        ending.word if error is None else "broken",
        ending.why,
        ending.refused,
    )
    return tree, rollouts


def taken(core: _core.CoreTree, deltas: int) -> TakenRow:
    """Derive the row of a tree that is taken over from an earlier run with so many deltas."""
    tree, rollouts = rows(core)
    return TakenRow(
        deltas=deltas,
        rollouts=tree.rollouts,
        growing=len(core.growing),
        failed=sum(row.termination in FAILED for row in rollouts),
        digest=tree.digest,
        llm_micros=sum(row.llm_micros for row in rollouts),
        tool_micros=sum(row.tool_micros for row in rollouts),
        paths=sum(row.turns for row in rollouts),
        replayed=sum(replays(row.note) for row in rollouts),
        **msgspec.structs.asdict(sum((row.usage for row in rollouts), Usage())),
    )
