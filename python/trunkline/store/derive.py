"""Rows from a tree. The only place where they are made, for writing and for checking alike."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from trunkline.store.schema import RolloutRow, TreeRow
from trunkline.tree.failure import usage_of
from trunkline.tree.tokens import Tokens

if TYPE_CHECKING:
    from trunkline import _core

__all__ = ["rows"]


def rows(core: _core.Tree, error: str | None = None) -> tuple[TreeRow, list[RolloutRow]]:
    """Derive the rows of a tree.

    Args:
        core: The tree, with all that is known about its task.
        error: Why the task as a whole broke, if it did.

    Returns:
        The tree's row, and a row for each rollout.
    """
    rollouts: list[RolloutRow] = []
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
            **msgspec.structs.asdict(usage_of(facts.usage, facts.error)),
        )
        rollouts.append(row)
    tokens = Tokens(*core.tokens())
    return (
        TreeRow(
            nodes=len(core),
            rollouts=core.rollouts,
            digest=core.digest(),
            flat=tokens.flat,
            tree=tokens.tree,
            longest=tokens.longest,
            flat_generated=tokens.flat_generated,
            tree_generated=tokens.tree_generated,
            unreported=tokens.unreported,
            exact=int(tokens.exact),
            error=error,
        ),
        rollouts,
    )
