"""Token-exact rollouts that broke off: they go on with the ids that are on the tree."""

from __future__ import annotations

import pytest
from exact_runs import Noting, serving
from recorder import Recorder, replayed

from trunkline._core import TURN, CoreTree
from trunkline.agent import Agent, CompiledAgent
from trunkline.llm.http.client import HttpLLM
from trunkline.llm.request import Sampling
from trunkline.llm.token_ids.base import TokenMode
from trunkline.llm.token_ids.renderers import renderers
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.sampling.token_prompts import TokenPromptBuilder
from trunkline.rollout.tree_runner import TreeRunner, TreeSettings
from trunkline.sim.tools import search, visit
from trunkline.strategies.base import Fork, View
from trunkline.tree.views import Tree
from trunkline.types import Task


class Once:
    """One chain, whoever began it."""

    def rollouts(self) -> int:
        return 1

    def start(self, view: View) -> list[Fork]:
        return [] if view.taken else [Fork()]


async def play(mode: TokenMode, llm: HttpLLM, task: Task, core: CoreTree) -> Recorder:
    """Play one task to its end."""
    compiled = CompiledAgent(
        Agent(model="sim-agent", tools=[search, visit], max_turns=12, sampling=Sampling(max_tokens=2000))
    )
    recorder = Recorder(core)
    draws = CompletionClient(llm, None, TokenPromptBuilder(mode, renderers(mode, llm.call)))
    await TreeRunner(Tree(task, core), TreeSettings(compiled, Once(), None, 5, draws), recorder).run()
    await compiled.toolbox.close()
    core.check()
    return recorder


def sampled(noting: Noting) -> int:
    """Requests that made a turn, and did not only ask for ids."""
    return sum(not call.url.endswith("tokenize") for call in noting.calls)


@pytest.mark.parametrize("api", ["chat", "completions", "generate"])
async def test_a_rollout_that_broke_off_goes_on_to_the_same_tree(api: str, tasks: list[Task]):
    mode = TokenMode(api=api)
    stood_at_a_turn = 0
    async with serving(mode) as (llm, noting):
        whole = await play(mode, llm, tasks[2], CoreTree())
        asked = sampled(noting)
        assert asked >= 3
        for kept in range(1, len(whole.deltas)):
            core = replayed(whole.deltas[:kept])
            paid = sum(core.node(node).kind == TURN for node in range(len(core)))
            stood_at_a_turn += bool(core.growing) and core.node(core.rollout(0).leaf).kind == TURN
            noting.calls.clear()
            again = await play(mode, llm, tasks[2], core)
            assert again.core.digest() == whole.core.digest(), f"broken off after delta {kept}"
            assert sampled(noting) == asked - paid
    assert stood_at_a_turn >= 2
