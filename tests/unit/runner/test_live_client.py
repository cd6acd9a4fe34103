"""A client object where an LLM is: every request of a run goes through it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from atlas import CAPITALS, agent, tasks
from foreign import capital_cities, error, serving
from openai import AsyncOpenAI, DefaultAioHttpClient, DefaultAsyncHttpxClient

from trunkline.errors import ConfigError, EndpointError
from trunkline.llm.openai_client import ClientLLM
from trunkline.llm.types import Reply, ReplyChoice, Request, ToolCall
from trunkline.runner.pool import Pool
from trunkline.runner.run import arun, run
from trunkline.scoring.rewards import exact_match
from trunkline.strategies.chain import Chain


async def test_a_run_goes_through_the_users_client(tmp_path: Path):
    seen: list[str] = []

    async def note(request) -> None:
        seen.append(request.headers["x-team"])

    with serving(capital_cities) as server:
        http = DefaultAsyncHttpxClient(headers={"x-team": "blue"}, event_hooks={"request": [note]})
        async with AsyncOpenAI(base_url=server.url, api_key="sk-mine", http_client=http) as client:
            result = await arun(
                agent(), tasks(), llm=client, strategy=Chain(2), reward=exact_match, seed=1, out=tmp_path / "r"
            )
        assert {tree.task.id: tree.answer for tree in result} == CAPITALS
        assert seen == ["blue"] * len(server.bodies)
        assert {headers["Authorization"] for headers in server.headers} == {"Bearer sk-mine"}
    assert b"sk-mine" not in (tmp_path / "r").read_bytes()


async def test_the_trees_are_those_of_the_url(tmp_path: Path, local_pool: Pool):
    with serving(capital_cities) as server:
        direct = run(agent(), tasks(), llm=server.url, reward=exact_match, seed=1, pool=local_pool)
        async with AsyncOpenAI(base_url=server.url, api_key="k") as client:
            through = await arun(agent(), tasks(), llm=client, reward=exact_match, seed=1)
    assert [tree.digest() for tree in through] == [tree.digest() for tree in direct]


async def test_its_refusals_stop_the_run_too():
    with serving(lambda _b: error(401, "no such key", "invalid_api_key")) as server:
        async with AsyncOpenAI(base_url=server.url, api_key="sk-bad", max_retries=0) as client:
            with pytest.raises(EndpointError) as raised:
                await arun(agent(), tasks(), llm=client)
    assert "sk-bad" not in str(raised.value)


async def test_the_client_may_stand_on_aiohttp():
    with serving(capital_cities) as server:
        http = DefaultAioHttpClient()
        async with AsyncOpenAI(base_url=server.url, api_key="k", http_client=http) as client:
            result = await arun(agent(), tasks(), llm=client, strategy=Chain(2), seed=1)
    assert {tree.task.id: tree.answer for tree in result} == CAPITALS


async def test_a_run_keeps_to_the_limit_of_the_client():
    now = most = 0

    async def begin(_request) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)

    async def end(_response) -> None:
        nonlocal now
        now -= 1

    with serving(capital_cities, delay=0.005) as server:
        http = DefaultAsyncHttpxClient(event_hooks={"request": [begin], "response": [end]})
        async with AsyncOpenAI(base_url=server.url, api_key="k", http_client=http) as client:
            llm = ClientLLM(client, max_concurrency=3)
            result = await arun(agent(), tasks(), llm=llm, strategy=Chain(4), seed=1)
    assert {tree.task.id: tree.answer for tree in result} == CAPITALS
    assert most == 3


class Own:
    """The least that somebody's own LLM is: a body in, choices out."""

    async def complete(self, request: Request) -> Reply:
        """Play the capitals."""
        await asyncio.sleep(0)
        body = json.loads(request.body)
        assert (body.get("n", 1), body["seed"]) == (request.n, body["seed"] if request.seed is None else request.seed)
        said = capital_cities(body)["choices"][0]["message"]
        calls = [ToolCall("", c["function"]["name"], c["function"]["arguments"]) for c in said.get("tool_calls", ())]
        choice = ReplyChoice(said["content"] or "", None, calls, "stop")
        return Reply([choice] * request.n, -1, -1, -1, 1, 0)


@pytest.mark.parametrize("concurrency", [None, 1, 1000])
async def test_the_least_of_an_llm_will_do_whatever_a_request_holds_besides(concurrency: int | None):
    own = Own()
    if concurrency is not None:
        own.max_concurrency = concurrency
    result = await arun(agent(), tasks(), llm=own, strategy=Chain(3), reward=exact_match, seed=1)
    assert {tree.task.id: tree.answer for tree in result} == CAPITALS
    assert {len(tree.rollouts) for tree in result} == {3}


async def test_a_concurrency_that_makes_no_sense_is_named():
    own = Own()
    own.max_concurrency = 0
    with pytest.raises(ConfigError, match=r"Own\.max_concurrency must be a whole number of at least 1, not 0"):
        await arun(agent(), tasks(), llm=own)
