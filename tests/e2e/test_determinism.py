"""The same seed gives the same trees: for any number of workers, any arrival order, again and again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from trunkline.agent import Agent, CompiledAgent
from trunkline.cli.demo import simulator
from trunkline.llm.config import LLM
from trunkline.llm.types import Reply
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.tree_runner import TreeRunner, TreeSettings
from trunkline.rollout.types import TurnSink
from trunkline.runner.pool import Pool
from trunkline.runner.run import run
from trunkline.scoring.rewards import exact_match
from trunkline.sim.tools import CORPUS_VARIABLE, search, visit
from trunkline.store.datasets.loader import load_tasks
from trunkline.strategies.base import Fork, View
from trunkline.strategies.chain import Chain
from trunkline.tree.views import Tree
from trunkline.types import Task


def digests(
    url: str, tasks: list[Task], concurrency: int, seed: int = 5, *, siblings: bool = True, **where: Any
) -> dict[str, str]:
    result = run(
        Agent(model="sim-agent", tools=[search, visit], max_turns=12),
        tasks,
        llm=LLM(url, max_concurrency=concurrency, siblings=siblings),
        strategy=Chain(3),
        reward=exact_match,
        **where,
        seed=seed,
    )
    sums = []
    for tree in result:
        counted = tree.tokens
        assert counted.flat > counted.tree >= counted.longest > 0, "three rollouts share at least their prompt"
        sums.append((counted.flat, counted.tree, counted.longest))
    total = result.summary().tokens
    flat, shared, longest = zip(*sums, strict=True)
    assert (total.flat, total.tree, total.longest) == (sum(flat), sum(shared), max(longest))
    return {tree.task.id: tree.digest() for tree in result}


@pytest.mark.parametrize("latency", [False, True], ids=["at once", "out of order"])
def test_digests_are_equal_for_any_pool_and_order(world: Path, monkeypatch: pytest.MonkeyPatch, latency: bool):
    monkeypatch.setenv(CORPUS_VARIABLE, str(world / "corpus.jsonl"))
    tasks = load_tasks(str(world / "questions.jsonl"), limit=10 if latency else 24)
    with simulator("default", latency) as url:
        alone = digests(url, tasks, workers=1, concurrency=2 if not latency else 30)
        shuffled = tasks[:]
        random.Random(1).shuffle(shuffled)
        assert digests(url, shuffled, workers=2, concurrency=64) == alone
        assert digests(url, tasks, workers=0, concurrency=7 if not latency else 30) == alone
        assert digests(url, tasks, workers=2, concurrency=64, seed=6) != alone


@pytest.mark.pool
def test_digests_are_equal_on_ray(world: Path, monkeypatch: pytest.MonkeyPatch, ray_pool: Pool, url: str):
    monkeypatch.setenv(CORPUS_VARIABLE, str(world / "corpus.jsonl"))
    tasks = load_tasks(str(world / "questions.jsonl"), limit=20)
    alone = digests(url, tasks, workers=0, concurrency=7)
    assert digests(url, tasks[::-1], pool=ray_pool, concurrency=64) == alone


class Waves(NamedTuple):
    """Draws of the prompt, so many in each round."""

    sizes: tuple[int, ...]

    def rollouts(self) -> int:
        return sum(self.sizes)

    def start(self, view: View) -> Iterator[Fork]:
        yield Fork(n=self.sizes[0])

    def ended(self, view: View) -> Iterator[Fork]:
        done = list(accumulate(self.sizes)).index(len(view.tree.rollouts)) + 1
        if done < len(self.sizes):
            yield Fork(n=self.sizes[done])


async def rounds(url: str, tasks: list[Task], *sizes: int) -> dict[str, str]:
    """Grow draws of each prompt in rounds of these sizes, without a runtime around it."""
    compiled = CompiledAgent(Agent(model="sim-agent", tools=[search, visit], max_turns=12))
    llm = LLM(url).open()
    found = {}
    try:
        for task in tasks:
            session = TreeRunner(
                Tree(task), TreeSettings(compiled, Waves(sizes), exact_match, 5, CompletionClient(llm)), Counting()
            )
            await session.run()
            found[task.id] = session.tree.digest()
    finally:
        await llm.close()
        await compiled.toolbox.close()
    return found


class Counting(TurnSink):
    """A sink without back-pressure."""

    async def reserve(self) -> None: ...

    def release(self) -> None: ...

    def called(self, reply: Reply) -> None: ...

    def grew(self, size: int = 0, turns: int = 0) -> None: ...


async def test_digests_are_equal_however_draws_are_asked_for(world: Path, monkeypatch: pytest.MonkeyPatch, url: str):
    monkeypatch.setenv(CORPUS_VARIABLE, str(world / "corpus.jsonl"))
    tasks = load_tasks(str(world / "questions.jsonl"), limit=12)
    with simulator("default", False, "--ignore-n") as deaf:
        together = await rounds(url, tasks, 4)
        assert await rounds(url, tasks, 1, 3) == together
        assert await rounds(url, tasks, 1, 1, 1, 1) == together
        assert await rounds(deaf, tasks, 4) == together
        assert await rounds(url, tasks, 3) != together


def test_a_run_that_asks_one_by_one_grows_the_same_trees(world: Path, monkeypatch: pytest.MonkeyPatch, url: str):
    monkeypatch.setenv(CORPUS_VARIABLE, str(world / "corpus.jsonl"))
    tasks = load_tasks(str(world / "questions.jsonl"), limit=20)
    together = digests(url, tasks, workers=2, concurrency=16)
    assert digests(url, tasks, workers=2, concurrency=16, siblings=False) == together
