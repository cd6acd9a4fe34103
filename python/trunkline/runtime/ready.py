"""Whether a run can begin: what its settings need of an endpoint is asked for there, once, and only then."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from trunkline.llm.spec import EndpointSpec
from trunkline.rollout.speech import Speech
from trunkline.runtime.needs import forks_inside, region_of
from trunkline.tools.runner import Toolbox

if TYPE_CHECKING:
    from trunkline.llm.tokens import TokenMode
    from trunkline.rollout.agent import Agent
    from trunkline.runtime.job import Job

__all__ = ["check", "ready"]


def check(job: Job) -> None:
    """Check what needs no endpoint: that there is a key where one is needed, and that tokens can be asked for.

    Raises:
        ConfigError: A setting cannot be kept; the message names it.
    """
    for llm in job.llms.values():
        if isinstance(llm, EndpointSpec):
            llm.key()
    for agent, llm in _asked(job):
        if (mode := llm.tokens) is not None:
            _check_tokens(agent, mode)


def _asked(job: Job) -> list[tuple[Agent, EndpointSpec]]:
    """Who asks endpoints, as far as that is known."""
    asked = [(agent, job.llms[agent.llm]) for agent in job.askers]
    return [(agent, llm) for agent, llm in asked if isinstance(llm, EndpointSpec)]


def _check_tokens(agent: Agent, mode: TokenMode) -> None:
    """Check that tokens can be asked for."""
    # Here, because a controller whose workers do the talking needs none of it.
    from trunkline.llm.tokens import form_of  # noqa: PLC0415

    form_of(mode, agent.model, Speech(agent.dialect, agent.tools, agent.sampling).sampling)
    if mode.tokenizer is not None:
        from trunkline.llm.renderer.local import LocalRenderer  # noqa: PLC0415

        LocalRenderer(mode.tokenizer, mode.template)


async def ready(job: Job) -> None:
    """Check what only the endpoints can tell; nothing is sent where no setting needs it.

    Raises:
        ConfigError: A setting cannot be kept, or an endpoint lacks what it needs; the message names both.
        EndpointError: An endpoint serves nobody.
        LLMError: An endpoint gave no answer.
    """
    check(job)
    for agent, llm in _asked(job):
        mode, speech = llm.tokens, Speech(agent.dialect, agent.tools, agent.sampling)
        if mode is not None:
            await _exact(job, agent, llm, mode, speech)
        # Where prompts are sent as ids, the server takes nothing apart, and log-probs come for every token or none.
        if region_of(job.strategy) is not None and (mode is None or mode.api == "chat"):
            await _uncertain(job, agent, llm, speech)


async def _exact(job: Job, agent: Agent, llm: EndpointSpec, mode: TokenMode, speech: Speech) -> None:
    """What token-exact mode needs."""
    # Here, because a controller whose workers do the talking needs none of it.
    from trunkline.llm.probe import needs, probe, require  # noqa: PLC0415

    tools = bool(agent.tools) and speech.native
    wanted = needs(mode, tools=tools, inside=forks_inside(job.strategy))
    for url in llm.base_urls:
        one = msgspec.structs.replace(llm, base_urls=(url,))
        require(await probe(partial(EndpointSpec.open, one), agent.model, tuple(wanted)), wanted)


async def _uncertain(job: Job, agent: Agent, llm: EndpointSpec, speech: Speech) -> None:
    """What a strategy needs that looks at how sure the model was, asked for as the agent would ask."""
    from trunkline.llm.probe import QUESTION  # noqa: PLC0415 - as above
    from trunkline.llm.regions import find_regions, require_region  # noqa: PLC0415

    region = region_of(job.strategy)
    opening = speech.opening(agent.system, [{"role": "user", "content": QUESTION}])
    tools = Toolbox(agent.tools).definitions() if speech.native else b""
    for url in llm.base_urls:
        one = msgspec.structs.replace(llm, base_urls=(url,))
        found = await find_regions(partial(EndpointSpec.open, one), agent.model, speech.sampling, opening, tools)
        require_region(found, region or "all", type(job.strategy).__name__)
