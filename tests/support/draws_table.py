"""A tree, its sampler and an LLM that is told what to answer, for tests of how draws are asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from trunkline import _core
from trunkline.agent import Agent, CompiledAgent
from trunkline.llm.cache import Cache
from trunkline.llm.request import Sampling
from trunkline.llm.response import read
from trunkline.llm.types import LLMClient, Reply, ReplyChoice, Request
from trunkline.rollout.rollout import Rollout
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.sampling.sampler import Sampler
from trunkline.rollout.types import TurnSink
from trunkline.types import Task

ANSWER = ReplyChoice("<answer>4</answer>", None, [], "stop")


def completion(contents: Sequence[str]) -> bytes:
    """A chat completion with these contents, of 90 prompt tokens and 10 generated ones each."""
    choices = [
        {"index": i, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        for i, content in enumerate(contents)
    ]
    usage = {"prompt_tokens": 90, "completion_tokens": 10 * len(contents)}
    return json.dumps({"choices": choices, "usage": usage}).encode()


class Counted:
    """An LLM that receives bytes, answers as it is told, and remembers what it was asked."""

    def __init__(
        self, answer: Callable[[dict], bytes], *, siblings: bool = True, gate: asyncio.Event | None = None
    ) -> None:
        self.answer = answer
        self.siblings = siblings
        self.gate = gate
        self.asked = asyncio.Event()
        self.bodies: list[dict] = []
        self.cancelled = 0

    async def complete(self, request: Request) -> Reply:
        body = json.loads(request.body)
        self.bodies.append(body)
        self.asked.set()
        try:
            await (asyncio.sleep(0.001) if self.gate is None else self.gate.wait())
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return (request.take or read)(self.answer(body), 0, 1, 5)

    async def close(self) -> None: ...


class Noted(TurnSink):
    """A sink that counts."""

    def __init__(self) -> None:
        self.reserved = 0
        self.replies: list[Reply] = []

    async def reserve(self) -> None:
        self.reserved += 1

    def release(self) -> None:
        self.reserved -= 1

    def called(self, reply: Reply) -> None:
        self.replies.append(reply)

    def grew(self, size: int = 0, turns: int = 0) -> None: ...


class Table(NamedTuple):
    """One task's tree and who may ask."""

    core: _core.CoreTree
    compiled: CompiledAgent
    draws: CompletionClient
    desk: Sampler
    sink: Noted
    task: Task
    rollouts: list[Rollout]

    def fork(self, n: int) -> None:
        """Open the next draws of the prompt."""
        first = self.core.rollouts
        numbers = [self.core.open(1, (0, draw), draw) for draw in range(first, first + n)]
        for number in numbers:
            self.rollouts.append(Rollout.of(self.desk, number))


def open_table(
    llm: LLMClient,
    n: int,
    draws: CompletionClient | None = None,
    *,
    cache: Cache | None = None,
    sampling: Sampling | None = None,
    task: str = "q",
) -> Table:
    """Plant a prompt and open n draws of it."""
    core = _core.CoreTree()
    core.append(0, _core.PROMPT, b'{"role":"user","content":"2 + 2?"}')
    draws, sink = draws or CompletionClient(llm, cache), Noted()
    compiled = CompiledAgent(Agent(model="m", sampling=sampling or Sampling()))
    asked = Task.ask("2 + 2?", id=task)
    table = Table(core, compiled, draws, Sampler(core, asked, draws, sink, seed=3), sink, asked, [])
    table.fork(n)
    return table


class Asked(NamedTuple):
    """What a rollout got."""

    choice: ReplyChoice
    node: int


async def ask_all(table: Table, numbers: Iterable[int] | None = None) -> list[Asked]:
    """Let rollouts ask at once; all of what went wrong is raised as a group."""
    rollouts = [table.rollouts[number] for number in (range(len(table.rollouts)) if numbers is None else numbers)]
    found = await asyncio.gather(*(rollout.ask(table.compiled) for rollout in rollouts), return_exceptions=True)
    problems = [one for one in found if isinstance(one, BaseException)]
    if problems:
        raise BaseExceptionGroup("asking", problems)
    return [Asked(choice, rollout.leaf) for choice, rollout in zip(found, rollouts, strict=True)]
