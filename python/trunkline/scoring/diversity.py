"""How much the tries of a task differ: shared trunks save tokens, and make tries alike."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trunkline.scoring.answers import action
from trunkline.scoring.metrics.columns import NestedColumn
from trunkline.tree.answers import normalise
from trunkline.tree.views import Kind
from trunkline.types import UNSCORED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trunkline.tree.views import Tree


Clusters = Sequence[Sequence[float]]
"""Rewards of one task, in one list for each initial chain; NaN is unscored."""


class Try(NamedTuple):
    """A rollout as diversity counts it."""

    subgroup: int
    reward: float
    answer: str | None
    action: str | None


class Distinct(msgspec.Struct, frozen=True):
    """How many distinct values there are among how many, as means over tasks.

    Attributes:
        found: Different ones.
        of: Tries that have one.
    """

    found: float
    of: float


class Diversity(msgspec.Struct, frozen=True):
    """How much the tries of a task differ, over the tasks of a run.

    Attributes:
        actions: First actions a task; tries that broke or were cut count too, if they took a turn.
        answers: Answers a task.
        scored: Scored tries a task, in the mean over tasks that have any.
        shared: Whether anywhere two scored tries come from one initial chain.
        rho: Intra-class correlation of rewards; see ``intraclass``. None where it cannot be estimated.
        effective: Independent tries that would say as much, in the mean over the same tasks; see ``effective``.
            None where ``rho`` is.
    """

    actions: Distinct
    answers: Distinct
    scored: float
    shared: bool
    rho: float | None
    effective: float | None

    @property
    def design_effect(self) -> float | None:
        """By how much the variance of a mean reward exceeds that of independent tries (Kish 1965)."""
        return self.scored / self.effective if self.effective else None


def intraclass(tasks: Sequence[Clusters], unit: float | None = None) -> float | None:
    """The correlation of rewards within one initial chain's rollouts, or None if it cannot be estimated.

    The ANOVA estimator of the one-way random effects model (Donner 1986, International Statistical Review 54), with
    chains as classes and tasks as strata of fixed means. With m_c rollouts of chain c and N of a task::

        MSB = sum m_c (mean_c - mean_task)^2 / sum (chains - 1)
        MSW = sum (reward - mean_c)^2 / sum (N - chains)
        m0 = sum (N - sum m_c^2 / N) / sum (chains - 1)
        rho = (MSB - MSW) / (MSB + (m0 - 1) MSW), at least -1

    Tasks with a single scored rollout may be left out, if ``unit`` is the largest size of their rewards.
    """
    freedom = loose = 0
    varies = False
    for task in map(_scored, tasks):
        if task:
            freedom += len(task) - 1
            loose += sum(len(chain) - 1 for chain in task)
            varies |= len({reward for chain in task for reward in chain}) > 1
            unit = max(unit or 0.0, *(abs(reward) for chain in task for reward in chain))
    if unit is None:
        return None
    if not loose:
        return 0.0
    if not freedom or not varies:
        return None
    between, within, size = _squares(tasks, unit)
    msb = between / freedom
    msw = within / loose
    scale = msb + (size / freedom - 1) * msw
    # What is left of rounding is no variance.
    return max((msb - msw) / scale, -1.0) if scale > 1e-12 * msw else None


def effective(sizes: Sequence[int], rho: float) -> float:
    """The number of independent tries whose mean reward has the variance of these chains' mean.

    With correlation rho within a chain of m tries it is ``n = N^2 / sum m (1 + (m - 1) rho)`` (Kish 1965, "Survey
    Sampling").
    """
    rho = min(max(rho, 0.0), 1.0)
    spread = math.fsum(size * (1 + (size - 1) * rho) for size in sizes)
    return sum(sizes) ** 2 / spread if spread else 0.0


def diversity(tasks: Iterable[Sequence[Try]]) -> Diversity | None:
    counter = DiversityCounter()
    for task in tasks:
        counter.add(task)
    return counter.diversity()


class DiversityCounter:
    """Counts the diversity of tries, one task at a time."""

    def __init__(self) -> None:
        self._count = 0
        # Tasks with a single scored try: so many, and the largest size of their rewards.
        self._single = 0
        self._unit: float | None = None
        self._clusters = NestedColumn()
        self._actions = _DistinctCounter()
        self._answers = _DistinctCounter()

    def add(self, task: Sequence[Try]) -> None:
        if not task:
            return
        self._count += 1
        self._actions.add([given.action for given in task])
        self._answers.add([given.answer and normalise(given.answer) for given in task])
        match clusters(task):
            case []:
                pass
            case [[reward]]:
                self._single += 1
                self._unit = max(self._unit or 0.0, abs(reward))
            case found:
                self._clusters.append(found)

    def add_single(self, tries: int, actions: int, answers: int, rewards: Sequence[float]) -> None:
        """Add tasks of one try each: how many of the tries have an action and an answer, and the rewards of some."""
        self._count += tries
        self._actions.add_single(actions)
        self._answers.add_single(answers)
        if rewards:
            self._single += len(rewards)
            self._unit = max(self._unit or 0.0, *map(abs, rewards))

    def diversity(self) -> Diversity | None:
        """The diversity so far; None without tries."""
        count = self._count
        if not count:
            return None
        rho = intraclass(self._clusters, self._unit)
        scored = tasks = self._single
        shared = False
        worth = array("d", [1.0]) * self._single
        for task in self._clusters:
            sizes = [len(chain) for chain in task]
            tasks += 1
            scored += sum(sizes)
            shared |= any(size > 1 for size in sizes)
            if rho is not None:
                worth.append(effective(sizes, rho))
        return Diversity(
            actions=self._actions.mean(count),
            answers=self._answers.mean(count),
            scored=scored / tasks if tasks else 0.0,
            shared=shared,
            rho=rho,
            effective=None if rho is None else _mean(worth),
        )


class _DistinctCounter:
    """Adds up distinct values over tasks."""

    def __init__(self) -> None:
        self._found = self._of = 0

    def add(self, task: Sequence[str | None]) -> None:
        keys = [key for key in task if key]
        self._found += len(set(keys))
        self._of += len(keys)

    def add_single(self, tries: int) -> None:
        """Add tasks of one try each that has a value."""
        self._found += tries
        self._of += tries

    def mean(self, tasks: int) -> Distinct:
        return Distinct(self._found / tasks, self._of / tasks)


def tries(tree: Tree) -> list[Try]:
    """The rollouts of a tree as diversity counts them."""
    found = []
    for rollout in tree.rollouts:
        counts = rollout.termination is not None and rollout.termination not in UNSCORED
        path = map(tree.node, tree.core.path(rollout.leaf.id))
        first = next((node.message for node in path if node.kind is Kind.TURN), None)
        found.append(
            Try(
                rollout.subgroup,
                rollout.reward if counts else math.nan,
                rollout.answer if counts else None,
                None if first is None else action(first),
            )
        )
    return found


def clusters(task: Sequence[Try]) -> list[list[float]]:
    """Return the rewards of a task's scored tries by the initial chain that they were expanded for."""
    chains: dict[int, list[float]] = {}
    for given in task:
        if not math.isnan(given.reward):
            if given.subgroup in chains:
                chains[given.subgroup].append(given.reward)
            else:
                chains[given.subgroup] = [given.reward]
    return [*chains.values()]


def _scored(task: Clusters) -> list[list[float]]:
    """Leave out what is unscored, and chains of which nothing is left."""
    chains = ([reward for reward in chain if not math.isnan(reward)] for chain in task)
    return [chain for chain in chains if chain]


def _squares(tasks: Sequence[Clusters], unit: float) -> tuple[float, float, float]:
    """Return the sums over chains in MSB, MSW and m0 (``intraclass``), in units of the largest reward."""
    # Squares of what a float can hold may be more than that; no unit changes the estimate.
    between, within, size = array("d"), array("d"), array("d")
    for task in filter(None, map(_scored, tasks)):
        chains = [[reward / unit for reward in chain] for chain in task]
        rewards = [reward for chain in chains for reward in chain]
        level = _mean(rewards)
        for chain in chains:
            own = _mean(chain)
            between.append(len(chain) * (own - level) ** 2)
            within.extend((reward - own) ** 2 for reward in chain)
            size.append(len(chain) - len(chain) ** 2 / len(rewards))
    return math.fsum(between), math.fsum(within), math.fsum(size)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
