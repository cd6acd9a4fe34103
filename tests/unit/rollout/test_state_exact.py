"""Environments in token-exact mode, where calls stand in a turn's text and not beside it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from exact_runs import grow, serving
from notebook import Notebook, Paper, account, forget

from trunkline._core import OBSERVATION
from trunkline.llm.token_ids.base import TokenMode
from trunkline.sim.tools import search as find
from trunkline.sim.tools import visit
from trunkline.strategies.base import Strategy
from trunkline.strategies.entropy_tree import EntropyTree
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.tools.environment import Environment
from trunkline.tools.tool import tool
from trunkline.types import Task, Termination


@tool
async def search(query: list[str], notes: Paper) -> str:
    """Search the corpus, and say how often that was done.

    Args:
        query: Search queries, most important first.
    """
    said = notes.write(".")
    return f"{await find(query)}\nsearches: {said.count('.')}"


@pytest.mark.parametrize(
    ("api", "strategy"),
    [
        ("chat", TreeGRPO(trees=2, forks=3, rounds=2)),
        ("completions", TreeGRPO(trees=2, forks=3, rounds=2)),
        ("generate", EntropyTree(chains=2, points=3, samples=2)),
    ],
)
@pytest.mark.parametrize("environment", [Notebook, Paper])
async def test_a_fork_has_the_state_of_its_point(
    api: str, strategy: Strategy, environment: type[Environment], tasks: list[Task]
):
    forget()
    mode = TokenMode(api=api)
    async with serving(mode) as (llm, _):
        trees = await grow(mode, llm, tasks[:2], strategy=strategy, tools=[search, visit], environment=environment)
    done = account()
    middle = [r for tree in trees for r in tree.rollouts if r.point.depth > 2 and "searches" in str(r.messages)]
    assert middle
    if environment is Notebook:
        assert "restore" in done
    for tree in trees:
        for rollout in tree.rollouts:
            assert rollout.termination in {Termination.ANSWER, Termination.MAX_TURNS}, rollout.error
            texts = [node.text for node in rollout.nodes if node.kind == OBSERVATION]
            counts = [int(text.rpartition(": ")[2]) for text in texts if "searches: " in text]
            assert all(after == before + 1 for before, after in pairwise([0, *counts])), counts
