"""Random scripted worlds: how long a rollout is, what it says, earns, and whether it breaks, is drawn from its seeds.

What a model says depends on the conversation and the seed alone; when it says so, on a seed of its own. So trees may
be grown again in another order, and must be equal.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import NamedTuple

from scripted import Silent, look, token_of

from trunkline.agent import Agent, CompiledAgent
from trunkline.errors import LLMError
from trunkline.llm.request import Sampling
from trunkline.llm.response import read
from trunkline.llm.types import Reply, Request
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.tree_runner import TreeRunner, TreeSettings
from trunkline.scoring.rewards import Reward
from trunkline.strategies.base import Strategy
from trunkline.tree.views import Trajectory, Tree
from trunkline.types import Task


class World(NamedTuple):
    """A world.

    Attributes:
        seed: What everything in it is drawn from.
        words: How many different things can be said; few of them make turns merge.
        depth: Turns of the longest rollout.
        stop: Chance that a turn is the last.
        fail: Chance that a request fails for good.
    """

    seed: int = 0
    words: int = 3
    depth: int = 5
    stop: float = 0.3
    fail: float = 0.0


class Model:
    """An LLM that lives in a world.

    Args:
        world: The world.
        order: Seed of the order in which requests are answered; all at once when None.
        together: Whether it takes requests of several draws.
    """

    def __init__(self, world: World, order: int | None = None, together: bool = False) -> None:
        self.siblings = together
        self.world = world
        self.requests = 0
        self._order = None if order is None else random.Random(order)

    async def complete(self, request: Request) -> Reply:
        self.requests += 1
        if self._order is not None:
            for _ in range(self._order.randrange(12)):
                await asyncio.sleep(0)
        body = json.loads(request.body)
        drawn = [self._choice(body, draw) for draw in range(request.n)]
        usage = {
            "prompt_tokens": 10 * len(body["messages"]),
            "completion_tokens": 3 * request.n,
            "prompt_tokens_details": {"cached_tokens": 5},
        }
        return (request.take or read)(json.dumps({"choices": drawn, "usage": usage}).encode(), 0, 1, 5)

    def _choice(self, body: dict, draw: int) -> dict[str, object]:
        world, turn = self.world, sum(message["role"] == "assistant" for message in body["messages"])
        luck = random.Random(f"{world.seed} {body['seed'] + draw}")
        if luck.random() < world.fail:
            raise LLMError("the world ends here", retryable=False)
        word, last = f"{luck.randrange(world.words)}", turn + 1 >= world.depth or luck.random() < world.stop
        if last:
            message: dict[str, object] = {"role": "assistant", "content": f"<answer>{word}</answer>"}
        else:
            call = {"name": "look", "arguments": json.dumps({"what": word})}
            message = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": call}]}
        # How sure it is depends on what was said and on nothing else, as a model's log-probabilities do.
        doubt = random.Random(f"{world.seed} {body['messages']} {message}")
        likeliest = [token_of(place, [-doubt.random(), -1 - doubt.random()]) for place in range(3)]
        return {"index": draw, "message": message, "finish_reason": "stop", "logprobs": {"content": likeliest}}

    async def close(self) -> None: ...


def worth(rollout: Trajectory) -> float | None:
    """A reward that two answers in five are refused."""
    answer = int(rollout.answer or "0")
    return None if answer % 5 == 3 else (answer * 7 % 10) / 10


async def grow_in(strategy: Strategy, world: World, order: int | None = None) -> Tree:
    """Grow one task's tree in a world; who answers first is drawn from ``order``."""
    return await grow_with(strategy, Model(world, order))


async def grow_with(strategy: Strategy, model: Model, reward: Reward = worth) -> Tree:
    """Grow one task's tree with a model."""
    tree = Tree(Task.ask("what?", "1", id="q"))
    sampling = Sampling(logprobs=True, top_logprobs=2)
    compiled = CompiledAgent(Agent(model="scripted", tools=[look], max_turns=model.world.depth, sampling=sampling))
    await TreeRunner(tree, TreeSettings(compiled, strategy, reward, 11, CompletionClient(model)), Silent()).run()
    tree.core.check()
    return tree
