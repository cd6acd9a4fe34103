"""Tree search: several responses at every turn, and only the best go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trunkline._internal.validation import check_int
from trunkline.scoring.rewards.base import Value, best, check, search_value
from trunkline.strategies.base import Fork, Stop
from trunkline.types import Termination

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trunkline.strategies.base import Move, View
    from trunkline.tree.views import Trajectory


class TreeSearch(msgspec.Struct, frozen=True):
    """A beam over model turns: ``width`` responses to every state of a turn, of which the ``keep`` best go on.

    All rollouts take a turn, and its tools run. The states where they then stand are valued; the best go on, each with
    ``width`` draws of its next turn, and the rollouts at the others are stopped (``censored``, with their value as the
    reason). Rollouts that came to the same state are one state. A rollout that has answered keeps its place: with m
    answers there, ``keep - m`` states go on, and with ``keep`` answers the search is over. Any other end frees the
    place. Waiting for the slowest response at every turn is the price.

    Args:
        width: Draws of every state, at least 2.
        keep: How many states go on after a turn, those that answered included.
        depth: Turns that are drawn ``width`` wide; rollouts left then go on alone. 1 is the first turn only.
        value: A plain function of a rollout that waits between two steps (a ``trunkline.Trajectory``): higher is
            better, None ranks last. Without it, the model's own confidence in its last turn, which needs
            ``Sampling(logprobs=True, top_logprobs=...)``.

    Raises:
        ConfigError: If an option has a value it cannot have.
    """

    width: int = 3
    keep: int = 1
    depth: int = 8
    value: Value | None = None

    def __post_init__(self) -> None:
        check_int("TreeSearch: width", self.width, 2, 4096)
        check_int("TreeSearch: keep", self.keep, 1, 4096)
        check_int("TreeSearch: depth", self.depth, 1, 4096)
        check("TreeSearch: value", self.value)

    @property
    def uncertain(self) -> str | None:
        """The region whose log-probabilities are needed: all of the turn, where there is no value function."""
        return "all" if self.value is None else None

    def _states(self) -> int:
        """How many states are widened in all, at most: the prompt, then the states kept at each further turn."""
        widened, states = 1, 1
        for _ in range(self.depth - 1):
            states = min(self.keep, states * self.width)
            widened += states
        return widened

    def rollouts(self) -> int:
        """Return the most that can come of it: each state that is widened adds ``width - 1`` to the one it had."""
        return 1 + (self.width - 1) * self._states()

    def at_once(self) -> int:
        """Return the most that draw a turn at a time."""
        return min(self.rollouts(), self.width * self.keep)

    def formula(self) -> str:
        """Return how many rollouts, for people."""
        return f"1 + (width - 1) x states = 1 + {self.width - 1} x {self._states()} = {self.rollouts()} at most"

    def start(self, view: View) -> Iterable[Fork]:
        """Yield the draws of the first turn."""
        yield Fork(n=self.width)

    def stepped(self, view: View) -> Iterable[Move]:
        """Stop what is not among the best, and widen what is."""
        states: dict[int, list[Trajectory]] = {}
        for rollout in view.rollouts:
            states.setdefault(rollout.leaf.id, []).append(rollout)
        answered = sum(rollout.termination is Termination.ANSWER for rollout in view.tree.rollouts)
        values = [search_value(waiting[0], self.value) for waiting in states.values()]
        chosen = best(values, self.keep - answered)
        turn = view.rollouts[0].turns
        for place, (state, waiting) in enumerate(states.items()):
            if place not in chosen:
                for rollout in waiting:
                    yield Stop(rollout.id, f"pruned after turn {turn}: value {values[place]:.6g}, kept {len(chosen)}")
            elif turn < self.depth and len(waiting) < self.width and view.can_fork(state):
                yield Fork(state, n=self.width - len(waiting))
