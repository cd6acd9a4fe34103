"""Rows from a tree. The only place where they are made, for writing and for checking alike."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from trunkline import _core
from trunkline.store.schema import RolloutRow, TreeRow
from trunkline.tree.failure import usage_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["rows"]


def _turns(core: _core.Tree) -> Sequence[int]:
    # Model turns from the root to each node. A parent comes before its children, so one pass over the nodes
    # will do.
    counts = [0] * len(core)
    for node in range(1, len(core)):
        facts = core.node(node)
        counts[node] = counts[facts[0]] + (facts[1] == _core.TURN)
    return counts


def rows(core: _core.Tree, error: str | None = None) -> tuple[TreeRow, list[RolloutRow]]:
    """Derive the rows of a tree.

    Args:
        core: The tree, with all that is known about its task.
        error: Why the task as a whole broke, if it did.

    Returns:
        The tree's row, and a row for each rollout.
    """
    turns = _turns(core)
    rollouts: list[RolloutRow] = []
    for number in range(core.rollouts):
        facts = core.rollout(number)
        _point, leaf, path, subgroup, termination, answer, problem, reward, usage, llm, tools = facts
        row = RolloutRow(
            number,
            ",".join(map(str, path)),
            subgroup,
            leaf,
            termination,
            answer,
            problem,
            None if math.isnan(reward) else reward,
            turns[leaf],
            *msgspec.structs.astuple(usage_of(usage, problem)),
            llm,
            tools,
        )
        rollouts.append(row)
    flat, tree, flat_generated, tree_generated, _longest, unreported = core.tokens()
    return (
        TreeRow(
            nodes=len(core),
            rollouts=core.rollouts,
            digest=core.digest(),
            flat=flat,
            tree=tree,
            flat_generated=flat_generated,
            tree_generated=tree_generated,
            unreported=unreported,
            error=error,
        ),
        rollouts,
    )
