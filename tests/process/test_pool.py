"""A pool that serves many runs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from atlas import CAPITALS, agent, tasks
from foreign import capital_cities, serving
from trunkline_children import actors, children

import trunkline as tl
from trunkline.errors import UsageError
from trunkline.llm.config import LLM
from trunkline.types import Task


def llm(url: str) -> LLM:
    return LLM(url, max_concurrency=8, max_retries=0)


def answers(run: tl.Run) -> dict[str, str | None]:
    return {tree.task.id: tree.answer for tree in run}


def many(count: int) -> list[Task]:
    return [Task.ask("Capital of France?", id=str(number)) for number in range(count)]


def until(true: object, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.01)


@pytest.fixture(scope="module", params=["inline", "local", pytest.param("ray", marks=pytest.mark.pool)])
def pool(request: pytest.FixtureRequest):
    """One pool for all that are to leave it whole."""
    if request.param == "ray":
        yield request.getfixturevalue("ray_pool")
        return
    with tl.Pool(request.param, workers=None if request.param == "inline" else 2) as made:
        yield made
    assert not children()


def test_many_runs_share_the_same_processes(pool: tl.Pool):
    seen = set()
    with serving(capital_cities) as server:
        for seed in range(2):
            result = pool.run(agent(), tasks(), llm=llm(server.url), seed=seed)
            assert answers(result) == CAPITALS
            seen |= set(actors() if pool.kind == "ray" else children())
    assert len(seen) == pool.backend.workers


async def test_all_ways_to_run_follow_one_another(pool: tl.Pool):
    with serving(capital_cities) as server:
        assert answers(await pool.arun(agent(), tasks(), llm=llm(server.url))) == CAPITALS
        found = {tree.task.id: tree.answer async for tree in pool.stream(agent(), tasks(), llm=llm(server.url))}
        assert found == CAPITALS
        assert answers(pool.run(agent(), tasks(), llm=llm(server.url))) == CAPITALS
        assert answers(tl.run(agent(), tasks(), llm=llm(server.url), pool=pool)) == CAPITALS


def test_trees_are_those_of_a_run_without_a_pool(pool: tl.Pool):
    with serving(capital_cities) as server:
        alone = tl.run(agent(), tasks(), llm=llm(server.url), seed=5, workers=1)
        result = pool.run(agent(), tasks(), llm=llm(server.url), seed=5)
    assert [tree.digest() for tree in result] == [tree.digest() for tree in alone]


def test_loops_come_and_go(pool: tl.Pool):
    with serving(capital_cities) as server:
        for _ in range(3):
            assert answers(asyncio.run(pool.arun(agent(), tasks(), llm=llm(server.url)))) == CAPITALS


async def test_a_second_run_at_the_same_time_is_refused(pool: tl.Pool, tmp_path: Path):
    with serving(capital_cities) as server:
        trees = pool.stream(agent(), tasks(), llm=llm(server.url))
        await anext(trees)
        with pytest.raises(UsageError, match="at work on another run"):
            pool.run(agent(), tasks(), llm=llm(server.url), out=tmp_path / "r")
        assert list(tmp_path.iterdir()) == []
        await trees.aclose()
        assert answers(await pool.arun(agent(), tasks(), llm=llm(server.url))) == CAPITALS


async def test_a_stream_that_is_closed_early_leaves_the_pool_whole(pool: tl.Pool):
    with serving(capital_cities, delay=0.01) as server:
        trees = pool.stream(agent(), many(200), llm=llm(server.url))
        assert (await anext(trees)).answer == "Paris"
        await trees.aclose()
        sent = len(server.bodies)
        await asyncio.sleep(0.2)
        assert len(server.bodies) == sent < 800
        assert answers(await pool.arun(agent(), tasks(), llm=llm(server.url))) == CAPITALS


def test_a_run_that_fails_leaves_the_pool_whole(pool: tl.Pool, tmp_path: Path):
    with pytest.raises(tl.errors.EndpointError):
        pool.run(agent(), tasks(), llm=llm("http://127.0.0.1:9/v1"), out=tmp_path / "r")
    assert list(tmp_path.iterdir()) == []
    with serving(capital_cities) as server:
        assert answers(pool.run(agent(), tasks(), llm=llm(server.url))) == CAPITALS
