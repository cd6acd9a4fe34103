"""Servers of llama.cpp that end, requests that they cannot answer, and requests that are given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from llama_cpp_server import SLOTS, LlamaCpp, until
from tiny_model import ANSWERS, QUERIES

from trunkline.agent import Agent
from trunkline.llm.config import LLM
from trunkline.llm.request import Sampling
from trunkline.rollout.budget import Budget
from trunkline.runner.run import arun
from trunkline.store.reader import RunReader
from trunkline.strategies.chain import Chain
from trunkline.tools.tool import tool
from trunkline.types import Task

Serve = Callable[..., LlamaCpp]
TASKS = [Task.ask(f"Who is {number}?", id=f"q{number}") for number in range(6)]


Answer = Callable[[str], str]


def searching(answer: Answer, turns: int = 4) -> Agent:
    """An agent with the tool that the model calls."""

    @tool
    def search(query: str) -> str:
        """Search."""
        return answer(query)

    return Agent(model="words", tools=[search], max_turns=turns, sampling=Sampling(max_tokens=40))


def nothing(query: str) -> str:
    return f"Nothing about{query}."


def digests(path: Path) -> dict[str, str]:
    with RunReader.open(path) as reader:
        assert reader.check() == []
        names = reader.task_ids()
        return {names[number]: row.digest for number, row in reader.rows()}


async def test_a_conversation_that_outgrows_a_slot_ends_as_such(serve: Serve):
    server = serve({"calls": 99.0}, context=1024)
    agent = searching(lambda query: nothing(query) + "".join(ANSWERS + QUERIES) * 5, turns=50)
    llm = LLM(server.url, siblings=False)
    result = await arun(agent, TASKS[:2], llm=llm, strategy=Chain(2), workers=0, seed=4)
    ends = [(one.termination, one.messages) for tree in result for one in tree.rollouts]
    for end, messages in ends:
        lengths = [len(server.prompt(messages[:last], [agent.tools[0].definition])) for last in (-2, None)]
        assert (end, messages[-1]["role"], lengths[0] < 1024 < lengths[1]) == ("max_context", "tool", True)


@pytest.mark.breaks_rollouts
@pytest.mark.parametrize("siblings", [False, True])
async def test_a_call_that_the_server_cannot_read_ends_its_own_draw(serve: Serve, siblings: bool):
    server = serve({"broken": 0.5})
    llm = LLM(server.url, max_concurrency=SLOTS, siblings=siblings)
    agent = searching(nothing)
    result = await arun(agent, TASKS, llm=llm, strategy=Chain(4), workers=0, seed=4)
    summary = result.summary()
    ((message, broken),) = summary.failures
    assert (broken, summary.usage.retries) == (summary.terminations["llm_error"], 0)
    assert 0 < broken < 24
    assert "the server could not read the model's reply: --dialect hermes" in message
    body = {"messages": TASKS[0].messages, "tools": [agent.tools[0].definition]}
    assert {server.status(body | {"seed": seed}) for seed in range(20)} == {200, 500}


@pytest.mark.parametrize("then", ["retried", "resumed"])
async def test_a_server_that_ends_in_the_middle_of_a_run_costs_no_rollout(serve: Serve, tmp_path: Path, then: str):
    server = serve()
    llm = LLM(server.url, max_concurrency=2, max_retries=99, siblings=False)
    options: dict[str, Any] = {"llm": llm, "strategy": Chain(3), "workers": 0, "seed": 4}
    await arun(searching(nothing), TASKS, out=tmp_path / "undisturbed", **options)
    whole, searches, loop = server.counts(), count(), asyncio.get_running_loop()

    def disturb(query: str) -> str:
        if next(searches) == 6:
            server.kill()
            if then == "retried":
                server.start()
            else:
                loop.call_soon_threadsafe(playing.cancel)
        return nothing(query)

    playing = asyncio.create_task(arun(searching(disturb), TASKS, out=tmp_path / "run", **options))
    if then == "resumed":
        with pytest.raises(asyncio.CancelledError):
            await playing
        server.start()
        playing = asyncio.create_task(arun(searching(nothing), TASKS, out=tmp_path / "run", resume=True, **options))
    result = await playing
    assert result.summary().rollouts == 3 * len(TASKS)
    assert digests(tmp_path / "run") == digests(tmp_path / "undisturbed")
    assert 0 < server.counts().generated < whole.generated


@pytest.mark.breaks_rollouts
async def test_slots_of_requests_that_are_given_up_become_free(serve: Serve):
    """This server works on what it was asked to its end, unless it streams: ``max_tokens`` bounds that."""
    server = serve({"calls": 0.0}, context=8192)
    agent = Agent(model="words", sampling=Sampling(max_tokens=1500, extra={"ignore_eos": True}))
    llm, hasty = (LLM(server.url, max_retries=0, timeout=timeout) for timeout in (600.0, 0.1))
    given: tuple[tuple[Agent, LLM, dict[str, Any], str], ...] = (
        (Agent(model="words"), llm, {"enough": 1}, "censored"),
        (agent, llm, {"task_budget": Budget(seconds=0.1)}, "censored"),
        (agent, hasty, {}, "llm_error"),
    )
    for who, through, options, end in given:
        result = await arun(who, TASKS[:1], llm=through, strategy=Chain(SLOTS + 2), workers=0, seed=4, **options)
        assert set(result.summary().terminations) <= {end, "answer", "max_tokens"}
        await until(lambda: server.busy() == 0)
    playing = asyncio.create_task(arun(agent, TASKS, llm=llm, strategy=Chain(2), workers=0, seed=4))
    await until(lambda: server.busy() or playing.done())
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    await until(lambda: server.busy() == 0)
    result = await arun(Agent(model="words"), TASKS, llm=llm, strategy=Chain(2), workers=0, seed=4)
    assert result.summary().terminations == {"answer": 2 * len(TASKS)}
