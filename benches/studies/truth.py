"""What states are really worth: V(s) from fresh continuations, apart from the tree that is judged."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from studies.engine import SimLLM
from studies.growth import grow
from trunkline._core import TURN, CoreTree
from trunkline.sim.server.options import Settings
from trunkline.strategies.base import Fork
from trunkline.tree.views import Tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trunkline.agent import CompiledAgent
    from trunkline.strategies.base import View
    from trunkline.tree.views import Trajectory

__all__ = ["CONTINUATIONS", "Step", "Worth", "true_steps", "true_values"]

CONTINUATIONS: Final = 256
"""Fresh continuations of a state."""

_TOGETHER = 64


class Worth(NamedTuple):
    """V(s).

    Attributes:
        value: The mean reward of the continuations.
        error: Variance of that mean; 0 where nothing is left to chance.
    """

    value: float
    error: float


class Step(NamedTuple):
    """A model turn with the observations it caused.

    Attributes:
        node: The turn.
        before: V of the states on its path, from the prompt to the one it was taken in.
        after: V of the state it led to; its own reward, where it ended the rollout.
    """

    node: int
    before: tuple[Worth, ...]
    after: Worth


class Continue(msgspec.Struct, frozen=True):
    """Continues some states as often as asked for, a part of it at a time.

    Args:
        points: The states.
        n: Continuations of each.
        first: Rollouts that the tree had before.
    """

    points: tuple[int, ...]
    n: int
    first: int

    def rollouts(self) -> int:
        """Return how many continuations."""
        return self.n * len(self.points)

    def start(self, view: View) -> Iterable[Fork]:
        """Yield the first part."""
        return self.ended(view)

    def ended(self, view: View) -> Iterable[Fork]:
        """Yield the next part."""
        done = (view.tree.core.rollouts - self.first) // len(self.points)
        if done < self.n:
            for point in self.points:
                yield Fork(point, min(_TOGETHER, self.n - done))


async def true_values(
    tree: Tree,
    points: Sequence[int],
    compiled: CompiledAgent,
    seed: int,
    continuations: int = CONTINUATIONS,
    *,
    ids: bool = False,
) -> list[Worth]:
    """Continue states of a tree, and say what became of them.

    Args:
        tree: The tree. It grows: give a copy of one that is still needed.
        points: States.
        kit: Who plays.
        seed: Of the continuations; not that of the tree.
        continuations: How many of each state, at least 2.
        ids: Whether prompts are sent as token ids, as those of the tree were.
    """
    core = tree.core
    first = core.rollouts
    llm = SimLLM(Settings(cache_tokens=0))
    await grow(tree.task, compiled, Continue(tuple(points), continuations, first), llm, seed, core=core)
    rewards: dict[int, list[float]] = {point: [] for point in points}
    for number in range(first, core.rollouts):
        facts = core.rollout(number)
        if not math.isnan(facts.reward):
            rewards[facts.point].append(facts.reward)
    return [_worth(rewards[point]) for point in points]


async def true_steps(
    tree: Tree,
    rollout: Trajectory,
    compiled: CompiledAgent,
    seed: int,
    known: dict[bytes, Worth],
    continuations: int = CONTINUATIONS,
    *,
    ids: bool = False,
) -> list[Step]:
    """What each step of a rollout was worth.

    Args:
        tree: Its tree, which has given no delta so far; it does not change.
        rollout: A scored rollout.
        kit: Who plays.
        seed: Of the continuations.
        known: Worths by conversation, shared between trees of one question; new ones are added.
        continuations: How many of each state.
        ids: As for :func:`true_values`.
    """
    core = tree.core
    turns = [node for node in core.path(rollout.leaf.id) if core.node(node).kind == TURN]
    states = [core.node(turn).parent for turn in turns]
    missing = [state for state in states if core.messages(state) not in known]
    if missing:
        found = await true_values(_copy(tree), missing, compiled, seed, continuations, ids=ids)
        known.update((core.messages(state), worth) for state, worth in zip(missing, found, strict=True))
    worths = [known[core.messages(state)] for state in states]
    after = [*worths[1:], Worth(rollout.reward, 0.0)]
    return [Step(turn, tuple(worths[: place + 1]), after[place]) for place, turn in enumerate(turns)]


def _worth(rewards: Sequence[float]) -> Worth:
    value = math.fsum(rewards) / len(rewards)
    return Worth(value, value * (1 - value) / (len(rewards) - 1))


def _copy(tree: Tree) -> Tree:
    core = CoreTree()
    data = tree.core.delta()
    assert data is not None, "a tree that has given a delta cannot be copied from the next one"
    core.apply(data)
    return Tree(tree.task, core)
