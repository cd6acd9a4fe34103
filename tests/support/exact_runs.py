"""Whole tasks of the simulated world in token-exact mode, with every request and answer noted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from trunkline.agent import Agent, CompiledAgent
from trunkline.llm.cache import Cache
from trunkline.llm.config import LLM
from trunkline.llm.http.aiohttp_transport import SwitchTransport
from trunkline.llm.http.client import HttpLLM
from trunkline.llm.http.transport import Answer
from trunkline.llm.request import Sampling
from trunkline.llm.token_ids.base import TokenMode
from trunkline.llm.token_ids.renderers import renderers
from trunkline.llm.types import Reply
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.sampling.token_prompts import TokenPromptBuilder
from trunkline.rollout.tree_runner import TreeRunner, TreeSettings
from trunkline.rollout.types import TurnSink
from trunkline.sim.server.app import start_server
from trunkline.sim.server.options import Settings
from trunkline.sim.tools import search, visit
from trunkline.strategies.base import Strategy
from trunkline.strategies.chain import Chain
from trunkline.tools.environment import Environment
from trunkline.tools.tool import Tool
from trunkline.tree.views import Tree
from trunkline.types import Task


class Call(NamedTuple):
    """One request and its answer."""

    url: str
    body: dict
    reply: dict | list


class Noting(SwitchTransport):
    """A transport that remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, limit: float) -> Answer:
        answer = await super().post(url, headers, body, limit)
        self.calls.append(Call(url, json.loads(body), json.loads(answer.body)))
        return answer

    def sampled(self) -> list[tuple[tuple[int, ...] | None, tuple[int, ...]]]:
        """What the engine was given and what it sampled, a pair for each completion."""
        pairs = []
        for url, body, reply in self.calls:
            if url.endswith("/generate"):
                given = tuple(body["input_ids"])
                pairs += [(given, tuple(one["output_ids"])) for one in (reply if isinstance(reply, list) else [reply])]
            elif url.endswith("/completions"):
                for choice in reply["choices"]:
                    prompt = reply.get("prompt_token_ids") or choice["prompt_token_ids"]
                    pairs.append((tuple(prompt), tuple(choice["token_ids"])))
        return pairs


class Silent(TurnSink):
    """A sink without back-pressure."""

    async def reserve(self) -> None: ...

    def release(self) -> None: ...

    def called(self, reply: Reply) -> None: ...

    def grew(self, size: int = 0, turns: int = 0) -> None: ...


@asynccontextmanager
async def serving(mode: TokenMode, **settings: object) -> AsyncIterator[tuple[HttpLLM, Noting]]:
    """A simulated server and a client of it."""
    server = await start_server(Settings(**settings))
    noting = Noting()
    llm = LLM(server.base_url, tokens=mode, max_retries=0).open(transport=noting)
    try:
        yield llm, noting
    finally:
        await llm.close()
        await server.stop()


async def grow(
    mode: TokenMode,
    llm: HttpLLM,
    tasks: list[Task],
    draws: int = 2,
    dialect: str = "native",
    cache: Cache | None = None,
    strategy: Strategy | None = None,
    max_turns: int = 12,
    tools: Sequence[Tool] = (search, visit),
    environment: type[Environment] | None = None,
    **sampling: object,
) -> list[Tree]:
    """Play tasks to their end."""
    asked = Sampling(**{"max_tokens": 2000, **sampling})
    agent = Agent(
        model="sim-agent",
        tools=tools,
        max_turns=max_turns,
        sampling=asked,
        dialect=dialect,
        environment=environment,
    )
    compiled = CompiledAgent(agent)
    asker = CompletionClient(llm, cache, TokenPromptBuilder(mode, renderers(mode, llm.call)))
    sessions = [
        TreeRunner(Tree(task), TreeSettings(compiled, strategy or Chain(draws), None, 5, asker), Silent())
        for task in tasks
    ]
    await asyncio.gather(*(session.run() for session in sessions))
    await compiled.toolbox.close()
    return [session.tree for session in sessions]
