"""Roles with LLMs of their own: each server gets what is its own, and nothing else, wherever engines live."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from foreign import message, serving
from panels import JUDGE, LEAD, Apart, Panel, asks_both, strays

from trunkline.agent import Agent
from trunkline.errors import ConfigError
from trunkline.llm.batch.batcher import BatchLLM
from trunkline.llm.config import LLM
from trunkline.llm.pricing import Price
from trunkline.llm.types import Limits
from trunkline.observability.logging import safe
from trunkline.rollout.budget import Budget
from trunkline.runner.plan import plan
from trunkline.runner.pool import Pool
from trunkline.runner.run import run
from trunkline.store.reader import RunReader
from trunkline.strategies.adaptive import Adaptive
from trunkline.strategies.chain import Chain
from trunkline.types import Task

TASKS = [Task.ask(f"what is {n}?", id=f"q{n}") for n in range(4)]
USAGE = {"prompt_tokens": 10, "completion_tokens": 10}


def of(who: str) -> Any:
    """Says who answers and with which seed: the same to the same request."""
    return lambda body: message(f"{who} {body['seed']}") | {"usage": USAGE}


def opening(body: dict) -> str:
    """How the last message of a request begins."""
    return str(body["messages"][-1]["content"]).partition(":")[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_each_server_gets_the_requests_of_its_roles_alone_with_its_own_key(workers: int):
    with serving(of("main")) as main, serving(of("judge")) as judge:
        llms = {
            "": LLM(main.url, api_key="main-key-of-this-test"),
            "judge": LLM(judge.url, api_key="judge-key-of-this-test", headers={"X-Own": "judge-header-value"}),
        }
        result = run(Panel(model="m"), TASKS, llm=llms, workers=workers, seed=3)
        assert {tree.rollouts[0].termination for tree in result} == {"answer"}
        assert {opening(body) for body in main.bodies} == {"Solve"}
        assert {opening(body) for body in judge.bodies} == {"Be strict", "Be mild"}
        assert (len(main.bodies), len(judge.bodies)) == (8, 16)
        assert {headers["Authorization"] for headers in main.headers} == {"Bearer main-key-of-this-test"}
        assert {headers["Authorization"] for headers in judge.headers} == {"Bearer judge-key-of-this-test"}
        assert not any("X-Own" in headers for headers in main.headers)
        stored = b"".join(path.read_bytes() for path in result.path.parent.iterdir())
        assert not any(secret in stored for secret in (b"main-key", b"judge-key", b"judge-header"))
        logged = safe("main-key-of-this-test, judge-key-of-this-test, judge-header-value")
        assert not any(secret in logged for secret in ("main-key", "judge-key", "judge-header")), "not in logs either"
        with RunReader.open(result.path) as reader:
            asked = {endpoint.endpoint: endpoint.requests for endpoint in reader.summary().endpoints}
        assert asked == {main.url: 8, f"judge/{judge.url}": 16}


def test_trees_are_the_same_for_any_number_of_workers():
    with serving(of("main")) as main, serving(of("judge")) as judge:
        llms = {"": LLM(main.url), "judge": LLM(judge.url)}
        digests = [
            {tree.task.id: tree.digest() for tree in run(Panel(model="m"), TASKS, llm=llms, workers=workers, seed=3)}
            for workers in (0, 2)
        ]
    assert digests[0] == digests[1]


class Meter:
    """A server that counts what is in flight."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    async def __call__(self, body: dict) -> dict:
        self.now += 1
        self.peak = max(self.peak, self.now)
        try:
            await asyncio.sleep(0.02)
        finally:
            self.now -= 1
        return message("yes") | {"usage": USAGE}


@pytest.mark.parametrize("workers", [0, 3])
def test_each_llm_keeps_its_own_limit_of_requests_in_flight(workers: int):
    first, second = Meter(), Meter()
    tasks = [Task.ask(f"what is {n}?", id=f"q{n}") for n in range(12)]
    with serving(first) as main, serving(second) as judge:
        # One slot for three engines, which have it in turns.
        llms = {"": LLM(main.url, max_concurrency=5), "judge": LLM(judge.url, max_concurrency=1)}
        result = run(Panel(model="m", rounds=1), tasks, llm=llms, workers=workers)
        assert (len(main.bodies), len(judge.bodies)) == (12, 24)
    assert {tree.rollouts[0].termination for tree in result} == {"answer"}
    assert second.peak == 1
    assert 2 <= first.peak <= 5


@pytest.mark.parametrize("workers", [0, 2])
def test_each_llm_keeps_its_own_rate(workers: int):
    with serving(of("main")) as main, serving(of("judge")) as judge:
        slow = Limits(requests_per_minute=600)
        llms = {"": LLM(main.url), "judge": LLM(judge.url, limits=slow)}
        start = time.monotonic()
        run(Panel(model="m", rounds=1), [Task.ask("?", id=f"{n}") for n in range(12)], llm=llms, workers=workers)
        took = time.monotonic() - start
        assert (len(main.bodies), len(judge.bodies)) == (12, 24)
    assert took > 0.5, "24 requests at 10 a second"


def test_two_llms_at_one_url_have_prices_of_their_own():
    with serving(of("both")) as server:
        dear, cheap = Price(prompt=1e6, generated=1e6), Price(prompt=0, generated=0)
        llms = {"": LLM(server.url, price=cheap), "judge": LLM(server.url, price=dear)}
        result = run(Panel(model="m", rounds=1), TASKS[:1], llm=llms, workers=0)
        with RunReader.open(result.path) as reader:
            summary = reader.summary()
        assert {one.endpoint: one.spent and one.spent.money for one in summary.endpoints} == {
            server.url: 0,
            f"judge/{server.url}": 40,
        }
        # Of the judges' turns one may cost 18 and more, of the solver's none anything: the first judge is not paid for.
        for workers, whose in ((0, "task_budget"), (1, "task_budget"), (1, "budget")):
            limited: dict[str, Any] = {"workers": workers, whose: Budget(money=1)}
            (tree,) = run(Panel(model="m"), TASKS[:1], llm=llms, **limited)
            assert tree.rollouts[0].termination == "censored"
            assert tree.core.rollout(0).turns == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_equal_agents_at_two_llms_are_two_things(workers: int, tmp_path: Path):
    options: dict[str, Any] = {"program": asks_both, "seed": 1, "cache": tmp_path / "cache", "workers": workers}
    with serving(of("main")) as main, serving(of("judge")) as judge:
        llms = {"": LLM(main.url), "judge": LLM(judge.url)}
        for _ in range(2):
            (tree,) = run(LEAD, TASKS[:1], llm=llms, **options)
            said = str(tree.answer).split()
            assert (said[0], said[2]) == ("main", "judge")
            assert tree.core.rollout(0).turns == 2
        assert (len(main.bodies), len(judge.bodies)) == (1, 1), "the second time both come out of the cache"
        assert {**main.bodies[0], "seed": 0} == {**judge.bodies[0], "seed": 0}


def test_what_one_llm_answered_is_not_in_the_cache_for_another(tmp_path: Path):
    options: dict[str, Any] = {"seed": 1, "cache": tmp_path / "cache", "workers": 0}
    with serving(of("main")) as main, serving(of("judge")) as judge:
        run(Agent(model="m"), TASKS[:1], llm=LLM(main.url), **options)
        (tree,) = run(Agent(model="m", llm="judge"), TASKS[:1], llm={"judge": LLM(judge.url)}, **options)
        assert main.bodies == judge.bodies
        assert str(tree.answer).startswith("judge")


@pytest.mark.parametrize("named", ["judge", ""])
def test_a_batch_engine_for_some_roles_and_http_for_the_others(named: str):
    sizes: list[int] = []

    def engine(prompts: list[Any]) -> list[str]:
        sizes.append(len(prompts))
        return [f"batch {prompt.seed}" for prompt in prompts]

    tasks = [Task.ask(f"what is {n}?", id=f"q{n}") for n in range(8)]
    with serving(of("http"), delay=0.02) as server:
        other = LLM(server.url)
        batch = BatchLLM(engine, max_wait=30, tool_wait=30)
        llms = {"": other, "judge": batch} if named else {"": batch, "judge": other}
        start = time.monotonic()
        result = run(Panel(model="m"), tasks, llm=llms, strategy=Chain(2))
        assert time.monotonic() - start < 20, "no batch waited for who asks elsewhere for good"
        assert len(server.bodies) == (32 if named else 64)
    assert {tree.rollouts[0].termination for tree in result} == {"answer"}
    assert sum(sizes) == (64 if named else 32)
    assert max(sizes) >= 8, "rollouts that come back from the other LLM are waited for"
    with RunReader.open(result.path) as reader:
        names = {endpoint.endpoint for endpoint in reader.summary().endpoints}
    assert names == ({server.url, "judge/BatchLLM"} if named else {f"judge/{server.url}", "BatchLLM"})


def test_all_of_them_may_have_names(local_pool: Pool):
    with serving(of("solver")) as solver, serving(of("judge")) as judge:
        llms = {"solver": LLM(solver.url), "judge": LLM(judge.url)}
        result = run(Apart(model="m"), TASKS, llm=llms, workers=0)
        assert (len(solver.bodies), len(judge.bodies)) == (8, 16)
        result = run(JUDGE, TASKS, llm={"judge": llms["judge"]}, pool=local_pool)
        assert len(result) == 4
        assert len(judge.bodies) == 20


URL = LLM("http://127.0.0.1:9/v1")
PRICED = LLM("http://127.0.0.1:9/v1", price=Price(prompt=1, generated=1))


@pytest.mark.parametrize(
    ("agent", "llm", "options", "words"),
    [
        (Panel(model="m"), URL, {}, r"'strict' asks the LLM 'judge', and the run has one without a name"),
        (Panel(model="m"), {"judge": URL}, {}, r"'solver' asks the LLM without a name, and the run has 'judge'"),
        (Panel(model="m"), {"": URL, "judge": URL, "x": URL}, {}, r"no agent calls the LLM 'x'"),
        (LEAD, {"": URL, "judge": URL}, {}, r"no agent calls the LLM 'judge'"),
        (JUDGE, URL, {}, r"'judge' asks the LLM 'judge'"),
        (LEAD, {}, {}, r"llm names no LLM"),
        (LEAD, {"a b": URL}, {}, r"must be a name of letters"),
        (LEAD, {"": 7}, {}, r"llm '': int is no LLM"),
        (LEAD, {"": BatchLLM(len), "BatchLLM": URL}, {}, r"llm 'BatchLLM': calls of the LLM without a name are on rec"),
        (Panel(model="m"), {"": PRICED, "judge": URL}, {}, r"'judge' has none; give each one"),
        (Panel(model="m"), {"": URL, "judge": URL}, {"budget": Budget(money=1)}, r"the LLM has no price"),
        (
            Panel(model="m", roles={"mild": {"sampling": {}}}),
            {"": URL, "judge": URL},
            {"budget": Budget(tokens=100_000)},
            r"nothing limits what a turn of 'mild' generates",
        ),
        (
            Panel(model="m"),
            {"": URL, "judge": URL},
            {"strategy": Adaptive()},
            r"top_logprobs of 'solver' to 10 or more",
        ),
        (Panel(model="m"), {"": URL, "judge": BatchLLM(len)}, {"workers": 2}, r"a live BatchLLM stays in its process"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(agent: Any, llm: Any, options: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        plan(agent, TASKS, llm=llm, **options)


@pytest.mark.breaks_rollouts
def test_an_agent_of_a_program_that_asks_an_llm_which_is_not_there_ends_its_rollout():
    with serving(of("main")) as server:
        (tree,) = run(LEAD, TASKS[:1], llm=LLM(server.url), program=strays, workers=0)
        assert server.bodies == []
    assert "'stray' asks the LLM 'nobody'; the run has one without a name" in str(tree.core.rollout(0).error)
