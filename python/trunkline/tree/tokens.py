"""What a tree cost: tokens with and without sharing, and seconds."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

__all__ = ["Seconds", "Tokens"]


class Tokens(msgspec.Struct, frozen=True):
    """Tokens of one tree or of one run, counted flat and as a tree: from token ids, or as the servers reported them.

    Attributes:
        flat: Prompt, observation and generated tokens if every rollout were a chain of its own.
        tree: The same with every shared part counted once.
        flat_generated: The generated ones among ``flat``.
        tree_generated: The generated ones among ``tree``.
        longest: Tokens of the longest path; of a run, of the longest path of all its trees.
        unreported: Model turns whose reply carried no usage; their tokens are in no total.
        exact: Whether they are counts of token ids, which every message on every path has; of a run, of all its trees.
    """

    flat: int
    tree: int
    flat_generated: int
    tree_generated: int
    longest: int
    unreported: int
    exact: bool = False

    @property
    def saved(self) -> int:
        """Tokens that sharing saved."""
        return self.flat - self.tree

    @property
    def reuse(self) -> float:
        """The share of the flat tokens that sharing saved, from 0 to 1; 0 where there are no tokens."""
        return self.saved / self.flat if self.flat else 0.0


class Seconds(NamedTuple):
    """Time spent waiting, in seconds, summed over calls (calls of one turn overlap)."""

    llm: float
    tools: float
