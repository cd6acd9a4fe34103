"""Weights that change between runs and under them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Awaitable
from pathlib import Path

import pytest
from atlas import agent, tasks
from foreign import capital_cities, message, serving
from trunkline_children import children

import trunkline as tl
from trunkline.controller.weights import WeightCoordinator
from trunkline.errors import ConfigError, UsageError
from trunkline.llm.config import LLM
from trunkline.store.reader import RunReader
from trunkline.tree.views import Kind
from trunkline.types import Task


def llm(url: str) -> LLM:
    return LLM(url, max_concurrency=8, max_retries=0)


def turns(run: tl.Run) -> list[tl.Node]:
    return [node for tree in run for node in tree.nodes if node.kind is Kind.TURN]


def checked(run: tl.Run) -> tl.Run:
    with RunReader.open(run.path) as reader:
        assert reader.check() == []
    return run


class Model:
    """A model that answers with the version it has; in between it can be made to wait."""

    def __init__(self) -> None:
        self.version = "old"
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()
        self.given_up = 0

    def __call__(self, body: dict) -> Awaitable[dict]:
        return self.answer(len([m for m in body["messages"] if m["role"] == "assistant"]))

    async def answer(self, turn: int) -> dict:
        version = self.version
        self.begun.release()
        try:
            while not self.go.is_set():
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        if turn < 2:
            return message(f"by {version}", [("lookup", '{"country": "France"}')])
        return message(f"by {version} <answer>Paris</answer>")

    async def awaited(self, requests: int) -> None:
        for _ in range(requests):
            assert await asyncio.to_thread(self.begun.acquire, timeout=60), "no request came"


@pytest.fixture(scope="module", params=["inline", "local", pytest.param("ray", marks=pytest.mark.pool)])
def pool(request: pytest.FixtureRequest):
    if request.param == "ray":
        pool = request.getfixturevalue("ray_pool")
        yield pool
        pool.weights = None
        return
    with tl.Pool(request.param, workers=None if request.param == "inline" else 2) as made:
        yield made


QUESTIONS = [Task.ask(f"q{number}", id=str(number)) for number in range(4)]


def test_every_turn_keeps_the_version_of_its_run(pool: tl.Pool):
    with serving(capital_cities) as server:
        first = pool.run(agent(), tasks(), llm=llm(server.url), policy_version="step-1", seed=3)
        same = pool.run(agent(), tasks(), llm=llm(server.url), seed=3)
        pool.update_weights("step-2")
        later = pool.run(agent(), tasks(), llm=llm(server.url), seed=3)
    assert {node.weights for node in turns(first)} == {node.weights for node in turns(same)} == {"step-1"}
    assert {node.weights for node in turns(later)} == {"step-2"}
    digests = [[tree.digest() for tree in run] for run in (first, same, later)]
    assert digests[0] == digests[1]
    assert all(one != other for one, other in zip(digests[0], digests[2], strict=True))
    assert pool.weights == "step-2"


def test_without_a_version_there_is_none():
    with serving(capital_cities) as server:
        run = tl.run(agent(), tasks(), llm=llm(server.url), workers=0)
    assert {node.weights for node in turns(run)} == {None}
    assert {tuple(rollout.weights) for tree in run for rollout in tree.rollouts} == {(None,)}


@pytest.mark.parametrize("policy", ["drain", "abort_resume"])
async def test_turns_are_of_exactly_the_version_they_carry(pool: tl.Pool, policy: str):
    model = Model()

    async def load() -> None:
        model.version = "new"
        # The server hears in its own time that nobody waits any more.
        while policy == "abort_resume" and model.given_up < 4:
            await asyncio.sleep(0.005)
        model.go.set()

    with serving(model) as server:
        running = asyncio.ensure_future(
            pool.arun(agent(), QUESTIONS, llm=llm(server.url), policy_version="old", reward=tl.exact_match)
        )
        await model.awaited(4)
        changing = asyncio.ensure_future(pool.aupdate_weights("new", load, policy))
        if policy == "drain":
            # Until every engine knows that it is to hold.
            await asyncio.sleep(0.5)
            model.go.set()
        await changing
        run = checked(await running)
    found = turns(run)
    assert all(node.text.startswith(f"by {node.weights}") for node in found)
    assert len(found) == 12
    if policy == "drain":
        assert {node.weights for node in found if node.turns == 1} == {"old"}
        assert model.given_up == 0
        assert {tuple(rollout.weights) for tree in run for rollout in tree.rollouts} == {("old", "new")}
    else:
        assert {node.weights for node in found} == {"new"}
        assert model.given_up == 4
        lost = [call for _, call in run.calls() if call.failed]
        assert len(lost) == 4


async def test_what_is_in_flight_finishes_under_the_old_version(pool: tl.Pool):
    model = Model()
    with serving(model) as server:
        running = asyncio.ensure_future(pool.arun(agent(), QUESTIONS, llm=llm(server.url), policy_version="old"))
        await model.awaited(4)
        await pool.aupdate_weights("new")
        model.go.set()
        run = checked(await running)
    assert [
        [node.weights for node in rollout.nodes if node.kind is Kind.TURN] for t in run for rollout in t.rollouts
    ] == [["old", "new", "new"]] * 4
    with RunReader.open(run.path) as reader:
        assert json.loads(reader.meta["weights"]) == ["old", "new"]


async def test_weights_that_do_not_load_change_nothing(pool: tl.Pool):
    model = Model()
    model.go.set()

    def fail() -> None:
        raise OSError("no such checkpoint")

    with serving(model) as server:
        running = asyncio.ensure_future(pool.arun(agent(), QUESTIONS, llm=llm(server.url), policy_version="old"))
        await model.awaited(4)
        with pytest.raises(OSError, match="no such checkpoint"):
            await pool.aupdate_weights("new", fail, "drain")
        run = await running
    assert {node.weights for node in turns(run)} == {"old"}
    assert pool.weights == "old"


@pytest.mark.parametrize("policy", ["finish", "drain", "abort_resume"])
async def test_a_run_that_begins_in_the_middle_of_a_change_is_part_of_it(pool: tl.Pool, policy: str):
    model, pool.weights = Model(), "old"
    runs: list[asyncio.Future[tl.Run]] = []

    async def load() -> None:
        runs.append(asyncio.ensure_future(pool.arun(agent(), QUESTIONS, llm=llm(server.url))))
        await (model.awaited(4) if policy == "finish" else asyncio.sleep(0.3))

    with serving(model) as server:
        await pool.aupdate_weights("new", load, policy)
        model.go.set()
        run = checked(await runs[0])
    spans = {("old", "new")} if policy == "finish" else {("new",)}
    assert {tuple(rollout.weights) for tree in run for rollout in tree.rollouts} == spans
    assert pool.weights == "new"


async def test_a_worker_that_takes_a_dead_ones_place_asks_under_the_new_version():
    model, others = Model(), children()
    with serving(model) as server, tl.Pool(workers=1) as pool:
        running = asyncio.ensure_future(pool.arun(agent(), QUESTIONS, llm=llm(server.url), policy_version="old"))
        await model.awaited(4)
        await pool.aupdate_weights("new")
        os.kill(*set(children()) - set(others), signal.SIGKILL)
        await model.awaited(1)
        model.go.set()
        run = checked(await running)
    assert {node.weights for node in turns(run)} == {"new"}


def test_a_change_that_comes_after_the_end_of_a_run_is_not_noted_in_its_file():
    noted: list[list[str | None]] = []
    versions = WeightCoordinator("old", lambda *_: None, lambda versions: noted.append([*versions]))
    asyncio.run(versions.change("new"))
    versions.on_end()
    asyncio.run(versions.change("newer"))
    assert noted == [["old", "new"]]


async def test_two_changes_at_once_are_refused(pool: tl.Pool):
    async def again() -> None:
        with pytest.raises(UsageError, match="not complete"):
            await pool.aupdate_weights("third")

    await pool.aupdate_weights("second", again)
    assert pool.weights == "second"


async def test_the_sync_form_in_a_loop_names_the_other(pool: tl.Pool):
    with pytest.raises(UsageError, match="await aupdate_weights"):
        pool.update_weights("x")


@pytest.mark.parametrize("version", ["", "  ", "two\nlines", "x" * 101, 12])
def test_versions_that_cannot_be_are_refused(version: object):
    with pytest.raises(ConfigError, match="policy_version must be"):
        tl.run(agent(), tasks(), llm="http://127.0.0.1:9/v1", policy_version=version)


def test_policies_that_are_none_are_refused():
    with tl.Pool("inline") as pool, pytest.raises(ConfigError, match="policy"):
        pool.update_weights("x", policy="hope")


def test_a_cache_keeps_versions_apart(tmp_path: Path):
    with serving(capital_cities) as server:
        for version in ("one", "two", "one"):
            tl.run(
                agent(), tasks(), llm=llm(server.url), workers=0, seed=1, policy_version=version, cache=tmp_path / "c"
            )
            if version == "one":
                first = len(server.bodies)
        assert len(server.bodies) == first
        assert first % 2 == 0


def test_training_samples_say_which_weights_made_them(pool: tl.Pool):
    with serving(capital_cities) as server:
        run = pool.run(agent(), tasks(), llm=llm(server.url), reward=tl.exact_match, policy_version="step-7")
    samples = list(tl.train.turns(run, estimator="rloo", shared="once"))
    assert {(s.weights, s.min_weights, s.max_weights) for s in samples} == {("step-7",) * 3}
