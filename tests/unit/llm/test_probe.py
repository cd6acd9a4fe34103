"""What a server can do, found out over real sockets, and what is said where it cannot."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from llama_server import llama_server

from trunkline._core import read_reply
from trunkline.agent import Agent
from trunkline.errors import ConfigError, EndpointError
from trunkline.llm.capabilities import (
    ABILITIES,
    Capabilities,
    find_regions,
    needs,
    other_apis,
    probe,
    require,
    require_region,
)
from trunkline.llm.config import LLM
from trunkline.llm.request import Sampling
from trunkline.llm.token_ids.base import TokenMode
from trunkline.llm.types import Reply
from trunkline.runner.run import arun
from trunkline.sim.server import service
from trunkline.sim.server.app import start_server
from trunkline.sim.server.options import Settings
from trunkline.types import Task


async def found(model: str = "sim-agent", **settings: object) -> dict[str, bool | None]:
    server = await start_server(Settings(**settings))
    try:
        spec = LLM(server.base_url, max_retries=0)
        capabilities = await probe(partial(LLM.open, spec), model)
    finally:
        await server.stop()
    return {name: getattr(capabilities, name) for name in ABILITIES}


@pytest.mark.parametrize(
    ("settings", "lacks"),
    [
        ({}, set()),
        ({"reasoning": "field"}, set()),
        ({"tool_logprobs": False}, {"tool_logprobs"}),
        ({"ignore_n": True}, {"n"}),
        ({"ignore_seed": True}, {"seeds"}),
        ({"reasoning": "dropped"}, {"ids", "tool_logprobs", "reasoning_logprobs"}),
    ],
)
async def test_each_lack_is_found_and_nothing_else(
    settings: dict[str, object], lacks: set[str], monkeypatch: pytest.MonkeyPatch
):
    # The server's own seeds: with some, a reply is no call of the tool, or two are equal by chance.
    monkeypatch.setattr(service.secrets, "randbits", random.Random(1).getrandbits)
    abilities = await found(**settings)
    assert {name for name, able in abilities.items() if able is False} == lacks
    assert {name for name, able in abilities.items() if able is None} <= {"seeds", "usage_of_n"}


@asynccontextmanager
async def answering(routes: dict[str, Callable[[web.Request], Awaitable[web.Response]]]) -> AsyncIterator[LLM]:
    """A server with a handler for each path."""
    app = web.Application()
    app.add_routes([web.post(path, answer) for path, answer in routes.items()])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield LLM(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", max_retries=0)
    finally:
        await runner.cleanup()


async def plain_chat(request: web.Request) -> web.Response:
    body = await request.json()
    if "return_token_ids" in body or "tool_choice" in body:
        return web.json_response({"error": {"message": "unknown field"}}, status=400)
    message = {"role": "assistant", "content": "I do not know."}
    reply = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": {"completion_tokens": 5}}
    return web.json_response(reply)


async def test_what_fails_or_answers_nonsense_is_not_taken_for_an_ability():
    async def fails(_request: web.Request) -> web.Response:
        return web.Response(status=502)

    async def shrugs(_request: web.Request) -> web.Response:
        return web.json_response({"detail": "unknown route"})

    async def with_ids(_request: web.Request) -> web.Response:
        message = {"role": "assistant", "content": "a"}
        logprobs = {"content": [{"token": "a", "logprob": -0.5}]}
        choice = {"message": message, "finish_reason": "stop", "token_ids": [5], "logprobs": logprobs}
        usage = {"prompt_tokens": 2, "completion_tokens": 1}
        return web.json_response({"choices": [choice], "prompt_token_ids": [1, 2], "usage": usage})

    routes = {"/v1/chat/completions": with_ids, "/tokenize": shrugs, "/v1/completions": shrugs, "/generate": fails}
    async with answering(routes) as spec:
        capabilities = await probe(partial(LLM.open, spec), "m")
    assert (capabilities.ids, capabilities.logprobs) == (True, True)
    assert (capabilities.tokenize, capabilities.completions, capabilities.generate) == (False, False, None)


@pytest.mark.parametrize(("room", "able"), [(1000, True), (4000, None)])
async def test_an_answer_whose_thinking_is_kept_back_leaves_open_what_it_does_not_show(room: int, able: bool | None):
    asked: list[int] = []

    async def thinks(incoming: web.Request) -> web.Response:
        body = await incoming.json()
        asked.append(body["max_tokens"])
        said = "a" if body["max_tokens"] > room else ""
        logprobs = {"content": [{"token": "a", "logprob": -0.5}]} if said and body.get("logprobs") else None
        choice = {"message": {"role": "assistant", "content": said}, "finish_reason": "length", "logprobs": logprobs}
        return web.json_response({"choices": [choice], "usage": {"prompt_tokens": 2, "completion_tokens": 90}})

    async with answering({"/v1/chat/completions": thinks}) as spec:
        capabilities = await probe(partial(LLM.open, spec), "m", ("logprobs",))
    assert capabilities.logprobs is able
    assert asked == [96, 96, 1536]


async def test_a_server_that_has_next_to_nothing_is_told_from_one_that_fails():
    async with answering({"/v1/chat/completions": plain_chat}) as spec:
        capabilities = await probe(partial(LLM.open, spec), "m")
    able = {name: getattr(capabilities, name) for name in ABILITIES}
    unknown = {"reasoning_logprobs", "tool_logprobs", "seeds", "usage_of_n", "cached"}
    assert able == {name: None if name in unknown else False for name in ABILITIES}
    with pytest.raises(EndpointError):
        await probe(partial(LLM.open, spec), "m")


@pytest.mark.parametrize(("generated", "of_all"), [(1, False), (2, True)])
@pytest.mark.parametrize("cached", [None, 0, 3])
async def test_what_usage_counts_of_several_and_of_the_cache(generated: int, of_all: bool, cached: int | None):
    async def counts(incoming: web.Request) -> web.Response:
        n = (await incoming.json()).get("n", 1)
        message = {"role": "assistant", "content": "a"}
        details = None if cached is None else {"cached_tokens": cached}
        usage = {"prompt_tokens": 9, "completion_tokens": generated if n > 1 else 1, "prompt_tokens_details": details}
        choices = [{"index": place, "message": message, "finish_reason": "length"} for place in range(n)]
        return web.json_response({"choices": choices, "usage": usage})

    async with answering({"/v1/chat/completions": counts}) as spec:
        found = await probe(spec.open, "m", ("usage_of_n", "cached"))
    assert (found.usage_of_n, found.cached) == (of_all, cached is not None)


def test_what_is_missing_is_named_with_who_needs_it_and_what_else_there_is():
    capabilities = Capabilities(site="http://host/v1", model="m", ids=False, logprobs=True, tool_logprobs=False)
    require(capabilities, {"logprobs": "a setting", "reasoning_logprobs": "a setting"})
    with pytest.raises(ConfigError) as caught:
        require(capabilities, needs(TokenMode(), tools=True))
    said = str(caught.value)
    for part in (
        "http://host/v1",
        "'m'",
        "token ids",
        "TokenMode(api='chat')",
        "TokenMode(api='generate')",
        "tool calls",
    ):
        assert part in said
    assert "log-probs of the text" not in said
    require(capabilities, {name: who for name, who in needs(TokenMode(), tools=False).items() if name != "ids"})


def test_needs_are_those_of_the_mode():
    assert set(needs(TokenMode(api="completions"), tools=True)) == {"completions", "tokenize"}
    assert set(needs(TokenMode(api="generate", tokenizer="t"), tools=True)) == {"generate"}


class Requests:
    """Counts the requests of a server."""

    def __init__(self, app: web.Application) -> None:
        self.paths: list[str] = []
        app.middlewares.append(self.note)

    @web.middleware
    async def note(self, request: web.Request, handler) -> web.StreamResponse:
        self.paths.append(request.path)
        return await handler(request)


async def test_a_run_asks_before_it_begins_and_only_where_a_setting_needs_it(tmp_path):
    async def play(tokens: TokenMode | None, **settings: object) -> str:
        server = await start_server(Settings(**settings))
        agent = Agent(model="sim-agent", sampling=Sampling(max_tokens=500), max_turns=1)
        llm = LLM(server.base_url, tokens=tokens, max_retries=0)
        try:
            task = Task.ask("Who is the person who directs the employer of Kosa Garener?", id="q")
            result = await arun(agent, [task], llm=llm, workers=0, seed=1)
            calls = server.app.service.metrics.requests.total()
            exact = result.summary().tokens.exact
            return f"{calls} {exact}"
        finally:
            await server.stop()

    assert await play(None) == "1 False"
    assert await play(TokenMode()) == "3 True"
    with pytest.raises(ConfigError, match="lacks, for 'sim-agent': token ids"):
        await play(TokenMode(), reasoning="dropped")
    await asyncio.sleep(0)


async def test_settings_that_cannot_be_kept_are_refused_before_anything_is_sent(tmp_path):
    agent = Agent(model="m")
    for tokens, says in (
        (TokenMode(api="completions"), "needs sampling.max_tokens"),
        (TokenMode(api="generate"), "needs sampling.max_tokens"),
    ):
        with pytest.raises(ConfigError, match=says):
            await arun(agent, [Task.ask("x")], llm=LLM("http://127.0.0.1:9/v1", tokens=tokens), workers=0)
    agent = Agent(model="m", sampling=Sampling(max_tokens=5))
    mode = TokenMode(api="completions", tokenizer=str(tmp_path / "none.json"))
    with pytest.raises(ConfigError, match="there is no file"):
        await arun(agent, [Task.ask("x")], llm=LLM("http://127.0.0.1:9/v1", tokens=mode), workers=0)


async def test_completions_alone_are_asked_for_and_a_server_that_is_down_or_lacks_them_is_told_apart():
    asked: list[Any] = []

    async def without_ids(incoming: web.Request) -> web.Response:
        asked.append((await incoming.json())["prompt"])
        return web.json_response({"choices": [{"text": "a", "finish_reason": "stop"}]})

    async def probed(spec: LLM) -> Capabilities:
        return await probe(partial(LLM.open, spec), "m", ["completions"], prompt=[5, 6])

    async with answering({"/v1/completions": without_ids}) as spec:
        found = await probed(spec)
        url = spec.base_urls[0]
    assert (found.site, found.completions) == (url, False)
    assert asked[0] == [5, 6]
    with pytest.raises(EndpointError, match="is a server running there"):
        await probed(LLM(url, max_retries=0))
    async with answering({}) as spec:
        with pytest.raises(EndpointError, match="404"):
            await probed(spec)


async def test_a_server_that_writes_and_encodes_in_two_steps_has_all_that_completions_need():
    async with llama_server("no idea, ") as server:
        spec = LLM(server.url, max_retries=0)
        spent: list[Reply] = []
        found = await probe(partial(LLM.open, spec), "m", spent=spent)
    assert (found.ids, found.completions, found.generate) == (False, True, False)
    assert (found.tokenize, found.detokenize, found.seeds, found.n) == (True, True, True, True)
    assert found.reasoning_logprobs is None, "nothing was thought"
    assert sum(reply.generated for reply in spent) == server.generated
    assert {reply.endpoint for reply in spent} == {server.url}
    mode = needs(TokenMode(), tools=False)
    assert other_apis(found, mode) == ["completions", "generate"]
    with pytest.raises(ConfigError, match=r"this server has them with TokenMode\(api='completions'\)"):
        require(found, mode, found)


@pytest.mark.parametrize("said", ["\u65e0\u53ef\u5949\u544a\u3002 ", "no idea \U0001f937 "])
async def test_characters_of_several_tokens_are_not_taken_for_thoughts(said: str):
    async with llama_server(said) as server:
        spec = LLM(server.url, max_retries=0)
        found = await probe(partial(LLM.open, spec), "m")
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "?"}], "max_tokens": 99, "logprobs": True}
        llm = spec.open()
        data = await llm.call("/chat/completions", json.dumps(body).encode())
        await llm.close()
        asked, question = Sampling(max_tokens=99, logprobs=True), json.dumps(body["messages"][0]).encode()
        regions = await find_regions(partial(LLM.open, spec), "m", asked, [question])
    assert (found.logprobs, found.reasoning_logprobs) == (True, None)
    assert found.completions is None, "other texts have all their ids"
    reply = read_reply(data)
    assert not reply.choices[0].has_ids
    assert regions.all is None
    require_region(regions, "all", "a strategy")


def test_a_server_that_gives_ids_nowhere_sends_nobody_round_in_a_circle():
    none = Capabilities(site="http://host/v1", model="m", ids=False, completions=False, generate=False, logprobs=True)
    for api in ("chat", "completions", "generate"):
        wanted = needs(TokenMode(api=api), tools=False)
        assert other_apis(none, wanted)
        with pytest.raises(ConfigError, match="no other API of this server gives them either"):
            require(none, wanted, none)
    unsure = Capabilities(site="http://host/v1", model="m", ids=False, logprobs=True)
    with pytest.raises(ConfigError, match=r"try TokenMode.*\(--tokens completions\) or .*\(--tokens generate\)"):
        require(unsure, needs(TokenMode(), tools=False), unsure)
