"""Tokens of a tree with and without sharing, and seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trunkline import _core
from trunkline._core import TURN, Prefix, drift_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trunkline._core import CoreTree


class Tokens(msgspec.Struct, frozen=True):
    """Tokens of one tree or of one run, counted flat and as a tree: from token ids, or as the servers reported them.

    Attributes:
        flat: Prompt, observation and generated tokens if every rollout were a chain of its own.
        tree: The same with every shared part counted once.
        flat_generated: The generated ones among ``flat``.
        tree_generated: The generated ones among ``tree``.
        longest: Tokens of the longest path; of a run, of the longest path of all its trees.
        unreported: Model turns whose reply carried no usage; their tokens are in no total.
        exact: Whether they are counts of token ids: every model turn on every path has those that were sampled and
            those that its model was given. What no model was given, as the last observation of a rollout that ended by
            ``max_turns``, has none and is in no count. Of a run: whether all its trees are.
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


def count(core: CoreTree) -> Tokens:
    """Count a tree's tokens; with ids, turns of one state share equal beginnings to the token."""
    found = Tokens(*core.tokens())
    if not found.exact:
        return found
    index = Prefix()
    for number, turns in enumerate(_siblings(core)):
        space = index.space(str(number))
        for turn in turns:
            drift, own = drift_of(core, turn), core.tokens_of(turn)
            given = index.insert(space, _core.TokenBuffer([]) if drift is None else drift[2])
            if own is not None:
                index.append(given, own)
    reuse = index.reuse()
    return msgspec.structs.replace(
        found,
        tree=found.tree - (reuse.flat - reuse.unique),
        tree_generated=found.tree_generated - (reuse.flat_generated - reuse.unique_generated),
    )


def _siblings(core: CoreTree) -> Iterator[Sequence[int]]:
    """Yield the turns of one state that share prompt and model, where there are several."""
    parents, kinds, _ = core.shape()
    turns: dict[int, list[int]] = {}
    for node, kind in enumerate(kinds):
        if kind == TURN:
            turns.setdefault(parents[node], []).append(node)
    for below in turns.values():
        if len(below) > 1:
            alike: dict[Any, list[int]] = {}
            for node in below:
                facts = core.node(node)
                alike.setdefault((facts.agent, facts.namespace, facts.context), []).append(node)
            yield from (nodes for nodes in alike.values() if len(nodes) > 1)


def generated(core: CoreTree, turn: int) -> int | None:
    """Return a turn's token ids, kept ones of a fork included, else its reported tokens, else None."""
    tokens = core.tokens_of(turn)
    return core.node(turn).generated if tokens is None else len(tokens)


class Seconds(NamedTuple):
    """Time spent waiting, in seconds, summed over calls (calls of one turn overlap)."""

    llm: float
    tools: float
