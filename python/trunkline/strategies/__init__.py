"""Policies over one verb, fork: which rollouts start, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trunkline._internal.registry import Registry

if TYPE_CHECKING:
    from trunkline.strategies.base import Strategy


__all__ = ["STRATEGIES"]

STRATEGIES: Final[Registry[type[Strategy]]] = Registry(
    "strategy",
    {
        "adaptive": "trunkline.strategies.adaptive:Adaptive",
        "chain": "trunkline.strategies.chain:Chain",
        "entropy-tree": "trunkline.strategies.entropy_tree:EntropyTree",
        "mcts": "trunkline.strategies.mcts:MCTS",
        "partial": "trunkline.strategies.partial:Partial",
        "tree-grpo": "trunkline.strategies.tree_grpo:TreeGRPO",
        "tree-search": "trunkline.strategies.tree_search:TreeSearch",
    },
)
