"""Strategies (``trunkline.strategies``), policies over one verb, fork: which rollouts start, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trunkline._internal.exports import exports
from trunkline._internal.registry import Registry

if TYPE_CHECKING:
    from trunkline.strategies.adaptive import Adaptive
    from trunkline.strategies.base import Drop, Fork, Stop, Strategy, View
    from trunkline.strategies.chain import Chain
    from trunkline.strategies.entropy_tree import EntropyTree
    from trunkline.strategies.mcts import MCTS
    from trunkline.strategies.partial import Partial
    from trunkline.strategies.tree_grpo import TreeGRPO
    from trunkline.strategies.tree_search import TreeSearch

__all__ = [
    "MCTS",
    "STRATEGIES",
    "Adaptive",
    "Chain",
    "Drop",
    "EntropyTree",
    "Fork",
    "Partial",
    "Stop",
    "Strategy",
    "TreeGRPO",
    "TreeSearch",
    "View",
]

__getattr__ = exports(
    __name__,
    """
strategies.adaptive: Adaptive
strategies.base: Drop Fork Stop Strategy View
strategies.chain: Chain
strategies.entropy_tree: EntropyTree
strategies.mcts: MCTS
strategies.partial: Partial
strategies.tree_grpo: TreeGRPO
strategies.tree_search: TreeSearch
""",
)

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
"""Strategies by name: iterating gives the names of the command line, ``STRATEGIES.find(name)`` its class."""
