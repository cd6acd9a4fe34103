"""A client object where an LLM is: every request of a run goes through it."""

from __future__ import annotations

from pathlib import Path

import pytest
from atlas import CAPITALS, agent, tasks
from foreign import capital_cities, error, serving
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from trunkline.errors import EndpointError
from trunkline.rollout.strategies.chain import Chain
from trunkline.runtime.run import arun, run
from trunkline.score.rewards import exact_match


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


async def test_the_trees_are_those_of_the_url(tmp_path: Path):
    with serving(capital_cities) as server:
        direct = run(agent(), tasks(), llm=server.url, reward=exact_match, seed=1, workers=1)
        async with AsyncOpenAI(base_url=server.url, api_key="k") as client:
            through = await arun(agent(), tasks(), llm=client, reward=exact_match, seed=1)
    assert [tree.digest() for tree in through] == [tree.digest() for tree in direct]


async def test_its_refusals_stop_the_run_too():
    with serving(lambda _b: error(401, "no such key", "invalid_api_key")) as server:
        async with AsyncOpenAI(base_url=server.url, api_key="sk-bad", max_retries=0) as client:
            with pytest.raises(EndpointError) as raised:
                await arun(agent(), tasks(), llm=client)
    assert "sk-bad" not in str(raised.value)
