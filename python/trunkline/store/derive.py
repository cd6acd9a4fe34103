"""Rows from a tree. The only place where they are made, for writing and for checking alike."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

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
        spent = usage_of(usage, problem)
        row = RolloutRow(
            rollout=number,
            path=",".join(map(str, path)),
            subgroup=subgroup,
            leaf=leaf,
            termination=termination,
            answer=answer,
            error=problem,
            reward=None if math.isnan(reward) else reward,
            turns=turns[leaf],
            calls=spent.calls,
            prompt=spent.prompt,
            cached=spent.cached,
            generated=spent.generated,
            unreported=spent.unreported,
            retries=spent.retries,
            tools=spent.tools,
            tool_errors=spent.tool_errors,
            llm_micros=llm,
            tool_micros=tools,
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
