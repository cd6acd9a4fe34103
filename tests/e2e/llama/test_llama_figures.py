"""Figures of runs on llama.cpp are those that the server counts itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from llama_cpp_server import SLOTS, Counts, LlamaCpp
from tiny_model import OPEN, write_model

from trunkline.agent import Agent
from trunkline.llm.capabilities import ABILITIES, probe
from trunkline.llm.config import LLM
from trunkline.llm.request import Sampling
from trunkline.llm.servers import ServerFacts, find_facts
from trunkline.llm.token_ids.base import TokenMode
from trunkline.runner.result import Run
from trunkline.runner.run import arun
from trunkline.store.reader import RunReader
from trunkline.store.stats.calls import probes
from trunkline.strategies.chain import Chain
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.tools.tool import tool
from trunkline.types import Task, Termination

Serve = Callable[..., LlamaCpp]
TASKS = [Task.ask(f"Who is {number}?", id=f"q{number}") for number in range(4)]


@tool
def search(query: str) -> str:
    """Search."""
    return f"Nothing about{query}."


AGENT = Agent(model="words", tools=[search], system="Be brief.", max_turns=4, sampling=Sampling(max_tokens=40))


async def play(server: LlamaCpp, agent: Agent = AGENT, *, llm: Any = None, **options: Any) -> Run:
    llm = llm or LLM(server.url, max_concurrency=SLOTS, max_retries=0)
    return await arun(agent, options.pop("tasks", TASKS), llm=llm, **{"workers": 0, "seed": 4, **options})


def own(path: Path) -> Counts:
    """Tokens of a run, those of its probes included."""
    with RunReader.open(path) as reader:
        assert reader.check() == []
        calls = [*(call for _, call in reader.calls()), *probes(reader.meta)]
    prompt, cached, generated = (
        sum(getattr(call, name) for call in calls) for name in ("prompt", "cached", "generated")
    )
    return Counts(prompt - cached, cached, generated)


class Turn(NamedTuple):
    """A model turn: the nodes and messages before it, what was said, and its node."""

    tree: Any
    path: list[int]
    before: list[dict[str, Any]]
    said: dict[str, Any]
    node: Any


def turns_of(result: Run) -> list[Turn]:
    """All model turns of a run, each once."""
    found = {}
    for tree in result:
        for rollout in tree.rollouts:
            path = tree.core.path(rollout.nodes[-1].id)
            said = [json.loads(tree.core.message(node)) for node in path]
            for at, node in enumerate(path):
                if said[at]["role"] == "assistant":
                    found[tree.task.id, node] = Turn(tree, path[:at], said[:at], said[at], tree.core.node(node))
    return [*found.values()]


def test_a_model_is_the_same_bytes_each_time(tmp_path: Path):
    for name in ("a", "b"):
        write_model(tmp_path / name)
    first, second = ((tmp_path / name).read_bytes() for name in ("a", "b"))
    assert hashlib.sha256(first).digest() == hashlib.sha256(second).digest()
    assert len(first) < 2**20


@pytest.mark.parametrize("strategy", [Chain(3), TreeGRPO(trees=2, forks=2, rounds=1)], ids=["chain", "tree-grpo"])
async def test_usage_and_prompts_are_the_servers(serve: Serve, tmp_path: Path, strategy: Any):
    server = serve()
    llm = LLM(server.url, max_concurrency=SLOTS, max_retries=0, siblings=False)
    result = await play(server, llm=llm, strategy=strategy, out=tmp_path / "run")
    summary = result.summary()
    assert own(tmp_path / "run") == server.counts()
    assert summary.estimated == 0
    assert set(summary.terminations) <= {"answer", "max_turns", "max_tokens"}
    assert (summary.usage.tools > 0, summary.usage.tool_errors) == (True, 0)
    turns = turns_of(result)
    assert all(len(server.prompt(turn.before, [search.definition])) == turn.node.prompt for turn in turns)
    assert {turn.node.finish for turn in turns} == {"stop", "tool_calls"}
    assert all(("tool_calls" in turn.said) == (turn.node.finish == "tool_calls") for turn in turns)
    assert all(OPEN not in (turn.said["content"] or "") for turn in turns)


@pytest.mark.parametrize("logprobs", [None, True])
async def test_all_tokens_of_siblings_are_counted(serve: Serve, tmp_path: Path, logprobs: bool | None):
    server = serve({"calls": 0.0})
    agent = Agent(model="words", sampling=Sampling(max_tokens=40, logprobs=logprobs))
    result = await play(server, agent, strategy=Chain(SLOTS), out=tmp_path / "run")
    found, real, estimated = own(tmp_path / "run"), server.counts(), result.summary().estimated
    assert found[:2] == real[:2]
    assert (estimated > 0) == (not logprobs)
    assert abs(found.generated - real.generated) <= estimated / 4


async def test_seeds_decide_the_texts(serve: Serve):
    server = serve()
    first, again, single, other = [
        [tree.digest() for tree in await play(server, strategy=Chain(3), seed=seed, llm=llm)]
        for seed, llm in ((4, None), (4, None), (4, LLM(server.url, siblings=False)), (5, None))
    ]
    assert first == again == single
    assert not set(first) & set(other)


async def test_stop_reasons_are_told_apart(serve: Serve):
    server = serve({"calls": 0.0})
    cut = await play(server, Agent(model="words", sampling=Sampling(max_tokens=6)), strategy=Chain(6))
    ends = [(rollout.termination, tree.core.node(rollout.nodes[-1].id)) for tree in cut for rollout in tree.rollouts]
    assert {(end, node.finish) for end, node in ends} == {("max_tokens", "length"), ("answer", "stop")}
    assert all(node.generated == 6 for end, node in ends if end == "max_tokens")
    stopped = await play(server, Agent(model="words", sampling=Sampling(stop=(" of", " by"))), strategy=Chain(6))
    assert {*stopped.summary().terminations} == {Termination.ANSWER}
    said = " ".join(rollout.answer or "" for tree in stopped for rollout in tree.rollouts)
    assert not {"of", "by"} & {*said.split()}


async def test_a_call_that_a_stop_string_cuts_is_told_to_the_model(serve: Serve):
    server = serve({"calls": 9.0})
    agent = Agent(model="words", tools=[search], max_turns=3, sampling=Sampling(stop=(" river",)))
    result = await play(server, agent, strategy=Chain(3))
    calls = [call for turn in turns_of(result) for call in turn.said.get("tool_calls", ())]
    cut = [call for call in calls if "malformed" in json.loads(call["function"]["arguments"])]
    usage = result.summary().usage
    assert (len(calls), len(cut)) == (usage.tools, usage.tool_errors)
    assert 0 < len(cut) < len(calls)


async def test_token_ids_are_the_servers(serve: Serve, tmp_path: Path):
    server = serve()
    agent = Agent(model="words", tools=[search], dialect="hermes", max_turns=3, sampling=Sampling(max_tokens=40))
    llm = LLM(server.url, tokens=TokenMode(api="completions"), max_concurrency=SLOTS, max_retries=0)
    result = await play(server, agent, llm=llm, strategy=Chain(3), out=tmp_path / "run")
    usage = result.summary().usage
    assert own(tmp_path / "run") == server.counts()
    assert (usage.bridged, usage.realigned, usage.forked) == (0, 0, 0)
    assert usage.tools > 0
    for turn in turns_of(result):
        ids = [one for node in turn.path for one in turn.tree.core.tokens_of(node).ids]
        assert ids == server.prompt(turn.before)


async def test_a_probe_finds_what_the_server_gives(serve: Serve):
    server = serve({"calls": 99.0})
    spec = LLM(server.url, max_retries=0)
    found = await probe(spec.open, "words")
    lacks = {"ids", "usage_of_n", "generate"}
    unseen = {"reasoning_logprobs"}
    assert {name: getattr(found, name) for name in ABILITIES} == {
        name: None if name in unseen else name not in lacks for name in ABILITIES
    }
    llm = spec.open()
    try:
        facts = await find_facts(llm, "words")
    finally:
        await llm.close()
    settings = server.ask("/props")
    sizes = (settings["default_generation_settings"]["n_ctx"], settings["total_slots"])
    assert facts == ServerFacts(software="llama.cpp", context=sizes[0], slots=sizes[1])
    body = {"messages": TASKS[0].messages, "max_tokens": 1}
    assert server.status(body | {"n": facts.slots}) == 200
    assert server.status(body | {"n": facts.slots + 1}) == 400
