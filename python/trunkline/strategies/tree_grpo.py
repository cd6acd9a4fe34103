"""Tree-GRPO: chains first, then continuations from states drawn at random, tree by tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trunkline._core import choose_leaves, draw_points, tree_leaves
from trunkline._internal.validation import check_int
from trunkline.errors import ConfigError
from trunkline.strategies.base import Drop, Fork
from trunkline.types import UNSCORED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trunkline.strategies.base import Move, View


class TreeGRPO(msgspec.Struct, frozen=True):
    """M chains; then, in each of L rounds, N continuations of each chain's tree (Ji et al. 2025, arXiv 2509.21240).

    They start at states drawn uniformly and with replacement from all of the tree, the prompt included, and run to
    their end. That makes ``M (1 + N L)`` rollouts, of which ``M K`` are kept: K of each tree, drawn uniformly without
    replacement from those that were not broken or cut. The others stay in the tree, noted as dropped.

    Args:
        trees: M, initial chains.
        forks: N, continuations of each tree in a round.
        rounds: L.
        keep: K, at most ``1 + N L``; all when None.

    Raises:
        ConfigError: If an option has a value it cannot have, or more are to be kept than a tree gets.
    """

    trees: int = 2
    forks: int = 2
    rounds: int = 1
    keep: int | None = None

    def __post_init__(self) -> None:
        for name in ("trees", "forks", "rounds"):
            check_int(f"TreeGRPO: {name}", getattr(self, name), 1, 2**20)
        if self.keep is not None and check_int("TreeGRPO: keep", self.keep, 1) > self._leaves():
            made = f"1 + N L = 1 + {self.forks} x {self.rounds} = {self._leaves()}"
            raise ConfigError(f"TreeGRPO: keep must be at most what a tree gets, {made}, not {self.keep}")

    def _leaves(self) -> int:
        """Rollouts that each tree gets: 1 + N L."""
        return tree_leaves(1, self.forks, self.rounds)

    def rollouts(self) -> int:
        """Return M (1 + N L)."""
        return tree_leaves(self.trees, self.forks, self.rounds)

    def at_once(self) -> int:
        """Return the rollouts of one round."""
        return self.trees * self.forks

    def formula(self) -> str:
        """Return how many rollouts, for people."""
        made = f"M (1 + N L) = {self.trees} (1 + {self.forks} x {self.rounds}) = {self.rollouts()}"
        if self.keep is None:
            return made
        return f"{made}, of which M K = {self.trees} x {self.keep} = {self.trees * self.keep} are kept"

    def start(self, view: View) -> Iterable[Fork]:
        """Yield the initial chains."""
        yield Fork(n=self.trees)

    def ended(self, view: View) -> Iterable[Move]:
        """Yield the next round's continuations of each tree; after the last round, what is not kept of it."""
        for tree in range(self.trees):
            leaves = view.subgroup(tree)
            if len(leaves) < self._leaves():
                points = view.fork_points(leaves)
                # A chain that broke in its first turn has none.
                for point in draw_points(points, self.forks if points else 0, view.seed(tree), replace=True):
                    yield Fork(point, subgroup=tree)
            elif self.keep is not None:
                yield from self._drops(view, tree, self.keep)

    def _drops(self, view: View, tree: int, keep: int) -> Iterable[Drop]:
        """Yield the drops of a tree that is complete."""
        tries = [rollout for rollout in view.tree.rollouts if rollout.subgroup == tree]
        sound = [rollout.id for rollout in tries if rollout.termination not in UNSCORED]
        if len(sound) > keep:
            kept = choose_leaves(bytes(len(sound)), keep, view.seed(tree))
            for place in sorted(set(range(len(sound))).difference(kept)):
                yield Drop(sound[place], f"not among the {keep} of {len(sound)} rollouts kept of tree {tree}")
