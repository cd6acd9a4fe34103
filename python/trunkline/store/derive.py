"""Rows from a tree and its deltas. The only place where they are made, for writing and for checking alike."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from trunkline import _core
from trunkline.scoring.answers import action
from trunkline.scoring.notes import replays
from trunkline.store.schema import CallRow, RolloutRow, TakenRow, ToolRow, TreeEnding, TreeRow
from trunkline.tree.records import usage_of
from trunkline.tree.tokens import count, generated
from trunkline.types import FAILED, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_FINISHED = TreeEnding()


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
    rollouts: list[RolloutRow] = []
    lengths, actions = _paths(core)
    for number in range(core.rollouts):
        facts = core.rollout(number)
        row = RolloutRow(
            rollout=number,
            path=",".join(map(str, facts.path)),
            subgroup=facts.subgroup,
            leaf=facts.leaf,
            termination=facts.termination,
            answer=facts.answer,
            error=facts.error,
            reward=None if math.isnan(facts.reward) else facts.reward,
            note=facts.note,
            turns=facts.turns,
            llm_micros=facts.llm_micros,
            tool_micros=facts.tool_micros,
            length=lengths[facts.leaf],
            action=actions[facts.leaf],
            **msgspec.structs.asdict(usage_of(facts.usage, facts.error)),
        )
        rollouts.append(row)
    tokens = count(core)
    tree = TreeRow(
        nodes=len(core),
        rollouts=core.rollouts,
        digest=core.digest(),
        error=error,
        ended=ending.word if error is None else "broken",
        why=ending.why,
        refused=ending.refused,
        **msgspec.structs.asdict(tokens) | {"exact": int(tokens.exact)},
    )
    return tree, rollouts


def _paths(core: _core.CoreTree) -> tuple[Sequence[int | None], Sequence[str | None]]:
    """For every node: generated tokens on its path, and the action of its first turn."""
    parents, kinds, _ = core.shape()
    lengths: list[int | None] = [0]
    actions: list[str | None] = [None]
    for node in range(1, len(parents)):
        length, first = lengths[parents[node]], actions[parents[node]]
        if kinds[node] == _core.TURN:
            own = generated(core, node)
            length = None if length is None or own is None else length + own
            first = first or action(msgspec.json.decode(core.message(node)))
        lengths.append(length)
        actions.append(first)
    return lengths, actions


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
