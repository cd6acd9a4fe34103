"""Advantages of steps by every estimator that gives them, beside what they are estimates of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trunkline._core import estimate, node_values, step_forest, to_nodes

if TYPE_CHECKING:
    from studies.truth import Step
    from trunkline.tree.views import Tree

__all__ = ["ESTIMATORS", "Estimator", "Guess", "guesses"]

LEAST_DEVIATION: Final = 0.1
"""A standardised advantage has no target where the rewards of a question deviate less than this."""

_NUDGE: Final = 1e-4


class Columns(NamedTuple):
    """A tree's steps as estimators are fed with them: the scored rollouts alone."""

    parents: memoryview
    leaves: list[int]
    rewards: list[float]
    subgroups: list[int]


Target = Callable[["Step"], float]


class Estimator(NamedTuple):
    """An estimator whose values are taken to turns.

    Attributes:
        name: What the tables call it.
        target: What it estimates, in words.
        values: Its value of every node.
        true: What that should be, for one step.
    """

    name: str
    target: str
    values: Callable[[Columns], Sequence[float]]
    true: Target


class Guess(NamedTuple):
    """One estimate of one step's advantage.

    Attributes:
        estimator: By whom.
        value: The estimate.
        true: What it should be, from the continuations.
        error: Variance of that.
    """

    estimator: str
    value: float
    true: float
    error: float


def _local(step: Step) -> float:
    return step.after.value - step.before[-1].value


def _global(step: Step) -> float:
    return step.after.value - step.before[0].value


def _both(step: Step) -> float:
    return _local(step) + _global(step)


def _ancestors(step: Step) -> float:
    return step.after.value - math.fsum(worth.value for worth in step.before) / len(step.before)


def _standard(times: float) -> Target:
    def true(step: Step) -> float:
        start = step.before[0].value
        deviation = math.sqrt(start * (1 - start))
        return times * _global(step) / deviation if deviation >= LEAST_DEVIATION else math.nan

    return true


def _leaf_mean(column: int) -> Callable[[Columns], Sequence[float]]:
    return lambda tree: node_values(tree.parents, tree.leaves, tree.rewards)[column]


def _rows(preset: str, **options: Any) -> Callable[[Columns], Sequence[float]]:
    def values(tree: Columns) -> Sequence[float]:
        trees: dict[str, Any] = {"parents": tree.parents, "leaves": tree.leaves}
        found, _ = estimate(preset, tree.rewards, subgroup=tree.subgroups, **trees, **options)
        return to_nodes(found, **trees)[0]

    return values


def _nodes(preset: str, **options: Any) -> Callable[[Columns], Sequence[float]]:
    return lambda tree: estimate(preset, tree.rewards, parents=tree.parents, leaves=tree.leaves, **options)[0]


ESTIMATORS: Final = (
    Estimator("leaf mean, local", "V(s') - V(s)", _leaf_mean(1), _local),
    Estimator("leaf mean, global", "V(s') - V(root)", _leaf_mean(2), _global),
    Estimator("SPO", "V(s') - V(s)", _nodes("spo_rloo", drop_zero=False), _local),
    Estimator("TreeRL, undamped", "local + global", _nodes("treerl_code", damping="none", fill=False), _both),
    Estimator("TreePO", "V(s') - mean V above", _rows("treepo_average", whiten="none"), _ancestors),
    Estimator("RLOO", "V(s') - V(root)", _rows("rloo"), _global),
    Estimator("GRPO", "global / deviation", _rows("trl"), _standard(1)),
    Estimator("Tree-GRPO", "2 global / deviation", _rows("tree_grpo"), _standard(2)),
    Estimator("ARPO, hard", "global / deviation", _nodes("arpo_hard"), _standard(1)),
)
"""Those that say something of a step. Where rollouts have one value each, a step has their mean over all through it."""


def guesses(tree: Tree, steps: Sequence[Step]) -> list[Guess]:
    """What every estimator says of some steps of a tree.

    Args:
        tree: A labelled tree with at least two scored rollouts.
        steps: Steps of it, with their truth.
    """
    parents, ends = step_forest(*tree.core.shape())
    scored = [rollout for rollout in tree.rollouts if not math.isnan(rollout.reward)]
    columns = Columns(
        parents,
        [ends[rollout.id] for rollout in scored],
        [rollout.reward for rollout in scored],
        [rollout.subgroup for rollout in scored],
    )
    found = []
    for estimator in ESTIMATORS:
        values = estimator.values(columns)
        for step in steps:
            true = estimator.true(step)
            if not math.isnan(true):
                found.append(Guess(estimator.name, values[step.node], true, _error(estimator.true, step)))
    return found


def _error(true: Target, step: Step) -> float:
    """Variance of a target, which comes of all the worths in it, by their slopes."""
    worths = [*step.before, step.after]
    flat, total = true(step), 0.0
    for place, worth in enumerate(worths):
        # Towards a half, where the deviation is largest, so that the target still has a value.
        nudge = _NUDGE if worth.value < 0.5 else -_NUDGE
        moved = [*worths[:place], worth._replace(value=worth.value + nudge), *worths[place + 1 :]]
        slope = (true(step._replace(before=tuple(moved[:-1]), after=moved[-1])) - flat) / nudge
        total += worth.error * slope**2
    return total
