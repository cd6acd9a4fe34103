"""Monte Carlo tree search: each simulation goes down to the state that promises most, and tries one more turn there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from trunkline._core import PROMPT, TURN, Search
from trunkline._internal.validation import check_float, check_int, check_that
from trunkline.strategies.base import Fork, prompt, was_to_move

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trunkline._core import CoreTree
    from trunkline.strategies.base import View


_AT_ONCE = 4096  # picks that the core takes in one go


class MCTS(msgspec.Struct, frozen=True):
    """UCT search over the states of a task's tree, as TreeRL has it (Hou et al. 2025, arXiv 2506.11902).

    A simulation goes down from the prompt to the first state that may still get a turn, always to the child of the
    highest bound; draws one turn there; and continues to the rollout's end. Its reward backs up: V(s) of every state
    above is the mean reward of the rollouts through it. With a ``value`` function a simulation is that one turn, and
    what the function says of where it leads backs up instead; what ends by itself within it still gets its reward.

    Rollouts that broke or could not be scored count as simulations, and where they passed as visits of reward
    ``loss``, so that a search does not stick to a state that fails.

    Args:
        simulations: Rollouts, at most; fewer where no state may get another turn.
        c: Weight of what was tried little, 0 or more.
        value: Says what a state is worth, from a rollout that was cut off there; full rollouts when None.
        parallel: Simulations that are chosen one after the other, each counting as a visit of reward ``loss`` for the
            next (virtual loss), then grown together, then backed up in logical order.
        children: Turns that are drawn at a state, at most; equal ones merge, and count as visits of one child.
        bound: How children compare, for V in N of the parent's Np visits. ``"uct"``: ``(V + 1) / 2 + c sqrt(ln(Np + 1)
            / N)``, for rewards from -1 to 1. ``"ucb1"``: ``V + c sqrt(ln(Np) / N)``, for rewards from 0 to 1; the
            textbook has the root of 2 for ``c``.
        loss: The least a rollout can get.

    Raises:
        ConfigError: If an option has a value it cannot have.
    """

    simulations: int = 16
    c: float = 0.5
    value: Callable[[Any], Any] | None = None
    parallel: int = 1
    children: int = 4
    bound: Literal["uct", "ucb1"] = "uct"
    loss: float = 0.0

    def __post_init__(self) -> None:
        check_int("MCTS: simulations", self.simulations, 1, 2**20)
        check_float("MCTS: c", self.c, 0, 1e100)
        check_that(
            self.value is None or callable(self.value), "MCTS: value must be a function of a trajectory", self.value
        )
        check_int("MCTS: parallel", self.parallel, 1, _AT_ONCE)
        check_int("MCTS: children", self.children, 1, 2**20)
        check_that(self.bound in ("uct", "ucb1"), "MCTS: bound must be uct or ucb1", self.bound)
        check_float("MCTS: loss", self.loss, -1e100, 1e100)

    def rollouts(self) -> int:
        """Return simulations."""
        return self.simulations

    def at_once(self) -> int:
        """Return the simulations that grow together."""
        return min(self.parallel, self.simulations)

    def formula(self) -> str:
        """Return how many rollouts, for people."""
        return f"simulations = {self.simulations}"

    def start(self, view: View) -> Iterable[Fork]:
        """Yield the first simulations, all at the prompt."""
        return self.ended(view)

    def ended(self, view: View) -> Iterable[Fork]:
        """Yield the next simulations."""
        core = view.tree.core
        parents, _, leaves = core.shape()
        passes, visits, means = core.values()
        unscored = [passed - scored for passed, scored in zip(passes, visits, strict=True)]
        search = Search(
            parents, visits, means, leaves=leaves, in_flight=unscored, formula=self.bound, c=self.c, loss=self.loss
        )
        picks = search.descend(self._room(view), min(self.parallel, self.simulations - core.rollouts))
        for point, draws in Counter(picks).items():
            yield Fork(point, draws, steps=None if self.value is None else 1)

    def _room(self, view: View) -> list[int]:
        """How many turns may still be drawn at each node, never above ``children`` in all.

        A state gets no more than were drawn at the state above it: a turn drawn there may merge and draw its next one
        here.
        """
        core = view.tree.core
        parents, kinds, leaves = core.shape()
        drawn, room = _drawn(core), [0] * len(parents)
        # A turn may be drawn at the prompt, and where a model moved or a rollout was cut off before it.
        cut = {leaf for rollout, leaf in enumerate(leaves) if was_to_move(core.rollout(rollout), kinds[leaf])}
        start = prompt(core)
        begun = 0  # turns drawn before any other, at the prompt or behind messages of a program
        for state in {*view.fork_points(), *filter(view.can_fork, cut)}:
            turn = state
            while kinds[turn] not in (TURN, PROMPT):
                turn = parents[turn]
            if kinds[turn] == TURN:
                room[state] = drawn[parents[turn]] - drawn[state]
            else:
                begun += drawn[state]
        room[start] = self.children - begun
        return room


def _drawn(core: CoreTree) -> list[int]:
    """Return how many turns were drawn at each node: rollouts through its turns that were not opened below them."""
    parents, kinds, _ = core.shape()
    passes, _, _ = core.values()
    drawn, opened = [0] * len(parents), [0] * len(parents)
    for rollout in range(core.rollouts):
        opened[core.rollout(rollout).point] += 1
    for node in range(len(parents) - 1, 0, -1):
        if kinds[node] == TURN:
            drawn[parents[node]] += passes[node] - opened[node]
        opened[parents[node]] += opened[node]
    return drawn
