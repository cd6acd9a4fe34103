"""A batch engine grows the trees that a server grows: for any batch size, sync or async."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from sim_engine import AsyncSimEngine, SimEngine

from trunkline.agent import Agent
from trunkline.cli.demo import simulator
from trunkline.llm.batch.batcher import BatchLLM
from trunkline.llm.types import Request
from trunkline.runner.result import Run
from trunkline.runner.run import run
from trunkline.scoring.rewards import exact_match
from trunkline.sim.tools import CORPUS_VARIABLE, search, visit
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import make_world
from trunkline.store.datasets.loader import load_tasks
from trunkline.strategies.chain import Chain
from trunkline.types import Task

TASKS, DRAWS = 8, 3
Told = dict[str, tuple[str, str | None, int, int]]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Task]]:
    folder = tmp_path_factory.mktemp("world")
    write_world(make_world(3, 200, 20), folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CORPUS_VARIABLE, str(folder / "corpus.jsonl"))
        yield load_tasks(str(folder / "questions.jsonl"), limit=TASKS)


def grow(tasks: list[Task], llm: object) -> Run:
    return run(
        Agent(model="sim-agent", tools=[search, visit], max_turns=12),
        tasks,
        llm=llm,
        strategy=Chain(DRAWS),
        reward=exact_match,
        workers=0,
        seed=5,
    )


def told(result: Run) -> Told:
    return {
        tree.task.id: (
            tree.digest(),
            tree.answer,
            # Of several draws at once a server tells the tokens together.
            sum(rollout.usage.prompt for rollout in tree.rollouts),
            sum(rollout.usage.generated for rollout in tree.rollouts),
        )
        for tree in result
    }


@pytest.fixture(scope="module")
def served(tasks: list[Task]) -> Told:
    with simulator("default", latency=False) as url:
        return told(grow(tasks, url))


@pytest.mark.parametrize("engine", [SimEngine, AsyncSimEngine], ids=["sync", "async"])
@pytest.mark.parametrize("size", [1, 7, 64])
def test_digests_answers_and_tokens_are_those_of_the_server(
    tasks: list[Task], served: Told, engine: type[SimEngine], size: int
):
    made = engine()
    result = grow(tasks, BatchLLM(made, max_batch=size))
    assert told(result) == served
    sizes = [len(batch) for batch in made.batches]
    assert max(sizes) == min(size, TASKS * DRAWS)
    seeds = [prompt.seed for batch in made.batches for prompt in batch]
    turns = sum(rollout.turns for tree in result for rollout in tree.rollouts)
    assert len(set(seeds)) == len(seeds) == turns, "each request is in exactly one batch"


@pytest.mark.parametrize("engine", [SimEngine, AsyncSimEngine], ids=["sync", "async"])
def test_an_engine_that_supports_n_is_asked_for_siblings_at_once(
    tasks: list[Task], served: Told, engine: type[SimEngine]
):
    made = engine()
    assert told(grow(tasks, BatchLLM(made, max_batch=7, supports_n=True))) == served
    counts = [prompt.n for batch in made.batches for prompt in batch]
    assert (max(counts), counts.count(DRAWS)) == (DRAWS, TASKS)
    assert max(sum(prompt.n for prompt in batch) for batch in made.batches) <= 7


@pytest.mark.parametrize("largest", [3, 64])
async def test_draws_are_the_same_together_or_each_in_a_prompt_of_its_own(tasks: list[Task], largest: int):
    tools = [search.definition, visit.definition]
    body = {"model": "sim-agent", "messages": tasks[0].messages, "tools": tools, "seed": 7}
    asked = Request(json.dumps(body).encode(), 1, n=8, seed=7)
    together, alone = SimEngine(), SimEngine()
    one = await BatchLLM(together, supports_n=True, max_batch=largest).open().complete(asked)
    other = await BatchLLM(alone, max_batch=largest).open().complete(asked)
    assert one.choices == other.choices
    assert len({choice.content for choice in one.choices}) > 1
    assert one.generated == other.generated
    assert (len(together.batches), len(alone.batches)) == (-(-8 // largest), -(-8 // largest))
