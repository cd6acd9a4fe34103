"""Token-exact mode where rollouts meet: nodes that several pass, answers that are used again, draws of one state."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from exact_runs import grow, serving

from trunkline import _core
from trunkline._core import PROMPT, ROOT, TURN, TokenBuffer, last_ids
from trunkline._internal.text import JSON
from trunkline.agent import Agent, CompiledAgent
from trunkline.llm.cache import Cache
from trunkline.llm.request import Sampling
from trunkline.llm.token_ids.base import TokenMode
from trunkline.rollout.sampling.token_prompts import TokenPromptBuilder
from trunkline.tree.views import Tree
from trunkline.types import Message, Task

APIS = ("chat", "completions", "generate")


@pytest.fixture
def tasks(tasks: list[Task]) -> list[Task]:
    return tasks[:2]


def known(trees: list[Tree]) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    """What models were given and what they sampled, as the trees have it."""
    pairs = set()
    for tree in trees:
        for node in range(len(tree.core)):
            if tree.core.node(node).kind == TURN:
                own = tuple(tree.core.tokens_of(node).ids)
                pairs.add((tuple(last_ids(tree.core, node))[: -len(own)], own))
    return pairs


class Slow:
    """A renderer that waits for its turn, and writes a number for each message: 100 and its ``n``, then 9."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Event] = []

    async def render(self, messages: Sequence[Message], tools: Sequence[JSON] = ()) -> list[int]:
        return [100 + message["n"] for message in messages] + [9]

    async def extend(self, previous: Sequence[int], messages: Sequence[Message]) -> list[int]:
        event = asyncio.Event()
        self.waiting.append(event)
        await event.wait()
        return await self.render(messages)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_rollouts_that_render_side_by_side_take_no_ids_from_each_other(order: tuple[int, int]):
    core, renderer = _core.CoreTree(), Slow()
    exact = TokenPromptBuilder(TokenMode(api="completions"), lambda _model: renderer)
    compiled = CompiledAgent(Agent(model="m", sampling=Sampling(max_tokens=9)))
    prompt = core.append(ROOT, PROMPT, b'{"n":0}', 0, TokenBuffer([1, 2]))
    leaves = []
    for draw, seen in enumerate([(1,), (1, 2)]):
        rollout = core.open(prompt, [0, draw])
        core.turn(rollout, b"{}", 0, 0, 0, -1, -1, -1, 0, 0, None, None, TokenBuffer([3], [-0.5]))
        leaves.append([core.observe(rollout, b'{"n":%d}' % n, 0, 1) for n in seen][-1])
    asked = [asyncio.ensure_future(exact.prompt(core, compiled, leaf, 1, 1)) for leaf in leaves]
    while len(renderer.waiting) < 2:
        await asyncio.sleep(0)
    for place in order:
        renderer.waiting[place].set()
        await asked[place]
    sent = [json.loads(task.result().content)["prompt"] for task in asked]
    assert sent == [[1, 2, 3, 101, 9], [1, 2, 3, 101, 102, 9]]
    core.check()


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("noncanonical", [0.0, 0.3])
async def test_answers_of_a_cache_grow_the_trees_that_the_engine_grew(
    api: str, noncanonical: float, tasks: list[Task], tmp_path: Path
):
    mode, cache = TokenMode(api=api, drift="realign"), Cache(tmp_path / "c")
    async with serving(mode, noncanonical=noncanonical) as (llm, noting):
        first = await grow(mode, llm, tasks, cache=cache)
        assert set(noting.sampled()) == known(first)
        sampled = len(noting.sampled())
        again = await grow(mode, llm, tasks, cache=cache)
        assert len(noting.sampled()) == sampled, "everything was kept"
    assert [tree.digest() for tree in again] == [tree.digest() for tree in first]
    cache.close()


async def test_an_answer_that_lacks_ids_is_not_kept(tasks: list[Task], tmp_path: Path):
    cache = Cache(tmp_path / "c")
    async with serving(TokenMode(), tool_logprobs=False) as (llm, noting):
        for asked in (1, 2):
            (tree,) = await grow(TokenMode(), llm, tasks[1:], draws=1, cache=cache)
            assert len(noting.calls) == asked
            (rollout,) = tree.rollouts
            assert "log-probabilities of them; `trunkline probe`" in rollout.error.message
    cache.close()


@pytest.mark.parametrize("api", APIS)
async def test_trees_that_ask_the_same_at_temperature_0_hold_what_one_answer_says(api: str, tasks: list[Task]):
    mode = TokenMode(api=api)
    async with serving(mode, noncanonical=0.2) as (llm, noting):
        trees = await grow(mode, llm, [tasks[1], tasks[1]], draws=3, temperature=0.0)
    if api != "chat":
        assert set(noting.sampled()) == known(trees)
    assert len(noting.sampled()) < sum(tree.usage.calls for tree in trees) / 4, "equal requests are sent once"
    assert len({tree.digest() for tree in trees}) == 1
    assert all(tree.tokens.exact for tree in trees)


async def test_draws_on_sglang_have_a_request_and_a_seed_each(tasks: list[Task]):
    mode = TokenMode(api="generate")
    async with serving(mode) as (llm, noting):
        await grow(mode, llm, tasks[1:], draws=3)
    first = noting.calls[1:4] if noting.calls[0].url.endswith("/tokenize") else noting.calls[:3]
    asked = [call.body["sampling_params"] for call in first]
    assert [params["n"] for params in asked] == [1, 1, 1]
    assert len({params["sampling_seed"] for params in asked}) == 3


@pytest.mark.parametrize("api", APIS)
async def test_turns_that_a_text_stops_are_as_exact(api: str, tasks: list[Task]):
    mode, kept = TokenMode(api=api), {"include_stop_str_in_output": True}
    async with serving(mode, noncanonical=0.3) as (llm, noting):
        trees = await grow(mode, llm, tasks, dialect="hermes", stop=("</tool_call>",), extra=kept)
    assert set(noting.sampled()) == known(trees)
    assert all(tree.tokens.exact for tree in trees)
    assert sum(tree.usage.tools for tree in trees) > 0
