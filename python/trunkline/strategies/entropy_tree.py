"""EPTree: chains first, then the rest of a turn again from the tokens that were the most surprising, tree by tree."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import msgspec

from trunkline._core import harvest, surprising_tokens, tree_leaves
from trunkline._internal.validation import check_bool, check_int, check_optional, check_that
from trunkline.strategies.base import Fork

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trunkline._core import CoreTree, Harvest
    from trunkline.strategies.base import View


_LONGEST = 2**32 - 1


class EntropyTree(msgspec.Struct, frozen=True):
    """M chains; then, in each of L rounds, T continuations of each of a tree's N most surprising tokens.

    That is EPTree of TreeRL (Hou et al. 2025, arXiv 2506.11902), over all turns of an agent: ``M (1 + N L T)``
    rollouts. How surprising a token was is its negative log-probability. It is drawn again, with all that follows it;
    what comes before it is kept. The first token of a turn or of a branch is never chosen.

    Args:
        chains: M, initial chains.
        points: N, tokens of each tree in a round.
        rounds: L.
        samples: T, continuations from each token.
        cuts: Ids of tokens that announce an answer: behind the first of a turn nothing is chosen. TreeRL's are those
            whose text contains ``conclusion`` or ``answer``; ``trunkline.llms.tokens_with`` finds them.
        limit: Tokens from the beginning of the prompt, from which on nothing is chosen; none when None.
        diverse: Whether the tokens are spread: out of twice as many, those farthest from each other.

    Raises:
        ConfigError: An option is out of range.
    """

    inside: ClassVar[bool] = True

    chains: int = 6
    points: int = 2
    rounds: int = 1
    samples: int = 2
    cuts: tuple[int, ...] = ()
    limit: int | None = None
    diverse: bool = False

    def __post_init__(self) -> None:
        for name in ("chains", "points", "rounds", "samples"):
            check_int(f"EntropyTree: {name}", getattr(self, name), 1, 4096)
        check_that(isinstance(self.cuts, tuple | list), "EntropyTree: cuts must be a list of token ids", self.cuts)
        for token in self.cuts:
            check_int("EntropyTree: a token id in cuts", token, 0, _LONGEST)
        check_optional(check_int, "EntropyTree: limit", self.limit, 1, _LONGEST)
        check_bool("EntropyTree: diverse", self.diverse)

    def rollouts(self) -> int:
        """Return M (1 + N L T)."""
        return tree_leaves(self.chains, self.points, self.rounds, self.samples)

    def at_once(self) -> int:
        """Return the rollouts of the largest round."""
        return self.chains * max(1, self.points * self.samples)

    def formula(self) -> str:
        """Return how many rollouts, for people."""
        product = f"{self.points} x {self.rounds} x {self.samples}"
        return f"M (1 + N L T) = {self.chains} (1 + {product}) = {self.rollouts()}"

    def start(self, view: View) -> Iterable[Fork]:
        """Yield the initial chains."""
        yield Fork(n=self.chains)

    def ended(self, view: View) -> Iterable[Fork]:
        """Yield the next round's continuations of each tree."""
        core = view.tree.core
        columns = harvest([core])
        cuts = self._cuts(columns)
        for tree in range(self.chains):
            for node, token in self._picks(core, columns, cuts, view.subgroup(tree)):
                yield Fork(node, n=self.samples, at=token, subgroup=tree)

    def _picks(
        self, core: CoreTree, columns: Harvest, cuts: list[int] | None, leaves: list[int]
    ) -> list[tuple[int, int]]:
        """Turns and tokens of a tree's current round; empty after the last.

        Earlier rounds are computed again: the number of rollouts does not tell the round where there were few tokens to
        choose.
        """
        flags, grown = bytearray(columns.flags), 1
        for _ in range(self.rounds):
            nodes, tokens = surprising_tokens(
                columns.parents,
                leaves[:grown],
                columns.offsets,
                columns.logprobs,
                flags,
                self.points,
                cuts=cuts,
                limit=_LONGEST if self.limit is None else self.limit,
                diverse=self.diverse,
            )
            picks = list(zip(nodes, tokens, strict=True))
            if grown >= len(leaves):
                return picks
            for node, token in picks:
                for leaf in leaves[grown : grown + self.samples]:
                    _keep(core, columns, flags, leaf, node, token)
                grown += self.samples
        return []

    def _cuts(self, columns: Harvest) -> list[int] | None:
        """For every node, the number of leading tokens before the first that announces an answer."""
        if not self.cuts:
            return None
        words, ids, offsets = frozenset(self.cuts), columns.ids, columns.offsets
        return [
            next((place - start + 1 for place in range(start, end) if ids[place] in words), end - start)
            for start, end in pairwise(offsets)
        ]


def _keep(core: CoreTree, columns: Harvest, flags: bytearray, leaf: int, turn: int, token: int) -> None:
    """Leave out the part of the turn that a branch forked from, and the branch's first token."""
    depth, path = core.node(turn).depth, core.path(leaf)
    # It may have said the same, or have failed before it said anything.
    if len(path) >= depth and (own := path[depth - 1]) != turn:
        start = columns.offsets[own]
        kept = min(token + 1, columns.offsets[own + 1] - start)
        flags[start : start + kept] = bytes(kept)
