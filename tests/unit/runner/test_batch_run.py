"""Runs on a batch engine: what waits for what, and what one failure costs."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from atlas import CAPITALS, agent, lookup, tasks
from batching import LONG, Gated
from foreign import capital_cities

from trunkline.errors import ConfigError, EndpointError
from trunkline.llm.batch.batcher import BatchLLM
from trunkline.llm.batch.completion import Completion, Prompt
from trunkline.llm.request import Sampling
from trunkline.llm.types import ToolCall
from trunkline.runner.plan import PreparedRun
from trunkline.runner.run import arun, run, stream
from trunkline.scoring.rewards import exact_match
from trunkline.store.reader import RunReader
from trunkline.strategies.chain import Chain
from trunkline.tools.tool import tool
from trunkline.types import Termination

pytestmark = pytest.mark.breaks_rollouts


def play(prompt: Prompt) -> Completion:
    """What ``foreign.capital_cities`` says."""
    said = capital_cities({"messages": prompt.messages})["choices"][0]["message"]
    calls = [
        ToolCall("", call["function"]["name"], call["function"]["arguments"]) for call in said.get("tool_calls", ())
    ]
    return Completion(text=said["content"] or "", tool_calls=calls)


class Atlas:
    """Plays the capitals and keeps the size of each batch."""

    def __init__(self, before: Callable[[list[Prompt]], None] = lambda _: None) -> None:
        self.sizes: list[int] = []
        self._before = before

    def generate(self, prompts: list[Prompt]) -> list[Completion]:
        """Answer a list of prompts."""
        self.sizes.append(len(prompts))
        self._before(prompts)
        return [play(prompt) for prompt in prompts]


def test_all_rollouts_share_the_batches_of_a_run():
    engine = Atlas()
    result = run(agent(), tasks(), llm=BatchLLM(engine, tool_wait=60, max_wait=60), strategy=Chain(3), seed=1)
    assert {tree.task.id: tree.answer for tree in result} == CAPITALS
    # Two of five countries take a turn more; nobody else could join when the last batch left.
    assert engine.sizes == [15, 15, 6]


@pytest.mark.parametrize("concurrency", [1, 3, 500])
def test_a_run_ends_whatever_its_concurrency_is_beside_the_batch(concurrency: int):
    engine = Atlas()
    llm = BatchLLM(engine, max_batch=8, max_concurrency=concurrency, max_wait=60)
    result = run(agent(), tasks(), llm=llm, strategy=Chain(4), reward=exact_match, seed=1)
    assert {tree.task.id: tree.answer for tree in result} == CAPITALS
    assert max(engine.sizes) <= 8


async def test_a_batch_leaves_while_a_rollout_sits_in_a_tool():
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    @tool
    async def lookup(country: str) -> str:
        """Look a country up; for Japan, not before others have asked again.

        Args:
            country: Its name.
        """
        if country == "Japan":
            await asked.wait()
        return f"capital: {CAPITALS[country]}"

    def before(prompts: list[Prompt]) -> None:
        if len(engine.sizes) == 2:
            loop.call_soon_threadsafe(asked.set)

    engine = Atlas(before)
    async with asyncio.timeout(20):
        result = await arun(agent(tools=[lookup]), tasks(), llm=BatchLLM(engine, max_wait=LONG, tool_wait=0), seed=1)
    assert {tree.task.id: tree.answer for tree in result} == CAPITALS


async def test_a_batch_leaves_while_a_rollout_is_scored():
    third = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def reward(trajectory) -> float:
        await third.wait()
        return 1.0

    def before(prompts: list[Prompt]) -> None:
        if len(engine.sizes) == 3:
            loop.call_soon_threadsafe(third.set)

    engine = Atlas(before)
    async with asyncio.timeout(20):
        llm = BatchLLM(engine, max_wait=LONG, tool_wait=LONG)
        result = await arun(agent(), tasks(), llm=llm, reward=reward, seed=1)
    assert {tree.task.id: tree.answer for tree in result} == CAPITALS
    assert engine.sizes == [5, 5, 2], "three rollouts were scored when the last two asked"


async def test_a_batch_that_fails_ends_its_rollouts_and_the_run_goes_on(tmp_path: Path):
    def before(prompts: list[Prompt]) -> None:
        if any("Brazil" in str(prompt.messages) for prompt in prompts):
            raise RuntimeError("out of memory, sk-abcdefghijkl")

    llm = BatchLLM(Atlas(before), max_batch=1)
    result = await arun(agent(), tasks(), llm=llm, reward=exact_match, seed=1, out=tmp_path / "r")
    ends = {tree.task.id: tree.rollouts[0].termination for tree in result}
    assert ends == dict.fromkeys(CAPITALS, Termination.ANSWER) | {"Brazil": Termination.LLM_ERROR}
    error = result["Brazil"].rollouts[0].error
    assert (error.kind, error.retryable) == ("LLMError", True)
    assert "the batch engine Atlas raised RuntimeError: out of memory" in error.message
    assert b"sk-abcdefghijkl" not in (tmp_path / "r").read_bytes()
    with RunReader.open(result.path) as reader:
        assert reader.check() == []


async def test_one_bad_completion_ends_its_rollout_alone():
    def generate(prompts: list[Prompt]) -> list[object]:
        return [None if "Japan" in str(prompt.messages) else play(prompt) for prompt in prompts]

    result = await arun(agent(), tasks(), llm=BatchLLM(generate), strategy=Chain(2), seed=1)
    ends = {tree.task.id: {rollout.termination for rollout in tree.rollouts} for tree in result}
    assert ends == {
        country: {Termination.LLM_ERROR if country == "Japan" else Termination.ANSWER} for country in CAPITALS
    }


async def test_one_bad_draw_of_several_at_once_ends_its_rollout_alone():
    def generate(prompts: list[Prompt]) -> list[object]:
        return [play(prompt) if prompt.n == 1 else [play(prompt), 5, play(prompt)] for prompt in prompts]

    llm = BatchLLM(generate, supports_n=True)
    result = await arun(agent(), tasks(), llm=llm, strategy=Chain(3), seed=1)
    answer, error = Termination.ANSWER, Termination.LLM_ERROR
    for tree in result:
        assert [rollout.termination for rollout in tree.rollouts] == [answer, error, answer]


@pytest.mark.parametrize("supports_n", [False, True])
async def test_calls_are_listed_under_the_engine_also_where_a_draw_of_the_request_failed(supports_n: bool):
    def generate(prompts: list[Prompt]) -> list[object]:
        return [play(prompt) if prompt.n == 1 else [play(prompt), 5, play(prompt)] for prompt in prompts]

    llm = BatchLLM(generate, supports_n=supports_n)
    result = await arun(agent(), tasks(), llm=llm, strategy=Chain(3), seed=1)
    calls = [call for _, call in result.calls()]
    assert {call.endpoint for call in calls} == {"BatchLLM"}
    assert all(0 < call.queue < call.micros for call in calls)
    assert sum(call.draws for call in calls) == sum(rollout.turns for tree in result for rollout in tree.rollouts)


def test_replies_that_were_kept_ask_no_engine_and_keep_no_batch_waiting(tmp_path: Path):
    engine = Atlas()
    for temperature, sizes in ((None, [15, 15, 6]), (0.0, [5, 5, 2])):
        for expected in (sizes, []):
            engine.sizes.clear()
            llm = BatchLLM(engine, tool_wait=60, max_wait=60)
            greedy = agent(sampling=Sampling(temperature=temperature))
            result = run(greedy, tasks(), llm=llm, strategy=Chain(3), seed=1, cache=tmp_path / "c")
            assert {tree.task.id: tree.answer for tree in result} == CAPITALS
            assert engine.sizes == expected


async def test_two_engines_in_one_process_do_not_wait_for_each_other():
    async def at(engine: Gated):
        return await arun(agent(), tasks(), llm=BatchLLM(engine, max_wait=60), seed=1)

    stuck = asyncio.ensure_future(at(held := Gated(open=False)))
    result = await arun(agent(), tasks(), llm=BatchLLM(Atlas(), max_wait=60, tool_wait=60), seed=1)
    assert {tree.task.id: tree.answer for tree in result} == CAPITALS
    assert not stuck.done()
    held.gate.set()
    await stuck


def test_an_opened_batcher_takes_as_much_as_its_settings_say():
    assert BatchLLM(Atlas(), max_batch=500, calls=2).open().max_concurrency == 2000


async def test_an_engine_that_will_serve_nobody_ends_the_run():
    async def generate(prompts: list[Prompt]) -> list[str]:
        raise EndpointError("the trainer holds the weights")

    with pytest.raises(EndpointError, match="the trainer holds the weights"):
        await arun(agent(), tasks(), llm=BatchLLM(generate))


def test_one_engine_serves_one_run_after_the_other():
    engine = Atlas()
    llm = BatchLLM(engine)
    first, second = (run(agent(), tasks(), llm=llm, seed=1) for _ in range(2))
    assert [tree.digest() for tree in first] == [tree.digest() for tree in second]


def test_an_engine_stays_in_its_process():
    with pytest.raises(ConfigError, match="a live BatchLLM stays in its process"):
        run(agent(), tasks(), llm=BatchLLM(Atlas()), workers=2)


@pytest.mark.parametrize("way", ["sync", "async"])
async def test_a_run_that_is_stopped_leaves_nothing_behind_and_keeps_what_has_grown(tmp_path: Path, way: str):
    let_go, stuck = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def generate(prompts: list[Prompt]) -> list[Completion]:
        if "tool" in {message["role"] for message in prompts[0].messages}:
            loop.call_soon_threadsafe(stuck.set)
            let_go.wait(10)
        return [play(prompt) for prompt in prompts]

    async def agenerate(prompts: list[Prompt]) -> list[Completion]:
        if "tool" in {message["role"] for message in prompts[0].messages}:
            stuck.set()
            await asyncio.Event().wait()
        return [play(prompt) for prompt in prompts]

    llm = BatchLLM(generate if way == "sync" else agenerate)
    plan = PreparedRun(agent(), tasks(), llm=llm, seed=1, out=tmp_path / "r")
    running = asyncio.ensure_future(plan.execute())
    await stuck.wait()
    plan.controller.stop(at_once=True)
    result = await running
    assert result.state == "interrupted"
    assert asyncio.all_tasks() == {asyncio.current_task()}
    let_go.set()
    with RunReader.open(tmp_path / "r") as reader:
        assert reader.check() == []
    assert plan.controller.progress.calls == len(CAPITALS), "the first batch is kept, the second counts for nothing"


async def test_rollouts_of_a_run_that_was_stopped_are_waited_for_no_more():
    engine = Gated(open=False)
    batcher = BatchLLM(engine).open()
    plan = PreparedRun(agent(), tasks(), llm=batcher, seed=1)
    running = asyncio.ensure_future(plan.execute())
    while not engine.seeds:
        await asyncio.sleep(0.001)
    assert batcher.activity.asking == len(CAPITALS)
    plan.controller.stop(at_once=True)
    await running
    assert (batcher.activity.running, batcher.activity.asking, batcher.activity.away) == (0, 0, 0)


async def test_trees_come_as_they_are_done():
    done = [tree.task.id async for tree in stream(agent(), tasks(), llm=BatchLLM(Atlas(), max_batch=2), seed=1)]
    assert sorted(done) == sorted(CAPITALS)


async def test_an_opened_batcher_is_an_llm_that_a_users_own_can_stand_before():
    engine = Atlas()
    seen = []

    class Noting:
        def __init__(self) -> None:
            self.inner = BatchLLM(engine).open()

        async def complete(self, request):
            seen.append(json.loads(request.body)["seed"])
            return await self.inner.complete(request)

    result = await arun(agent(tools=[lookup]), tasks(), llm=Noting(), seed=1)
    assert {tree.task.id: tree.answer for tree in result} == CAPITALS
    assert len(seen) == sum(engine.sizes)
