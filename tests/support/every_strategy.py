"""Every strategy that comes with the library, once or more: what all of them must keep is tested on this list.

EntropyTree is not there: it forks inside turns, which needs token ids (``tests/strategies/test_entropy_tree.py``).
"""

from __future__ import annotations

from trunkline.strategies.adaptive import Adaptive
from trunkline.strategies.base import Strategy
from trunkline.strategies.chain import Chain
from trunkline.strategies.mcts import MCTS
from trunkline.strategies.partial import Partial
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.strategies.tree_search import TreeSearch
from trunkline.tree.views import Trajectory


def halfway(rollout: Trajectory) -> float:
    """A value function: what was said last, as far as it is a number from 0 to 9."""
    return sum(map(int, filter(str.isdigit, rollout.messages[-1]["content"][-1:]))) / 10


STRATEGIES: dict[str, Strategy] = {
    "chain": Chain(4),
    "chains in waves": Chain(5, temperatures=(0.2, 0.9), wave=2),
    "chains that are told": Chain(4, avoid=True),
    "tree-search": TreeSearch(width=3, keep=2, depth=3, value=halfway),
    "tree-search by confidence": TreeSearch(width=2, keep=2),
    "tree-grpo": TreeGRPO(trees=2, forks=2, rounds=2),
    "tree-grpo that keeps": TreeGRPO(trees=2, forks=3, rounds=1, keep=2),
    "partial": Partial(initial=2, top_k=2, rounds=2, samples=2, budget=21, region="all"),
    "arpo": Adaptive(total=9, initial=3, weight=2.0, likeliest=2, vocabulary=4),
    "aepo": Adaptive(total=8, initial=3, rule="aepo", beam=3, monitor=True, likeliest=2, vocabulary=4),
    "mcts": MCTS(8, parallel=3, children=3),
    "mcts one by one": MCTS(6, 1.4, children=2, bound="ucb1"),
    "mcts with a value": MCTS(8, value=halfway, parallel=2, children=2),
}
"""By a name for the test's id."""
