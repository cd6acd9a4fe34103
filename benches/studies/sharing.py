"""How many rollouts a token budget buys as chains and as Tree-GRPO trees, predicted and measured."""

from __future__ import annotations

import asyncio
import math
import os
import tempfile
from typing import TYPE_CHECKING, Final, NamedTuple

from studies.engine import SimLLM
from studies.growth import agent, grow
from studies.interval import Interval, ratio
from studies.study import FIRST_WORLD
from trunkline._core import TURN
from trunkline.agent import CompiledAgent
from trunkline.llm.request import Sampling
from trunkline.sim.server.options import Settings
from trunkline.sim.tools import CORPUS_VARIABLE
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import make_world
from trunkline.store.datasets.loader import load_tasks
from trunkline.strategies.chain import Chain
from trunkline.strategies.tree_grpo import TreeGRPO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.strategies.base import Strategy
    from trunkline.tree.views import Tree
    from trunkline.types import Task

__all__ = ["LENGTHS", "TREE", "Length", "Prompts", "Sharing", "predicted_cost", "run_sharing"]

TREE: Final = TreeGRPO(trees=2, forks=2, rounds=1)
"""The published setting."""

OBSERVED: Final = 16
"""Chains of each question from which the tree's cost is predicted."""

BUDGET: Final = 32
"""The budget of a question is what so many of its observed chains cost on average."""

SMALL_CACHE: Final = 8_000
"""Tokens of a prefix cache that does not hold what all questions need at once."""


class Length(NamedTuple):
    """Questions whose chains take a number of steps, where nothing goes astray.

    Attributes:
        steps: T.
        hops: Of the questions.
        tagged: Whether ``sim-tagged`` plays, with K + 1 turns for K hops, or ``sim-agent``, with 2 K + 1.
    """

    steps: int
    hops: int
    tagged: bool


LENGTHS: Final = (Length(3, 1, False), Length(5, 2, False), Length(10, 9, True))


class Prompts(NamedTuple):
    """Prompt tokens a rollout that no cache held, where all questions are asked at once.

    Attributes:
        chain: Of chains.
        tree: Of trees.
    """

    chain: float
    tree: float

    @property
    def saved(self) -> float:
        """The share that trees save."""
        return 1 - self.tree / self.chain


class Sharing(NamedTuple):
    """What came of one length.

    Attributes:
        length: Which.
        turns: Mean turns of the observed chains.
        budget: Generated tokens a question.
        chains: Rollouts that the budget gave as chains, a question.
        predicted: Rollouts that it was to give as trees.
        measured: Rollouts that it gave as trees.
        match: Measured over predicted.
        gain: Measured rollouts of trees over those of chains.
        roomy: Uncached prompt tokens with a cache that holds everything.
        tight: The same with one of ``SMALL_CACHE`` tokens.
    """

    length: Length
    turns: float
    budget: float
    chains: float
    predicted: float
    measured: float
    match: Interval
    gain: Interval
    roomy: Prompts
    tight: Prompts


def predicted_cost(chains: Sequence[Sequence[float]], trees: int, forks: int) -> float:
    """What one round of Tree-GRPO generates, by what chains of the same question did: ``M (E[X] + N E[tail])``.

    A continuation starts at a state drawn evenly from the T states of an initial chain, ``d`` steps into it, and costs
    what chains that take more than d steps generate after d.

    Args:
        chains: Of each observed chain the tokens of its steps.
        trees: M.
        forks: N.

    Returns:
        Expected tokens of a tree with ``M (1 + N)`` rollouts.
    """
    longest = max(map(len, chains))
    tails = []
    for depth in range(longest):
        rest = [math.fsum(chain[depth:]) for chain in chains if len(chain) > depth]
        tails.append(math.fsum(rest) / len(rest))
    whole = math.fsum(map(math.fsum, chains)) / len(chains)
    tail = math.fsum(math.fsum(tails[: len(chain)]) / len(chain) for chain in chains) / len(chains)
    return trees * (whole + forks * tail)


def run_sharing(length: Length, questions: int, preset: str = "default") -> Sharing:
    """Predict and measure for one length, in this process.

    Args:
        length: How long the chains are.
        questions: How many questions, at least 2.
        preset: How the model errs.
    """
    with tempfile.TemporaryDirectory(prefix="trunkline-study-") as folder:
        # A share of a world's questions are word problems, which take one step.
        made = make_world(FIRST_WORLD, 600, 2 * questions, (length.hops,))
        corpus, path = write_world(made, folder)
        os.environ[CORPUS_VARIABLE] = str(corpus)
        tasks = [task for task in load_tasks(str(path)) if task.metadata["kind"] == "lookup"][:questions]
        return asyncio.run(_Field(length, tasks, preset).run())


class _Field:
    """The questions of one length and who plays them."""

    def __init__(self, length: Length, tasks: Sequence[Task], preset: str) -> None:
        model = f"sim-{'tagged' if length.tagged else 'agent'}:{preset}"
        self.length = length
        self.tasks = tasks
        self.compiled = CompiledAgent(agent(model, Sampling(temperature=1.0), tagged=length.tagged, max_turns=80))

    async def run(self) -> Sharing:
        budgets, predicted, chains, trees, turns = [], [], [], [], []
        leaves = TREE.rollouts()
        for task in self.tasks:
            observed = _steps(await self._grow(task, Chain(OBSERVED), 0))
            turns.append(math.fsum(map(len, observed)) / OBSERVED)
            budget = math.fsum(map(math.fsum, observed)) / OBSERVED * BUDGET
            budgets.append(budget)
            predicted.append(budget / predicted_cost(observed, TREE.trees, TREE.forks) * leaves)
            chains.append(await self._spend(task, Chain(1), budget))
            trees.append(await self._spend(task, TREE, budget))
        count = len(self.tasks)
        return Sharing(
            self.length,
            math.fsum(turns) / count,
            math.fsum(budgets) / count,
            math.fsum(chains) / count,
            math.fsum(predicted) / count,
            math.fsum(trees) / count,
            ratio(trees, predicted),
            ratio(trees, chains),
            await self._prompts(Settings()),
            await self._prompts(Settings(cache_tokens=SMALL_CACHE)),
        )

    async def _grow(self, task: Task, strategy: Strategy, seed: int, llm: SimLLM | None = None) -> Tree:
        return await grow(task, self.compiled, strategy, llm or SimLLM(Settings(cache_tokens=0)), seed)

    async def _spend(self, task: Task, strategy: Strategy, budget: float) -> float:
        """Start over until the budget of a question is spent; the last start counts by the share there was left for."""
        left, rollouts, seed = budget, 0.0, 1
        while True:
            tree = await self._grow(task, strategy, seed)
            spent = tree.usage.generated
            if spent >= left:
                return rollouts + tree.core.rollouts * left / spent
            left -= spent
            rollouts += tree.core.rollouts
            seed += 1

    async def _prompts(self, settings: Settings) -> Prompts:
        """Ask all questions at once, and see what the server had to read anew."""
        found = []
        for strategy in (Chain(TREE.rollouts()), TREE):
            llm = SimLLM(settings)
            trees = await asyncio.gather(*(self._grow(task, strategy, 0, llm) for task in self.tasks))
            uncached = sum(tree.usage.prompt - tree.usage.cached for tree in trees)
            found.append(uncached / sum(tree.core.rollouts for tree in trees))
        return Prompts(*found)


def _steps(tree: Tree) -> list[list[float]]:
    """Generated tokens of every step of every rollout."""
    return [
        [float(node.generated_tokens or 0) for node in rollout.nodes if node.kind == TURN] for rollout in tree.rollouts
    ]
