"""A model with usage of its own, answering in any order, and trees that grow under a budget."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from scripted import look

from trunkline._core import CoreTree
from trunkline.agent import Agent, CompiledAgent
from trunkline.llm.request import Sampling
from trunkline.llm.response import read
from trunkline.llm.types import Reply, Request
from trunkline.rollout.budget import Budget
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.task_budget import BudgetSources
from trunkline.rollout.tree_runner import TreeRunner, TreeSettings
from trunkline.rollout.types import TurnSink
from trunkline.strategies.stopping import Stopping
from trunkline.tree.views import Tree
from trunkline.types import Task

MOST = 50
"""Tokens that a turn may generate."""


class Clerk:
    """Calls the tool until the turn it is told to answer in.

    Args:
        answer: From the draw's seed to (turns before the answer, the answer).
        usage: From the seed to generated tokens.
        ticks: From the seed to turns of the event loop that the reply takes; with None it never comes.
        prompt: From the bytes of the request to prompt tokens; -1 reports no usage.
    """

    def __init__(
        self,
        answer: Callable[[int], tuple[int, str]] = lambda seed: (2, "yes"),
        usage: Callable[[int], int] = lambda seed: 10,
        ticks: Callable[[int], int | None] = lambda seed: 0,
        prompt: Callable[[int], int] = lambda size: size // 4,
        siblings: bool = False,
    ) -> None:
        self.siblings = siblings
        self.asked = self.now = self.given_up = 0
        self._answer, self._usage, self._ticks, self._prompt = answer, usage, ticks, prompt

    async def complete(self, request: Request) -> Reply:
        self.asked += request.n
        self.now += 1
        try:
            ticks = self._ticks(request.seed)
            await (asyncio.Event().wait() if ticks is None else self._wait(ticks))
        except asyncio.CancelledError:
            self.given_up += request.n
            raise
        finally:
            self.now -= 1
        return (request.take or read)(self._data(request), 0, 1, 5)

    async def close(self) -> None: ...

    async def _wait(self, ticks: int) -> None:
        for _ in range(ticks):
            await asyncio.sleep(0)

    def _data(self, request: Request) -> bytes:
        body = json.loads(request.body)
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        choices = [self._choice(turn, request.seed + draw, draw) for draw in range(request.n)]
        prompt = self._prompt(len(request.body))
        generated = sum(self._usage(request.seed + draw) for draw in range(request.n))
        usage = {} if prompt < 0 else {"usage": {"prompt_tokens": prompt, "completion_tokens": generated}}
        return json.dumps({"choices": choices, **usage}).encode()

    def _choice(self, turn: int, seed: int, draw: int) -> dict[str, object]:
        turns, answer = self._answer(seed)
        message: dict[str, object] = {"role": "assistant", "content": f"<answer>{answer}</answer>"}
        if turn < turns:
            call = {"name": "look", "arguments": json.dumps({"what": str(seed)})}
            message = {"role": "assistant", "content": None}
            message["tool_calls"] = [{"id": "1", "type": "function", "function": call}]
        return {"index": draw, "message": message, "finish_reason": "stop"}


class Book(TurnSink):
    """A sink that adds up what was answered."""

    def __init__(self) -> None:
        self.calls = self.prompt = self.generated = 0
        self.flying = 0

    async def reserve(self) -> None:
        self.flying += 1

    def release(self) -> None:
        self.flying -= 1

    def called(self, reply: Reply) -> None:
        self.calls += len(reply.choices)
        self.prompt += max(0, reply.prompt)
        self.generated += max(0, reply.generated)

    def grew(self, size: int = 0, turns: int = 0) -> None:
        self.flying -= turns


async def spend(
    strategy: object,
    clerk: Clerk,
    task: Budget | None = None,
    *,
    run: object = None,
    stopping: Stopping | None = None,
    reward: object = None,
    prices: dict | None = None,
    max_turns: int = 6,
    core: CoreTree | None = None,
    made: Callable[[TreeRunner], None] = lambda session: None,
    **agent: Any,
) -> tuple[Tree, TreeRunner, Book]:
    """Grow one tree under a budget."""
    book, tree = Book(), Tree(Task.ask("what?", "yes", id="q"), core)
    agent = {"tools": [look], "sampling": Sampling(max_tokens=MOST)} | agent
    compiled = CompiledAgent(Agent(model="clerk", max_turns=max_turns, **agent))
    sources = None if task is None and run is None else BudgetSources(task, run, prices or {})
    session = TreeRunner(
        tree,
        TreeSettings(compiled, strategy, reward, 7, CompletionClient(clerk), stopping=stopping, sources=sources),
        book,
    )
    made(session)
    async with asyncio.timeout(20):
        await session.run()
    tree.core.check()
    assert (clerk.now, book.flying) == (0, 0), "nothing leaks"
    return tree, session, book
