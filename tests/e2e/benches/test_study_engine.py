"""The simulator without a server is the simulator with one."""

from __future__ import annotations

import pytest
from study_agents import compiled_agent

from studies.arms import ARMS
from studies.cell import SAMPLING
from studies.engine import SimLLM
from studies.growth import agent, grow
from studies.tries import tries_of
from trunkline.agent import CompiledAgent
from trunkline.errors import BadRequest, ConfigError, LLMError
from trunkline.llm.config import LLM
from trunkline.llm.types import Request
from trunkline.sim.server.app import start_server
from trunkline.sim.server.options import Settings
from trunkline.strategies.entropy_tree import EntropyTree
from trunkline.strategies.tree_grpo import TreeGRPO


@pytest.mark.parametrize(
    ("strategy", "sampling"),
    [
        (TreeGRPO(), {}),
        (TreeGRPO(), {"logprobs": True, "top_logprobs": 4}),
        (EntropyTree(chains=2), {"max_tokens": 2048}),
    ],
)
async def test_trees_and_their_usage_are_those_of_the_real_server(lookups, strategy, sampling):
    ids = "max_tokens" in sampling
    server = await start_server(Settings())
    llm = LLM(server.root_url + "/v1").open()
    try:
        for task in lookups[:3]:
            served = await grow(task, compiled_agent(**sampling), strategy, llm, 3, ids=ids)
            inside = await grow(task, compiled_agent(**sampling), strategy, SimLLM(Settings()), 3, ids=ids)
            assert inside.digest() == served.digest()
            for ours, theirs in zip(inside.rollouts, served.rollouts, strict=True):
                assert (ours.usage.generated, ours.usage.prompt) == (theirs.usage.generated, theirs.usage.prompt)
                assert inside.core.node(ours.leaf.id).perplexity == pytest.approx(
                    served.core.node(theirs.leaf.id).perplexity, nan_ok=True
                )
    finally:
        await llm.close()
        await server.stop()


@pytest.mark.parametrize("name", ["TreeSearch(3, 2)", "MCTS(8) sees labels", "EntropyTree(2, 2, 1, 2)"])
async def test_tries_cost_together_what_the_server_counted(lookups, name):
    arm, llm = ARMS[name], SimLLM(Settings())
    player = CompiledAgent(agent("sim-agent", SAMPLING[arm.needs]))
    tries = tries_of(await grow(lookups[0], player, arm.strategy, llm, 3, ids=arm.needs == "ids", guide=arm.guide))
    counted = llm.metrics
    assert sum(each.generated for each in tries) == counted.generated > 0
    assert sum(each.uncached for each in tries) == counted.prompt - counted.cached > 0


async def test_prompt_tokens_are_cached_as_on_a_server(lookups):
    roomy = await grow(lookups[0], compiled_agent(), TreeGRPO(), SimLLM(Settings()), 3)
    none = await grow(lookups[0], compiled_agent(), TreeGRPO(), SimLLM(Settings(cache_tokens=0)), 3)
    assert roomy.digest() == none.digest()
    assert roomy.usage.prompt == none.usage.prompt
    assert roomy.usage.cached > none.usage.cached


async def test_what_the_server_refuses_is_a_bad_request_and_what_fails_is_an_error():
    with pytest.raises(BadRequest, match="messages"):
        await SimLLM(Settings()).complete(Request(b'{"model":"sim-agent"}', 0))
    with pytest.raises(BadRequest, match="without a server"):
        await SimLLM(Settings()).complete(Request(b"{}", 0, route="//generate"))
    with pytest.raises(BadRequest, match="tokens"):
        await SimLLM(Settings()).call("//detokenize", b'{"tokens":[-1]}')
    failing = SimLLM(Settings(fail_rate=1.0))
    body = b'{"model":"sim-agent","messages":[{"role":"user","content":"?"}]}'
    with pytest.raises(LLMError, match=r"error|Rate"):
        await failing.complete(Request(body, 0))
    with pytest.raises(ConfigError, match="preset"):
        SimLLM(Settings(preset="hard"))
