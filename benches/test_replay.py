"""What it costs to run a program again over its record: nothing is sent, and 100 turns take milliseconds.

Measured is all of it, from the tree to the program's return: its record is read and the program runs. The model that it
asks for the turn after the record ends the program.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

import pytest
import uvloop

from trunkline._core import CoreTree
from trunkline.agent import Agent, CompiledAgent
from trunkline.errors import LLMError
from trunkline.llm.types import Reply, ReplyChoice, Request
from trunkline.rollout.checkpoint import CarriedOver
from trunkline.rollout.programs.context import ProgramContext
from trunkline.rollout.programs.resources import Program
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.tree_runner import TreeRunner, TreeSettings
from trunkline.rollout.types import TurnSink
from trunkline.strategies.chain import Chain
from trunkline.tree.views import Tree
from trunkline.types import Task

TURNS, ROUNDS = 100, 15
WORDS = "so many words as a model says in a turn, more or less " * 10
ROLES = [Agent(model="m", name=name) for name in ("solver", "verifier", "critic")]

Plays = Callable[[ProgramContext], Awaitable[str | None]]


class Model:
    """Answers so many requests, and no more."""

    def __init__(self, most: int) -> None:
        self.left = most
        self.asked = 0

    async def complete(self, request: Request) -> Reply:
        self.asked += 1
        if self.asked > self.left:
            raise LLMError("enough")
        return Reply([ReplyChoice(f"{WORDS} {json.loads(request.body)['seed']}", None, [], "stop")], 9, 0, 9, 1, 5)

    async def close(self) -> None: ...


class Sink(TurnSink):
    """Keeps everything."""

    async def reserve(self) -> None: ...

    def release(self) -> None: ...

    def called(self, reply: Reply) -> None: ...

    def grew(self, size: int = 0, turns: int = 0) -> None: ...


async def alone(rollout: ProgramContext) -> str | None:
    """One agent on its own path."""
    for _ in range(TURNS + 1):
        await rollout.ask()
    return None


async def in_turns(rollout: ProgramContext) -> str | None:
    """Three roles that are told something after each turn, and see the last six messages."""
    said: list[Any] = [*rollout.task.messages]
    for turn in range(TURNS + 1):
        said.append(await rollout.ask(ROLES[turn % 3], said[-6:]))
        said.append(await rollout.observe(f"turn {turn}"))
    return None


async def together(rollout: ProgramContext) -> str | None:
    """Ten roles at a time."""
    for _ in range(TURNS // 10 + 1):
        await asyncio.gather(*(rollout.ask(ROLES[place % 3]) for place in range(10)))
    return None


class Kept(Sink):
    """Keeps the tree as it is after so many turns.

    Args:
        core: The tree.
    """

    def __init__(self, core: CoreTree) -> None:
        self.core = core
        self.data = b""
        self._turns = 0

    def grew(self, size: int = 0, turns: int = 0) -> None:
        self._turns += turns
        if self._turns == TURNS and turns:
            self.data = self.core.delta() or b""


async def grow(program: Plays, core: CoreTree, model: Model, sink: Sink) -> float:
    """Grow a tree, or grow it on; returns seconds of CPU, as machines are shared."""
    tree = Tree(Task.ask("what?", id="q"), core)
    compiled = CompiledAgent(Agent(model="m", max_turns=10 * TURNS))
    shared = Program(program, compiled)
    session = TreeRunner(
        tree,
        TreeSettings(compiled, Chain(1), None, 7, CompletionClient(model), program=shared),
        sink,
        taken=CarriedOver(),
    )
    start = time.process_time()
    await session.run()
    return time.process_time() - start


@pytest.mark.parametrize("program", [alone, in_turns, together])
def test_a_hundred_turns_are_replayed(program: Plays, record_property: Callable[[str, object], None]):
    core = CoreTree()
    kept = Kept(core)
    uvloop.run(grow(program, core, Model(10 * TURNS), kept))
    assert kept.data
    times = []
    for _ in range(ROUNDS):
        again, model = CoreTree(), Model(0)
        again.apply(kept.data)
        times.append(1000 * uvloop.run(grow(program, again, model, Sink())))
        assert 1 <= model.asked <= 10, "what is beyond the record, and refused"
        assert again.rollout(0).termination == "llm_error"
        assert again.rollout(0).turns == TURNS
    record_property("milliseconds", median(times))
    print(f"{program.__name__}: {TURNS} turns replayed in {median(times):.2f} ms of CPU, from {len(kept.data):,} bytes")
    assert min(times) < 50, "ten times the target"
