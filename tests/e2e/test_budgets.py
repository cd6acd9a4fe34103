"""Runs under budgets, with real workers and servers: what they spend, and how they end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from atlas import CAPITALS, agent, suicide
from atlas import tasks as capitals
from foreign import capital_cities, message, serving

from trunkline._core import base_seed
from trunkline.agent import Agent
from trunkline.cli.demo import simulator
from trunkline.llm.config import LLM
from trunkline.llm.pricing import Price
from trunkline.llm.request import Sampling
from trunkline.rollout.budget import Budget
from trunkline.runner.result import Run
from trunkline.runner.run import run
from trunkline.scoring.rewards import exact_match
from trunkline.sim.tools import CORPUS_VARIABLE, search, visit
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import make_world
from trunkline.store.datasets.loader import load_tasks
from trunkline.store.reader import RunReader
from trunkline.strategies.chain import Chain
from trunkline.types import Task, Termination

MOST = 400


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[Task]]]:
    folder = tmp_path_factory.mktemp("world")
    write_world(make_world(3, 200, 30), folder)
    with pytest.MonkeyPatch.context() as patch, simulator("default", False) as url:
        patch.setenv(CORPUS_VARIABLE, str(folder / "corpus.jsonl"))
        yield url, load_tasks(str(folder / "questions.jsonl"), limit=12)


def played(world: tuple[str, list[Task]], workers: int, **options: object) -> Run:
    url, tasks = world
    who = Agent(model="sim-agent", tools=[search, visit], max_turns=8, sampling=Sampling(max_tokens=MOST))
    llm = LLM(url, max_concurrency=12, price=Price(prompt=1, generated=2))
    return run(who, tasks, llm=llm, strategy=Chain(3), reward=exact_match, workers=workers, seed=4, **options)


def spent(result: Run) -> dict[str, int]:
    """What the rows say."""
    rows = [call for _, call in result.calls()]
    prompt, generated = sum(call.prompt for call in rows), sum(call.generated for call in rows)
    return {
        "calls": sum(call.draws for call in rows),
        "tokens": prompt + generated,
        "generated": generated,
        "micro_dollars": prompt + 2 * generated,
        "rollouts": sum(len(tree.rollouts) for tree in result),
        "tools": sum(tree.usage.tools for tree in result),
    }


@pytest.mark.parametrize(
    ("workers", "budget"),
    [
        (0, Budget(calls=40)),
        (2, Budget(calls=40)),
        (0, Budget(tokens=40_000, generated=6_000)),
        (2, Budget(tokens=40_000, money=0.03)),
        (0, Budget(rollouts=20)),
        (0, Budget(tools=25)),
    ],
    ids=str,
)
def test_a_run_spends_what_its_rows_say_and_never_more_than_its_budget(world, workers: int, budget: Budget):
    result = played(world, workers, budget=budget)
    rows = spent(result)
    with RunReader.open(result.path) as reader:
        assert reader.check() == []
        summary = reader.summary()
        assert reader.meta["state"] == result.state
    found = summary.budget
    for currency, limit in budget.limits.items():
        assert rows[currency] <= found.spent[currency] <= limit
        assert found.spent[currency] == rows[currency] + found.estimated[currency]
    assert found.refused > 0
    assert summary.ended["budget"] > 0
    assert summary.timing == ["budget"]
    for tree in result:
        for rollout in tree.rollouts:
            if rollout.termination == Termination.CENSORED:
                assert rollout.error.message.startswith("run budget: ")
                assert rollout.reward != 0
    assert result.state in {"budget", "done"}
    assert (result.state == "done") == (summary.finished == summary.tasks)


def test_what_a_task_budget_refuses_does_not_depend_on_workers(world):
    budget = Budget(tokens=9_000, tools=6)
    results = [played(world, workers, task_budget=budget) for workers in (0, 2)]
    digests = [{tree.task.id: tree.digest() for tree in result} for result in results]
    assert digests[0] == digests[1]
    summary = results[0].summary()
    assert 0 < summary.terminations["censored"] < summary.rollouts
    assert summary.timing == []
    for tree in results[0]:
        assert tree.usage.prompt + tree.usage.generated <= budget.tokens


def with_usage(body: dict) -> dict:
    """Calls the tool once, then answers; each turn has 100 prompt tokens and 10 generated ones."""
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    if any(said["role"] == "tool" for said in body["messages"]):
        return capital_cities(body) | {"usage": usage}
    country = body["messages"][0]["content"].removeprefix("Capital of ").rstrip("?")
    return message(None, [(body["tools"][0]["function"]["name"], json.dumps({"country": country}))], usage=usage)


@pytest.mark.breaks_rollouts
def test_a_dead_worker_leaves_an_estimate_and_the_run_within_its_budget(tmp_path: Path):
    brazil = next(task for task in capitals() if task.id == "Brazil")
    others = [
        Task.ask(f"Capital of {country}?", answer, id=f"{country} {number}")
        for number in range(8)
        for country, answer in CAPITALS.items()
        if country != "Brazil"
    ]
    who = agent(tools=[suicide], sampling=Sampling(max_tokens=50))
    with serving(with_usage) as server:
        llm = LLM(server.url, max_concurrency=4)
        result = run(who, [brazil, *others], llm=llm, workers=2, budget=Budget(generated=40_000), out=tmp_path / "r")
        asked = len(server.bodies)
    summary = result.summary()
    found = summary.budget
    assert result["Brazil"].rollouts[0].termination == Termination.LOST
    assert result.state == "done"
    assert found.spent["generated"] >= 10 * asked, "also what was lost is counted"
    assert 0 < found.estimated["generated"] <= found.spent["generated"] <= 40_000
    # No more than a step of the lease, an eighth of a quarter, beyond what it had in flight.
    assert found.estimated["generated"] <= 40_000 / 4 / 8 + 2 * (4 + 64) * 50


def test_stragglers_are_given_up_once_there_are_enough(tmp_path: Path):
    kept, given_up = [], []

    async def held(body: dict) -> dict:
        """Never answers the last two draws of a question."""
        question = body["messages"][0]["content"]
        country = question.removeprefix("Capital of ").rstrip("?")
        draw = body["seed"] - base_seed(1, country, [], 0)
        if draw < 6:
            return message(f"<answer>{question}</answer>")
        kept.append(draw)
        try:
            await asyncio.Event().wait()
        finally:
            given_up.append(draw)

    with serving(held) as server:
        llm = LLM(server.url, max_concurrency=64, siblings=False)
        result = run(agent(), capitals(), llm=llm, strategy=Chain(8), workers=0, seed=1, enough=6, out=tmp_path / "r")
        deadline = time.monotonic() + 10
        while len(given_up) < len(kept):
            assert time.monotonic() < deadline, "the server still works for nobody"
            time.sleep(0.01)
    summary = result.summary()
    assert summary.terminations == {"answer": 30, "censored": 10}
    assert summary.ended == {"enough": 5}
    assert summary.timing == ["enough"]
    with RunReader.open(result.path) as reader:
        assert reader.check() == []
        assert reader.settings["timing_dependent"] == ["enough"]


@pytest.mark.parametrize(("workers", "seconds"), [(0, 0.3), (2, 0.05)], ids=["while it runs", "before workers are up"])
def test_when_the_runs_time_is_over_what_grows_is_cut_and_the_rest_is_not_begun(
    tmp_path: Path, workers: int, seconds: float
):
    async def held(_: dict) -> dict:
        await asyncio.Event().wait()
        raise AssertionError

    with serving(held) as server:
        llm = LLM(server.url, max_concurrency=2)
        many = [Task.ask(f"{number}?", id=str(number)) for number in range(40)]
        result = run(agent(), many, llm=llm, workers=workers, budget=Budget(seconds=seconds), out=tmp_path / "r")
    assert result.state == "deadline"
    summary = result.summary()
    assert (summary.finished > 0) == (workers == 0)
    assert summary.finished < 40
    assert summary.ended == ({"deadline": summary.finished} if summary.finished else {})
    assert summary.terminations == ({"censored": summary.rollouts} if summary.finished else {})
    with RunReader.open(result.path) as reader:
        assert reader.check() == []
