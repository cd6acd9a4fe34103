"""Trunkline: the LLM path alone, and whole runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from peers.loads import SYSTEM, Load, Play, question
from trunkline.agent import Agent, CompiledAgent
from trunkline.llm.config import LLM
from trunkline.llm.request import Sampling
from trunkline.llm.types import Reply
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.tree_runner import TreeRunner, TreeSettings
from trunkline.rollout.types import TurnSink
from trunkline.runner.result import Run
from trunkline.runner.run import run
from trunkline.scoring.rewards import exact_match
from trunkline.strategies.chain import Chain
from trunkline.tree.views import Tree
from trunkline.types import Task


class Silent(TurnSink):
    """A sink that leads nowhere."""

    async def reserve(self) -> None:
        """Never wait."""

    def release(self) -> None:
        """Forget it."""

    def called(self, reply: Reply) -> None:
        """Forget it."""

    def grew(self, size: int = 0, turns: int = 0) -> None:
        """Forget it."""


@asynccontextmanager
async def path(url: str, load: Load, lanes: int) -> AsyncIterator[Play]:
    """Requests joined by the tree, `HttpLLM`, replies read by the core onto the tree, tools: no run around it."""
    compiled = CompiledAgent(agent(load))
    llm = LLM(url, max_concurrency=lanes).open()
    draws = CompletionClient(llm)

    async def play(number: int | None) -> None:
        tree = Tree(_task(number, question(number)))
        await TreeRunner(tree, TreeSettings(compiled, Chain(1), None, 1, draws), Silent()).run()
        assert tree.rollouts[0].answer == "42"

    try:
        yield play
    finally:
        await llm.close()


def whole(url: str, load: Load, lanes: int, numbers: Iterable[int | None], workers: int) -> Run:
    """Run tasks into a run file, and score them.

    Args:
        url: Base URL of the server.
        load: What each task's conversation is like.
        lanes: Requests in flight at once.
        numbers: The tasks.
        workers: Worker processes; 0 for this one.
    """
    llm = LLM(url, max_concurrency=lanes)
    return run(agent(load), tasks(numbers), llm=llm, reward=exact_match, workers=workers, seed=1)


def check(result: Run, load: Load, tasks: int) -> None:
    """Find every call and every right answer in the run file."""
    summary = result.summary()
    assert summary.usage.calls == load.turns * tasks
    assert summary.accuracy.value == 1.0


def agent(load: Load) -> Agent:
    """The agent that plays a load."""
    sampling = Sampling(**load.options)
    tools = [load.tool] if load.tool else []
    return Agent(model=load.model, tools=tools, system=SYSTEM, max_turns=load.turns, sampling=sampling)


def tasks(numbers: Iterable[int | None]) -> list[Task]:
    """Tasks that ask the questions with some numbers."""
    return [_task(place, question(number)) for place, number in enumerate(numbers)]


def _task(name: int | None, asked: str) -> Task:
    return Task.ask(asked, "42", id=f"q{name}")
