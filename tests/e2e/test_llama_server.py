"""Runs on a server that answers as llama.cpp's does: their figures are the server's, and their prompts its chat's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from llama_server import decode, llama_server, template

from trunkline.agent import Agent
from trunkline.llm.config import LLM
from trunkline.llm.request import Sampling
from trunkline.llm.token_ids.base import TokenMode
from trunkline.rollout.budget import Budget
from trunkline.runner.run import arun
from trunkline.store.reader import RunReader
from trunkline.store.stats.calls import probes
from trunkline.strategies.chain import Chain
from trunkline.tools.tool import tool
from trunkline.types import Task

TASKS = [Task.ask(f"Who is {number}?", id=f"q{number}") for number in range(4)]


@tool
def search(query: str) -> str:
    """Search."""
    return query


async def test_token_ids_of_prompts_and_replies(tmp_path: Path):
    who = Agent(
        model="m",
        tools=[search],
        max_turns=3,
        sampling=Sampling(max_tokens=30),
        dialect="search-r1",
        on_void_turn="tell",
    )
    async with llama_server() as server:
        llm = LLM(server.url, tokens=TokenMode(api="completions"), max_retries=0)
        result = await arun(who, TASKS, llm=llm, strategy=Chain(3), workers=0, seed=4, out=tmp_path / "run")
        bodies = [body for body in server.bodies if "prompt" in body]
    summary = result.summary()
    assert summary.terminations == {"max_turns": 12}, summary.failures
    assert (summary.usage.calls, summary.estimated) == (36, 0)
    assert not any((summary.usage.bridged, summary.usage.realigned, summary.usage.forked))
    assert all("n" not in body for body in bodies), "of several, llama.cpp counts the first alone"
    with RunReader.open(tmp_path / "run") as reader:
        assert reader.check() == []
        own = sum(call.generated for call in probes(reader.meta))
    assert summary.usage.generated + own == server.generated
    for tree in result:
        assert tree.tokens.tree > 0
        for rollout in tree.rollouts:
            path = tree.core.path(rollout.nodes[-1].id)
            said = [json.loads(tree.core.message(node)) for node in path]
            for place, message in enumerate(said):
                if message["role"] == "assistant":
                    ids = [one for node in path[:place] for one in tree.core.tokens_of(node).ids]
                    assert decode(ids) == template(said[:place], opened=True)


@pytest.mark.breaks_rollouts
async def test_a_reply_with_a_character_of_several_tokens_names_why_it_has_no_ids():
    async with llama_server("na\u00efve ") as server:
        llm = LLM(server.url, tokens=TokenMode(api="completions"), max_retries=0)
        who = Agent(model="m", sampling=Sampling(max_tokens=30))
        result = await arun(who, TASKS[:1], llm=llm, strategy=Chain(1), workers=0)
    ((message, count),) = result.summary().failures
    assert count == 1
    assert "it lists the tokens of one character as one" in message


@pytest.mark.parametrize("logprobs", [None, True])
async def test_what_several_completions_generated_is_counted(logprobs: bool | None):
    async with llama_server() as server:
        llm = LLM(server.url, max_concurrency=1, max_retries=0)
        who = Agent(model="m", sampling=Sampling(max_tokens=30, logprobs=logprobs))
        result = await arun(who, TASKS, llm=llm, strategy=Chain(4), workers=0, seed=4, budget=Budget(generated=9000))
    usage, real = result.summary().usage.generated, server.generated
    assert abs(usage - real) <= 0.05 * real
