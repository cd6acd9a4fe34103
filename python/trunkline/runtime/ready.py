"""Whether a run can begin: what its settings need of an endpoint is asked for there, once, and only then."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from trunkline.llm.spec import EndpointSpec
from trunkline.rollout.speech import Speech

if TYPE_CHECKING:
    from trunkline.runtime.job import Job

__all__ = ["ready"]


async def ready(job: Job) -> None:
    """Check what only the endpoints can tell; nothing is sent where no setting needs it.

    Raises:
        ConfigError: A setting cannot be kept, or an endpoint lacks what it needs; the message names both.
        EndpointError: An endpoint serves nobody.
        LLMError: An endpoint gave no answer.
    """
    if not isinstance(job.llm, EndpointSpec) or job.llm.tokens is None:
        return
    # Here, because a controller whose workers do the talking needs none of it.
    from trunkline.llm.probe import needs, probe, require  # noqa: PLC0415
    from trunkline.llm.tokens import form_of  # noqa: PLC0415

    agent, mode = job.agent, job.llm.tokens
    speech = Speech(agent.dialect, agent.tools, agent.sampling)
    form_of(mode, agent.model, speech.sampling)
    if mode.tokenizer is not None:
        from trunkline.llm.renderer.local import LocalRenderer  # noqa: PLC0415

        LocalRenderer(mode.tokenizer, mode.template)
    wanted = needs(mode, tools=bool(agent.tools) and speech.native)
    for url in job.llm.base_urls:
        one = msgspec.structs.replace(job.llm, base_urls=(url,))
        require(await probe(partial(EndpointSpec.open, one), agent.model, tuple(wanted)), wanted)
