"""Programs on trial: grown delta by delta, broken off anywhere, and grown on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from recorder import Recorder, replayed

from trunkline._core import TURN, CoreTree
from trunkline.agent import Agent, CompiledAgent
from trunkline.llm.types import Reply, ReplyChoice, Request, ToolCall
from trunkline.rollout.checkpoint import CarriedOver
from trunkline.rollout.programs.resources import Program
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.sampling.token_prompts import TokenPromptBuilder
from trunkline.rollout.tree_runner import TreeRunner, TreeSettings
from trunkline.strategies.chain import Chain
from trunkline.tree.views import Tree
from trunkline.types import Task

Script = Callable[[list[dict[str, Any]], str], "str | ToolCall | Exception"]


class Actors:
    """A model that answers at once, or later, with what a script makes of the messages and the model's name.

    Args:
        script: Returns a text, a tool call, or an error to raise.
        wait: Turns of the event loop that an answer takes, of the same.
    """

    def __init__(self, script: Script, wait: Callable[[str], int] = lambda model: 0) -> None:
        self.script = script
        self.wait = wait
        self.asked: list[str] = []
        self.seeds: list[int] = []
        self.messages: list[list[dict[str, Any]]] = []

    async def complete(self, request: Request) -> Reply:
        body = json.loads(request.body)
        self.asked.append(body["model"])
        self.seeds.append(body["seed"])
        self.messages.append(body["messages"])
        for _ in range(self.wait(body["model"])):
            await asyncio.sleep(0)
        said = self.script(body["messages"], body["model"])
        if isinstance(said, Exception):
            raise said
        if isinstance(said, ToolCall):
            return Reply([ReplyChoice("", None, [said], "tool_calls")], 5, 0, 1, 1, 7)
        return Reply([ReplyChoice(f"{said} {body['seed']}", None, [], "stop")], 5, 0, 1, 1, 7)

    async def close(self) -> None: ...


class Grown:
    """A tree that a program grew.

    Attributes:
        tree: The tree.
        deltas: What a run would have written.
        llm: Who was asked.
    """

    def __init__(self, tree: Tree, deltas: list[bytes], llm: Actors) -> None:
        self.tree = tree
        self.deltas = deltas
        self.llm = llm

    @property
    def end(self) -> tuple[str | None, str | None, str | None]:
        """How the first rollout ended, its answer, and what went wrong."""
        facts = self.tree.core.rollout(0)
        return facts.termination, facts.answer, facts.error

    @property
    def roles(self) -> list[str]:
        """Who spoke on the path of the first rollout."""
        core = self.tree.core
        nodes = [core.node(node) for node in core.path(core.rollout(0).leaf)]
        return [node.agent for node in nodes if node.kind == TURN]


async def play(
    program: Any,
    llm: Any,
    core: CoreTree | None = None,
    strategy: Any = None,
    reward: Any = None,
    token_prompts: TokenPromptBuilder | None = None,
    **agent: Any,
) -> Grown:
    """Grow one task's tree with a program; one that is there is grown on."""
    recorder = Recorder(CoreTree() if core is None else core)
    tree = Tree(Task.ask("what?", "yes", id="q"), recorder.core)
    compiled = CompiledAgent(Agent(model="lead", name="lead", **agent))
    shared = Program(program, compiled)
    client = CompletionClient(llm) if token_prompts is None else CompletionClient(llm, token_prompts=token_prompts)
    session = TreeRunner(
        tree,
        TreeSettings(compiled, strategy or Chain(1), reward, 7, client, program=shared),
        recorder,
        taken=CarriedOver(),
    )
    try:
        await session.run()
    finally:
        await shared.close()
    tree.core.check()
    return Grown(tree, recorder.deltas, llm)


def cuts(deltas: list[bytes]) -> list[CoreTree]:
    """The trees there were after each delta, the first of which opened a rollout."""
    trees = [replayed(deltas[:kept]) for kept in range(1, len(deltas) + 1)]
    return [tree for tree in trees if tree.rollouts]


def turns(core: CoreTree) -> int:
    """Model turns on a tree."""
    return sum(core.node(node).kind == TURN for node in range(len(core)))
