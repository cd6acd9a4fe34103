"""Every strategy that comes with the library, once or more: what all of them must keep is tested on this list."""

from __future__ import annotations

from trunkline.rollout.strategies.chain import Chain
from trunkline.rollout.strategies.mcts import MCTS
from trunkline.rollout.strategies.tree_grpo import TreeGRPO
from trunkline.rollout.strategy import Strategy
from trunkline.tree.trajectory import Trajectory


def halfway(rollout: Trajectory) -> float:
    """A value function: what was said last, as far as it is a number from 0 to 9."""
    return sum(map(int, filter(str.isdigit, rollout.messages[-1]["content"][-1:]))) / 10


STRATEGIES: dict[str, Strategy] = {
    "chain": Chain(4),
    "tree-grpo": TreeGRPO(trees=2, forks=2, rounds=2),
    "mcts": MCTS(8, parallel=3, children=3),
    "mcts one by one": MCTS(6, 1.4, children=2, bound="ucb1"),
    "mcts with a value": MCTS(8, value=halfway, parallel=2, children=2),
}
"""By a name for the test's id."""
