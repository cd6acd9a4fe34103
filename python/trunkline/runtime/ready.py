"""Whether a run can begin: what its settings need of an endpoint is asked for there, once, and only then."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from trunkline.llm.spec import EndpointSpec
from trunkline.rollout.speech import Speech

if TYPE_CHECKING:
    from trunkline.runtime.job import Job

__all__ = ["check", "ready"]


def check(job: Job) -> None:
    """Check what needs no endpoint: that there is a key where one is needed, and that tokens can be asked for.

    Raises:
        ConfigError: A setting cannot be kept; the message names it.
    """
    if not isinstance(job.llm, EndpointSpec):
        return
    job.llm.key()
    if job.llm.tokens is None:
        return
    # Here, because a controller whose workers do the talking needs none of it.
    from trunkline.llm.tokens import form_of  # noqa: PLC0415

    agent, mode = job.agent, job.llm.tokens
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
    if not isinstance(job.llm, EndpointSpec) or job.llm.tokens is None:
        return
    from trunkline.llm.probe import needs, probe, require  # noqa: PLC0415

    agent, mode = job.agent, job.llm.tokens
    speech = Speech(agent.dialect, agent.tools, agent.sampling)
    wanted = needs(mode, tools=bool(agent.tools) and speech.native)
    for url in job.llm.base_urls:
        one = msgspec.structs.replace(job.llm, base_urls=(url,))
        require(await probe(partial(EndpointSpec.open, one), agent.model, tuple(wanted)), wanted)
