"""Tree-GRPO: chains first, then continuations from states drawn at random, tree by tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trunkline._core import draw_points, fork_points, tree_leaves
from trunkline.bounds import whole
from trunkline.rollout.strategy import Fork

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trunkline.rollout.view import View

__all__ = ["TreeGRPO"]


class TreeGRPO(msgspec.Struct, frozen=True, kw_only=True):
    """M chains; then, in each of L rounds, N continuations of each chain's tree (Ji et al. 2025, arXiv 2509.21240).

    They start at states drawn uniformly and with replacement from all of the tree, the prompt included, and run to
    their end. That makes ``M (1 + N L)`` rollouts.

    Args:
        trees: M, initial chains.
        forks: N, continuations of each tree in a round.
        rounds: L.

    Raises:
        ConfigError: If an option is below 1.
    """

    trees: int = 2
    forks: int = 2
    rounds: int = 1

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            whole(f"TreeGRPO: {name}", getattr(self, name), 1)

    def rollouts(self) -> int:
        """Return M (1 + N L)."""
        return tree_leaves(self.trees, self.forks, self.rounds)

    def at_once(self) -> int:
        """Return the rollouts of one round."""
        return self.trees * self.forks

    def formula(self) -> str:
        """Return how many rollouts, for people."""
        return f"M (1 + N L) = {self.trees} (1 + {self.forks} x {self.rounds}) = {self.rollouts()}"

    def start(self, view: View) -> Iterable[Fork]:
        """Yield the initial chains."""
        yield Fork(n=self.trees)

    def ended(self, view: View) -> Iterable[Fork]:
        """Yield the next round's continuations of each tree."""
        parents, kinds, _ = view.tree.core.shape()
        for tree in range(self.trees):
            leaves = view.subgroup(tree)
            if len(leaves) < 1 + self.forks * self.rounds:
                points = fork_points(parents, kinds, leaves)
                # A chain that broke in its first turn has none.
                for point in draw_points(points, self.forks if points else 0, view.seed(tree), replace=True):
                    yield Fork(point, subgroup=tree)
