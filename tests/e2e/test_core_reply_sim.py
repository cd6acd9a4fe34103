"""Replies of the simulated server, from its socket: what each of its ways to answer leaves of tokens and regions."""

from __future__ import annotations

import json
import math

import aiohttp
import pytest

from trunkline._core import ParsedChoice, read_reply
from trunkline.sim.server.app import start_server
from trunkline.sim.server.options import Settings
from trunkline.sim.world.generator import make_world

QUESTION = next(question.question for question in make_world(0).questions if question.kind == "lookup")
SEARCH = {
    "name": "search",
    "description": "Search the corpus for documents.",
    "parameters": {
        "type": "object",
        "properties": {"query": {"type": "array", "items": {"type": "string"}}},
        "required": ["query"],
    },
}


async def ask(settings: Settings, **fields: object) -> ParsedChoice:
    body = {"model": "sim-agent", "messages": [{"role": "user", "content": QUESTION}], "seed": 3}
    body |= {"tools": [{"type": "function", "function": SEARCH}], "logprobs": True, "top_logprobs": 16}
    server = await start_server(settings)
    try:
        url = f"{server.root_url}/v1/chat/completions"
        async with aiohttp.ClientSession() as session, session.post(url, data=json.dumps(body | fields)) as response:
            assert response.status == 200
            return read_reply(await response.read()).choices[0]
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("settings", "aligned", "known"),
    [
        (Settings(), True, (True, True, True)),
        (Settings(reasoning="field"), True, (True, True, True)),
        (Settings(reasoning="dropped"), True, (False, True, True)),
        (Settings(tool_logprobs=False), False, (True, False, True)),
    ],
    ids=["plain", "reasoning beside the text", "reasoning dropped", "no log-probs of calls"],
)
async def test_what_is_listed_has_figures_and_all_has_ids(settings: Settings, aligned: bool, known: tuple) -> None:
    choice = await ask(settings, return_token_ids=True)
    assert [name for _, name, _ in choice.tool_calls] == ["search"]
    assert (choice.has_ids, choice.aligned) == (True, aligned)
    assert (len(choice.logprobs) == len(choice.tokens)) is aligned
    assert all(map(math.isnan, choice.tokens.logprobs)) is not aligned
    assert tuple(perplexity >= 1 for perplexity in choice.tokens.perplexity) == known
    assert tuple(not math.isnan(entropy) for entropy in choice.tokens.entropy) == known


async def test_without_ids_the_figures_are_the_same() -> None:
    with_ids, without = await ask(Settings(), return_token_ids=True), await ask(Settings())
    assert (without.has_ids, without.aligned, len(without.tokens)) == (False, False, 0)
    assert without.tokens.perplexity == with_ids.tokens.perplexity
    assert without.logprobs == with_ids.logprobs
