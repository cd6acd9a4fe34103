"""Which regions of a turn a server gives log-probs for, and what is said where it gives none."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from aiohttp import web

from trunkline.agent import BoundDialect
from trunkline.errors import ConfigError, EndpointError, LLMError
from trunkline.llm.capabilities import QUESTION, REGIONS, Regions, find_regions, require_region
from trunkline.llm.config import LLM
from trunkline.llm.request import Sampling
from trunkline.sim.server.app import start_server
from trunkline.sim.server.options import Settings
from trunkline.sim.tools import search
from trunkline.tools.toolbox import Toolbox

SAMPLING = Sampling(logprobs=True, top_logprobs=5, max_tokens=400)


async def asked(url: str, dialect: str = "native", model: str = "sim-agent") -> Regions:
    bound = BoundDialect(dialect, [search], SAMPLING)
    opening = bound.opening("", [{"role": "user", "content": QUESTION}])
    tools = Toolbox([search]).definitions() if bound.native else b""
    spec = LLM(url, max_retries=0)
    return await find_regions(partial(LLM.open, spec), model, bound.sampling, opening, tools)


@asynccontextmanager
async def simulated(**settings: object) -> AsyncIterator[str]:
    server = await start_server(Settings(**settings))
    try:
        yield server.base_url
    finally:
        await server.stop()


@asynccontextmanager
async def answering(*replies: object) -> AsyncIterator[tuple[str, list[dict]]]:
    """A server that gives these replies, the last one from then on, and what it was asked."""
    bodies: list[dict] = []

    async def answer(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        reply = replies[min(len(bodies), len(replies)) - 1]
        return web.json_response(reply, status=400 if isinstance(reply, dict) and "error" in reply else 200)

    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", answer)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1", bodies
    finally:
        await runner.cleanup()


def reply(content: str, *logprobs: str, generated: int, calls: int = 0) -> dict:
    listed = [
        {
            "token": token,
            "logprob": -0.7,
            "top_logprobs": [{"token": "a", "logprob": -0.7}, {"token": "b", "logprob": -0.7}],
        }
        for token in logprobs
    ]
    called = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}] * calls
    choice = {"message": {"content": content, "tool_calls": called}, "logprobs": {"content": listed}}
    return {"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": generated}}


def able(found: Regions) -> tuple[bool | None, bool | None, bool | None]:
    return found.think, found.tool, found.all


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (True, True, True)),
        ({"tool_logprobs": False}, (True, False, False)),
        ({"reasoning": "field"}, (True, True, True)),
        ({"reasoning": "dropped"}, (None, True, False)),
    ],
)
async def test_a_simulated_server_has_what_it_was_told_to_have(settings: dict, expected: tuple):
    async with simulated(**settings) as url:
        found = await asked(url)
    assert able(found) == expected
    assert (found.site, found.model) == (url, "sim-agent")


async def test_where_calls_are_text_they_have_what_the_text_has():
    tokens = ("<tool_call>", '{"name": "search"}', "</tool_call>")
    text = reply("".join(tokens), *tokens, generated=4)
    async with answering(text) as (url, bodies):
        assert able(await asked(url, "hermes")) == (None, True, True)
    assert ["tools" in body for body in bodies] == [False]
    async with answering(reply("", generated=4, calls=1)) as (url, _):
        assert able(await asked(url)) == (None, False, False)


async def test_what_the_model_did_not_show_is_not_known():
    async with answering(reply("word", "wo", "rd", generated=3)) as (url, bodies):
        found = await asked(url)
    assert able(found) == (None, None, True)
    assert [body["tool_choice"] for body in bodies] == ["required"]
    assert (bodies[0]["logprobs"], bodies[0]["top_logprobs"], bodies[0]["max_tokens"]) == (True, 5, 400)
    for region in REGIONS:
        require_region(found, region, "Somebody")


async def test_a_server_that_forces_no_call_is_asked_without():
    refused = {"error": {"message": "tool_choice is not supported"}}
    async with answering(refused, reply("word", "wo", "rd", generated=2)) as (url, bodies):
        found = await asked(url)
    assert found.all is True
    assert ["tool_choice" in body for body in bodies] == [True, False]


async def test_a_server_that_refuses_log_probs_or_lists_no_likely_tokens_has_no_region():
    refused = {"error": {"message": "logprobs are not available"}}
    async with answering(refused) as (url, _):
        with pytest.raises(ConfigError, match=r"refuses to be asked for log-probs of 'sim-agent'.*not available"):
            await asked(url)
    bare = reply("word", "wo", "rd", generated=2)
    for entry in bare["choices"][0]["logprobs"]["content"]:
        entry["top_logprobs"] = []
    async with answering(bare) as (url, _):
        assert able(await asked(url)) == (None, None, False)


async def test_a_server_that_is_not_there_or_answers_nonsense_is_no_server_without_regions():
    with pytest.raises((EndpointError, LLMError)):
        await asked("http://127.0.0.1:9/v1")
    for nonsense, what in (([json.dumps("?")], "is no reply"), ({"choices": []}, "has no choice")):
        async with answering(nonsense) as (url, _):
            with pytest.raises(ConfigError, match=what):
                await asked(url)


def test_what_is_missing_is_named_with_server_region_and_ways_out():
    found = Regions(site="http://host/v1", model="m", think=True, tool=False, all=False)
    require_region(found, "think", "Partial")
    for region, missing in (("tool", "tool calls"), ("mixed", "tool calls"), ("all", "all tokens of a turn")):
        with pytest.raises(ConfigError) as caught:
            require_region(found, region, "Partial")
        said = str(caught.value)
        for part in ("http://host/v1", "'m'", missing, repr(region), "Partial", "dialect='hermes'", "(think)", "Chain"):
            assert part in said, part
