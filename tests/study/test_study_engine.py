"""The simulator without a server is the simulator with one."""

from __future__ import annotations

import pytest
from study_kit import kit

from trunkline.errors import BadRequest, ConfigError, LLMError
from trunkline.llm.protocol import Request
from trunkline.llm.spec import EndpointSpec
from trunkline.rollout.strategies.tree_grpo import TreeGRPO
from trunkline.sim.server.serve import start_server
from trunkline.sim.server.settings import Settings
from trunkline.sim.study.engine import SimLLM
from trunkline.sim.study.growth import grow


@pytest.mark.parametrize("sampling", [{}, {"logprobs": True, "top_logprobs": 4}])
async def test_trees_and_their_usage_are_those_of_the_real_server(lookups, sampling):
    server = await start_server(Settings())
    llm = EndpointSpec(server.root_url + "/v1").open()
    try:
        for task in lookups[:4]:
            served = await grow(task, kit(**sampling), TreeGRPO(), llm, 3)
            inside = await grow(task, kit(**sampling), TreeGRPO(), SimLLM(Settings()), 3)
            assert inside.digest() == served.digest()
            for ours, theirs in zip(inside.rollouts, served.rollouts, strict=True):
                assert (ours.usage.generated, ours.usage.prompt) == (theirs.usage.generated, theirs.usage.prompt)
                assert inside.core.node(ours.leaf.id).perplexity == pytest.approx(
                    served.core.node(theirs.leaf.id).perplexity, nan_ok=True
                )
    finally:
        await llm.close()
        await server.stop()


async def test_prompt_tokens_are_cached_as_on_a_server(lookups):
    roomy = await grow(lookups[0], kit(), TreeGRPO(), SimLLM(Settings()), 3)
    none = await grow(lookups[0], kit(), TreeGRPO(), SimLLM(Settings(cache_tokens=0)), 3)
    assert roomy.digest() == none.digest()
    assert roomy.usage.prompt == none.usage.prompt
    assert roomy.usage.cached > none.usage.cached


async def test_what_the_server_refuses_is_a_bad_request_and_what_fails_is_an_error():
    with pytest.raises(BadRequest, match="messages"):
        await SimLLM(Settings()).complete(Request(b'{"model":"sim-agent"}', 0))
    with pytest.raises(BadRequest, match="without a server"):
        await SimLLM(Settings()).complete(Request(b"{}", 0, route="//generate"))
    failing = SimLLM(Settings(fail_rate=1.0))
    body = b'{"model":"sim-agent","messages":[{"role":"user","content":"?"}]}'
    with pytest.raises(LLMError, match=r"error|Rate"):
        await failing.complete(Request(body, 0))
    with pytest.raises(ConfigError, match="preset"):
        SimLLM(Settings(preset="hard"))
