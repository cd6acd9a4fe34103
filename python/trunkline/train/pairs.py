"""Preference pairs of siblings: two turns from one state, of which one led to more reward."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from heapq import nlargest
from itertools import combinations
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from trunkline._core import node_values
from trunkline._internal.validation import check_choice, check_float, check_int
from trunkline.train.selection import Rules, select, turns_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trunkline.train.selection import Chosen
    from trunkline.tree.views import Tree


class Pair(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Two turns from one state.

    Attributes:
        task: Id of the task.
        state: Node of the state, after which both turns stand.
        depth: Model turns before it.
        conversation: The messages before them, a JSON array.
        chosen: Message of the turn that led to more, JSON.
        rejected: Message of the other.
        chosen_node: Its node.
        rejected_node: Its node.
        chosen_value: V(s) after it: the mean reward of the rollouts through it that count.
        rejected_value: V(s) after the other.
        chosen_visits: How many rollouts that is the mean of.
        rejected_visits: Likewise.
    """

    task: str
    state: int
    depth: int
    conversation: msgspec.Raw
    chosen: msgspec.Raw
    rejected: msgspec.Raw
    chosen_node: int
    rejected_node: int
    chosen_value: float
    rejected_value: float
    chosen_visits: int
    rejected_visits: int

    @property
    def margin(self) -> float:
        """How much more the chosen turn is worth."""
        return self.chosen_value - self.rejected_value


class _Turn(NamedTuple):
    node: int
    value: float
    visits: int


def pairs(
    run: Iterable[Tree],
    *,
    which: Literal["best_worst", "all"] = "best_worst",
    min_margin: float = 0.0,
    min_visits: int = 1,
    most: int | None = None,
    censored: Literal["mask", "keep"] | None = None,
    on_failed: Literal["mask", "drop_group"] = "mask",
) -> Iterator[Pair]:
    """Compare the turns from each state: supervision of the process, at every depth at which a tree forks.

    V(s) is the mean reward over the rollouts that pass, with penalties, without those that count in no baseline. A turn
    that only masked rollouts pass is in no pair. Turns that say the same are one. Pairs come tree by tree, in the order
    in which rollouts first came to their states, and at one state by falling margin.

    Args:
        run: A run, or trees.
        which: ``best_worst``: at each state the best turn and the worst. ``all``: every two turns of different value.
        min_margin: Least difference of their values; it must be above 0 in any case.
        min_visits: Least number of rollouts behind either value.
        most: The most pairs of a state; all when None.
        censored: As of ``trunkline.train.turns``.
        on_failed: Likewise.

    Returns:
        The pairs, made as they are asked for.

    Raises:
        ConfigError: A setting has a value it cannot have.
        UsageError: A group has rollouts that were cut off, and ``censored`` is not said; raised when it is reached.
    """
    check_choice("which", which, "best_worst", "all")
    check_float("min_margin", min_margin, 0)
    check_int("min_visits", min_visits, 1)
    if most is not None:
        check_int("most", most, 1)
    rules = Rules(censored, on_failed).check()
    return (
        _pair(tree, state, better, worse)
        for tree in run
        for state, siblings in _states(tree, select(tree, rules), min_visits)
        for better, worse in _compared(siblings, which, min_margin, most)
    )


def _states(tree: Tree, rollouts: list[Chosen], min_visits: int) -> Iterator[tuple[int, list[_Turn]]]:
    """Yield the states at which at least two turns can be compared, with these turns."""
    if not rollouts:
        return
    parents, _, leaves = tree.core.shape()
    compared = [chosen.compared for chosen in rollouts]
    ends = array("I", (leaves[chosen.rollout] for chosen in rollouts))
    values = node_values(parents, ends, array("d", compared))[0]
    visits: Counter[int] = Counter()
    trained: set[int] = set()
    after: dict[int, dict[int, None]] = {}
    for chosen, reward in zip(rollouts, compared, strict=True):
        for turn in turns_of(tree, chosen.rollout):
            visits[turn] += not math.isnan(reward)
            after.setdefault(parents[turn], {})[turn] = None
            if chosen.trained:
                trained.add(turn)
    for state, below in after.items():
        found = [_Turn(turn, values[turn], visits[turn]) for turn in below if turn in trained]
        siblings = [turn for turn in _alike(tree, found) if turn.visits >= min_visits]
        if len(siblings) > 1:
            yield state, siblings


def _alike(tree: Tree, found: list[_Turn]) -> list[_Turn]:
    """Join turns with equal messages, which are two nodes where other parameters sampled them."""
    said: dict[bytes, _Turn] = {}
    for turn in found:
        message = tree.core.message(turn.node)
        said[message] = _joined(said[message], turn) if message in said else turn
    return list(said.values())


def _joined(first: _Turn, other: _Turn) -> _Turn:
    counted = [turn for turn in (first, other) if turn.visits]
    visits = sum(turn.visits for turn in counted)
    value = math.fsum(turn.value * turn.visits for turn in counted) / visits if visits else math.nan
    return _Turn(first.node, value, visits)


def _compared(siblings: list[_Turn], which: str, min_margin: float, most: int | None) -> Iterable[tuple[_Turn, _Turn]]:
    """Return the pairs of a state, the better turn first."""
    found: Iterable[tuple[_Turn, _Turn]]
    if which == "best_worst":
        by_value = attrgetter("value")
        found = [(max(siblings, key=by_value), min(siblings, key=by_value))]
    else:
        found = ((a, b) if a.value > b.value else (b, a) for a, b in combinations(siblings, 2))
    apart = (pair for pair in found if _margin(pair) >= min_margin and not _equal(*pair))
    return sorted(apart, key=_margin, reverse=True) if most is None else nlargest(most, apart, key=_margin)


def _equal(one: _Turn, other: _Turn) -> bool:
    """Whether two values are equal but for the rounding of means."""
    return math.isclose(one.value, other.value, rel_tol=1e-9, abs_tol=1e-12)


def _margin(pair: tuple[_Turn, _Turn]) -> float:
    return pair[0].value - pair[1].value


def _pair(tree: Tree, state: int, better: _Turn, worse: _Turn) -> Pair:
    core = tree.core
    return Pair(
        task=tree.task.id,
        state=state,
        depth=core.node(state).turns,
        conversation=msgspec.Raw(core.messages(state)),
        chosen=msgspec.Raw(core.message(better.node)),
        rejected=msgspec.Raw(core.message(worse.node)),
        chosen_node=better.node,
        rejected_node=worse.node,
        chosen_value=better.value,
        rejected_value=worse.value,
        chosen_visits=better.visits,
        rejected_visits=worse.visits,
    )
