"""Every strategy in real runs: equal trees for any number of processes, and figures that add up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from every_strategy import STRATEGIES

from trunkline.agent import Agent
from trunkline.llm.config import LLM
from trunkline.llm.request import Sampling
from trunkline.protocol.job import region_of
from trunkline.runner.pool import Pool
from trunkline.runner.result import Run
from trunkline.runner.run import run
from trunkline.scoring.diversity import diversity, tries
from trunkline.scoring.rewards import exact_match
from trunkline.sim.tools import CORPUS_VARIABLE, search, visit
from trunkline.store.datasets.loader import load_tasks
from trunkline.store.reader import RunReader
from trunkline.store.stats.calls import probes
from trunkline.strategies.base import Strategy
from trunkline.types import Task


@pytest.fixture(scope="module")
def tasks(world: Path) -> Iterator[list[Task]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CORPUS_VARIABLE, str(world / "corpus.jsonl"))
        yield load_tasks(str(world / "questions.jsonl"), limit=5)


def grow(url: str, tasks: list[Task], strategy: Strategy, workers: int | Pool, out: Path | None = None) -> Run:
    return run(
        Agent(
            model="sim-agent",
            tools=[search, visit],
            max_turns=10,
            sampling=Sampling(logprobs=True, top_logprobs=2),
        ),
        tasks,
        llm=LLM(url, max_concurrency=8),
        strategy=strategy,
        reward=exact_match,
        seed=5,
        out=out,
        **({"pool": workers} if isinstance(workers, Pool) else {"workers": workers}),
    )


@pytest.mark.parametrize("name", ["tree-grpo", "mcts with a value"])
def test_trees_are_the_same_in_any_number_of_processes(url: str, tasks: list[Task], name: str):
    digests = [
        {tree.task.id: tree.digest() for tree in grow(url, listed, STRATEGIES[name], workers)}
        for workers, listed in ((0, tasks), (1, tasks[::-1]), (2, tasks[::-1]))
    ]
    assert digests[0] == digests[1] == digests[2]


@pytest.mark.pool
def test_trees_are_the_same_on_ray(url: str, tasks: list[Task], ray_pool: Pool):
    alone, there = (grow(url, tasks, STRATEGIES["mcts with a value"], where) for where in (0, ray_pool))
    assert {tree.task.id: tree.digest() for tree in alone} == {tree.task.id: tree.digest() for tree in there}


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_figures_of_a_run_are_those_of_its_trees(url: str, tasks: list[Task], name: str, tmp_path: Path):
    strategy = STRATEGIES[name]
    alone = grow(url, tasks, strategy, 0, tmp_path / "run")
    with RunReader.open(alone.path) as reader:
        assert reader.check() == [], "every row is derived from the deltas"
        probed = probes(reader.meta)
    assert bool(probed) == (region_of(strategy) is not None), "one that needs log-probs has the server asked for them"
    trees, summary, listed = list(alone), alone.summary(), alone.by_task()
    assert summary.strategy.startswith(f"{type(strategy).__name__}(")
    valued = getattr(strategy, "value", None) is not None
    assert ("value='halfway'" in summary.strategy) == valued, "functions have names"
    assert [(task.tokens, task.rollouts, task.usage) for task in listed] == [
        (tree.tokens, len(tree.rollouts), tree.usage) for tree in trees
    ]
    assert summary.tokens.flat == sum(task.tokens.flat for task in listed)
    assert summary.paths == sum(task.paths for task in listed) >= summary.usage.calls
    assert summary.diversity == diversity([tries(tree) for tree in trees])
    kept = [rollout for tree in trees for rollout in tree.rollouts if rollout.termination != "censored"]
    cut = [rollout for tree in trees for rollout in tree.rollouts if rollout.termination == "censored"]
    for length, rollouts in ((summary.kept, kept), (summary.cut, cut)):
        generated = [rollout.generated for rollout in rollouts]
        assert (length is None) == (not rollouts)
        if length is not None:
            assert (length.rollouts, length.turns) == (len(rollouts), sum(r.turns for r in rollouts) / len(rollouts))
            assert length.generated == pytest.approx(math.fsum(map(float, generated)) / len(generated))
    requests = [call for _, call in alone.calls()]
    assert sum(call.prompt for call in requests) <= summary.usage.prompt
    assert summary.prompt == sum(call.prompt for call in (*requests, *probed)), "all that was sent"
    assert summary.uncached == sum(call.prompt - call.cached for call in (*requests, *probed))
    (endpoint,) = summary.endpoints
    assert (endpoint.requests, endpoint.probes) == (len(requests), len(probed))
