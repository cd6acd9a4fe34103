"""Policies over one verb, fork: which rollouts start, and where."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trunkline.strategies.base import Strategy


__all__ = ["STRATEGIES", "find"]


STRATEGIES: Final = {
    "adaptive": "adaptive:Adaptive",
    "chain": "chain:Chain",
    "entropy-tree": "entropy_tree:EntropyTree",
    "mcts": "mcts:MCTS",
    "partial": "partial:Partial",
    "tree-grpo": "tree_grpo:TreeGRPO",
    "tree-search": "tree_search:TreeSearch",
}
"""For each name its module here and its class."""


def find(name: str) -> type[Strategy]:
    """Return the class of a strategy.

    Raises:
        KeyError: There is none of that name.
    """
    module, _, kind = STRATEGIES[name].partition(":")
    found: type[Strategy] = getattr(importlib.import_module(f"trunkline.strategies.{module}"), kind)
    return found
