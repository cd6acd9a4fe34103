"""What rollouts of an agent of another framework share in a worker: the gateway and the models they ask."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline.agent import CompiledAgent
from trunkline.gateway.canonical import RequestMasks, encoded
from trunkline.gateway.server import Gateway
from trunkline.rollout.external.process import AgentRunner
from trunkline.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from collections.abc import Collection

    from openai import AsyncOpenAI

    from trunkline.gateway.types import AgentRequest
    from trunkline.rollout.external.config import External

__all__ = ["ExternalProgram"]

logger = logging.getLogger(__name__)

_KEPT: Final = 1_000
"""Different tools and sampling parameters that are kept for later requests: the latest."""


class DeclaredTools(Toolbox):
    """Tools that a request declares, and the agent runs itself."""

    def __init__(self, tools: list[dict[str, Any]]) -> None:
        super().__init__()
        self._declared = encoded(tools) if tools else b"[]"

    def definitions(self) -> bytes:
        return self._declared


class ExternalProgram:
    """An agent of another framework, with what its rollouts share.

    Args:
        external: The agent.
        compiled: The run's agent: which model is asked.
        keys: The keys of the run, which no agent is given.
        several: Whether tasks have several rollouts.
    """

    def __init__(
        self, external: External, compiled: CompiledAgent, keys: Collection[str] = (), *, several: bool
    ) -> None:
        self.external = external
        self.compiled = compiled
        self.masks = RequestMasks(external.masks)
        command = external.command
        self.runner = None if command is None else AgentRunner(command, keys)
        self._gateway: Gateway | None = None
        self._starting = asyncio.Lock()
        self._agents: dict[bytes, CompiledAgent] = {}
        self._several = several
        self._client: AsyncOpenAI | None = None

    async def gateway(self) -> Gateway:
        """Return the gateway of this worker, started once."""
        async with self._starting:
            if self._gateway is None:
                gateway = Gateway()
                await gateway.start()
                self._gateway = gateway
            return self._gateway

    def asking(self, request: AgentRequest) -> CompiledAgent:
        """Return the agent that asks for a request: its sampling parameters, but for those that the run says."""
        role = request.model if request.model in self.external.roles else self.compiled.agent.name
        key = encoded([role, request.tools, msgspec.to_builtins(request.sampling)])
        known = self._agents.pop(key, None)
        if known is None:
            if len(self._agents) >= _KEPT:
                del self._agents[next(iter(self._agents))]
            own, run = request.sampling, self.compiled.agent.sampling
            given = {name: value for name, value in msgspec.structs.asdict(run).items() if value is not None}
            merged = msgspec.structs.replace(own, **{**given, "extra": own.extra | run.extra})
            agent = msgspec.structs.replace(self.compiled.agent, sampling=merged, name=role)
            known = CompiledAgent(agent, DeclaredTools(request.tools))
            if known.greedy and self._several:
                self._several = False  # said once
                logger.warning(
                    "the agent asks with temperature 0, and tasks have several rollouts, which will be equal: set "
                    "Agent(sampling=Sampling(temperature=...)) (--temperature)"
                )
        self._agents[key] = known
        return known

    def client(self, base_url: str) -> AsyncOpenAI:
        """Return a client of the official library; all of a worker share their connections."""
        if self._client is None:
            from openai import AsyncOpenAI  # noqa: PLC0415 - a second of imports that other runs do not need

            self._client = AsyncOpenAI(base_url=base_url, api_key="trunkline")
        return self._client.with_options(base_url=base_url)

    async def close(self) -> None:
        """Stop the gateway."""
        if self._client is not None:
            await self._client.close()
        if self.runner is not None:
            await self.runner.aclose()
        if self._gateway is not None:
            await self._gateway.close()
        for one in self._agents.values():
            await one.toolbox.close()
