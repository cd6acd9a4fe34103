"""A model that answers from a script, and sessions that grow trees with it: for golden tests of strategies.

The script is a function of the fork path of the rollout that asks and the turn it asks for, so that an expected tree
can be written down by hand. Who asks is read from the seed: every state has a base seed of its own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from trunkline._core import CoreTree
from trunkline.agent import Agent, CompiledAgent
from trunkline.llm.response import read
from trunkline.llm.types import Reply, Request
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.tree_runner import TreeRunner, TreeSettings
from trunkline.rollout.types import TurnSink
from trunkline.scoring.rewards import Reward
from trunkline.strategies.base import Strategy
from trunkline.tools.tool import Tool, tool
from trunkline.tree.views import Tree
from trunkline.types import Task


class Say(NamedTuple):
    """One scripted turn: a call of the tool ``look`` with this text, or the final answer.

    Attributes:
        text: What is looked up, or answered.
        final: Whether it is the answer.
        logprobs: For each token of the turn the log-probabilities of the likeliest ones, the sampled one first.
        thought: Text before the call or the answer.
        spelled: The tokens themselves, where it matters what they spell; as many as ``logprobs``.
    """

    text: str
    final: bool = False
    logprobs: Sequence[Sequence[float]] = ()
    thought: str = ""
    spelled: Sequence[str] = ()


@tool
async def look(what: str) -> str:
    """Look something up.

    Args:
        what: What to look up.
    """
    return f"seen {what}"


Script = Callable[[int, str], Say]
"""From the number of turns so far and the whole conversation as text to the turn; called once for every draw."""


class Scripted:
    """An LLM that answers by a script, one draw a request, and remembers the order in which it was asked.

    Args:
        script: Called with (turn, draw number since the start, messages); returns the turn.
    """

    siblings = False

    def __init__(self, script: Callable[[list[dict], int], Say]) -> None:
        self.script = script
        self.asked: list[list[dict]] = []
        self.bodies: list[dict] = []
        self.seeds: list[int] = []

    async def complete(self, request: Request) -> Reply:
        body = json.loads(request.body)
        self.asked.append(body["messages"])
        self.bodies.append(body)
        self.seeds.append(body["seed"])
        said = self.script(body["messages"], body["seed"])
        message: dict[str, object] = {"role": "assistant", "content": said.thought or None}
        if said.final:
            message["content"] = f"{said.thought}<answer>{said.text}</answer>"
        else:
            arguments = json.dumps({"what": said.text})
            call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": arguments}}
            message["tool_calls"] = [call]
        tokens = max(1, len(said.logprobs))
        choice: dict[str, object] = {"index": 0, "message": message, "finish_reason": "stop"}
        if said.logprobs:
            choice["logprobs"] = {
                "content": [token_of(place, likeliest, said.spelled) for place, likeliest in enumerate(said.logprobs)]
            }
        usage = {"prompt_tokens": 10 * len(body["messages"]), "completion_tokens": tokens}
        data = json.dumps({"choices": [choice], "usage": usage}).encode()
        return (request.take or read)(data, 0, 1, 5)

    async def close(self) -> None: ...


class Silent(TurnSink):
    """A sink without back-pressure."""

    async def reserve(self) -> None: ...

    def release(self) -> None: ...

    def called(self, reply: Reply) -> None: ...

    def grew(self, size: int = 0, turns: int = 0) -> None: ...

    async def durable(self) -> None: ...


class Table:
    """A script from what was looked up so far to the draws there, in their order; ``!`` before a text answers it."""

    def __init__(self, draws: dict[tuple[str, ...], Sequence[str]]) -> None:
        self._draws = draws
        self._taken: Counter[tuple[str, ...]] = Counter()

    def __call__(self, conversation: list[dict], seed: int) -> Say:
        path = looked_up(conversation)
        said = self._draws[path][self._taken[path]]
        self._taken[path] += 1
        return Say(said.removeprefix("!"), final=said.startswith("!"))


def looked_up(conversation: Sequence[dict]) -> tuple[str, ...]:
    """What the tool was asked for in a conversation."""
    calls = (call for message in conversation for call in message.get("tool_calls") or ())
    return tuple(json.loads(call["function"]["arguments"])["what"] for call in calls)


async def grow(
    strategy: Strategy,
    script: Callable[[list[dict], int], Say],
    *,
    reward: Reward | None = None,
    seed: int = 7,
    max_turns: int = 8,
    tools: Sequence[Tool] = (look,),
    core: CoreTree | None = None,
    sink: TurnSink | None = None,
    llm: Scripted | None = None,
    **agent: Any,
) -> tuple[Tree, Scripted]:
    """Grow one task's tree with a scripted model."""
    llm = llm or Scripted(script)
    tree = Tree(Task.ask("what?", "yes", id="q"), core)
    compiled = CompiledAgent(Agent(model="scripted", tools=tools, max_turns=max_turns, **agent))
    await TreeRunner(
        tree, TreeSettings(compiled, strategy, reward, seed, CompletionClient(llm)), sink or Silent()
    ).run()
    tree.core.check()
    return tree, llm


def paths(tree: Tree) -> list[tuple[int, ...]]:
    """Fork paths of all rollouts, in the order they were opened."""
    return [rollout.path for rollout in tree.rollouts]


def token_of(place: int, likeliest: Sequence[float], spelled: Sequence[str] = ()) -> dict[str, object]:
    """A token as servers give it, with the log-probabilities of the likeliest ones, the sampled one first."""
    listed = [{"token": f"t{place}.{rank}", "logprob": value, "bytes": None} for rank, value in enumerate(likeliest)]
    if spelled:
        listed[0]["token"] = spelled[place]
    return {**listed[0], "top_logprobs": listed}
