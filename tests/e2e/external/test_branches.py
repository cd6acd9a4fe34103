"""Replays that diverge and go on as branches, and the points at which nothing is drawn."""

from __future__ import annotations

import asyncio
import json
import math
import random

import aiohttp
import msgspec
import pytest
from external_agents import Walker, late_walker, walk, walker

import trunkline as tl
from trunkline.errors import BrokenRolloutsWarning, ConfigError
from trunkline.llm.types import Reply, ReplyChoice
from trunkline.runner.broken import judge
from trunkline.strategies.mcts import MCTS
from trunkline.strategies.partial import Partial
from trunkline.tree.records import Failure, Records

TASKS = [tl.Task.ask(f"Walk {number}.", id=f"q{number}") for number in range(3)]
TREES = tl.TreeGRPO(trees=2, forks=2, rounds=2)


async def play(agent, llm=None, *, out=None, on_divergence="branch", masks=(), tasks=TASKS, **options):
    program = tl.External(agent=agent, effects="none", on_divergence=on_divergence, masks=masks)
    given = {"strategy": TREES, "seed": 3, "workers": 0, "reward": lambda rollout: float(len(rollout.answer or ""))}
    llm = Walker() if llm is None else llm
    return await tl.arun(
        tl.Agent(model="m", max_turns=12), tasks, llm=llm, program=program, out=out, **(given | options)
    )


def digests(run):
    return [tree.digest() for tree in run]


class Second:
    """Walks, but says something else once it was at the end of a task; so forks differ, and each in the same way."""

    def __init__(self, differs):
        self.differs = differs
        self.over = set()

    async def __call__(self, client, task):
        raise NotImplementedError

    def agent(self):
        async def agent(client, task):
            again = task.id in self.over
            answer = await self.differs(client, task, again)
            self.over.add(task.id)
            return answer

        return agent


async def at_a_tool(client, task, again):
    """The second observation differs."""
    places = []

    class Noting:
        def __init__(self):
            self.chat = self.completions = self

        async def create(self, **given):
            tools = [message for message in given["messages"] if message["role"] == "tool"]
            if again and len(tools) > 1:
                tools[1]["content"] = f"Again there is {len(places)} 4"
            return await client.chat.completions.create(**given)

    return await walk(Noting(), task)


async def at_the_beginning(client, task, again):
    return await walk(client, task, lambda: " Again." if again else "")


async def early_end(client, task, again):
    if not again:
        return await walk(client, task)
    messages = [{"role": "system", "content": "Walk."}, *task.messages]
    from external_agents import TOOLS

    reply = await client.chat.completions.create(model="any", messages=messages, tools=TOOLS)
    return reply.choices[0].message.content


@pytest.mark.parametrize("differs", [at_a_tool, at_the_beginning, early_end], ids=lambda one: one.__name__)
async def test_x(differs, tmp_path):
    run = await play(Second(differs).agent(), out=tmp_path / "run")
    s = run.summary()
    print(s.terminations, s.agent_calls, s.failures)
    for tree in run:
        core = tree.core
        for n in range(core.rollouts):
            r = core.rollout(n)
            print(n, r.path, r.subgroup, r.point, r.leaf, r.termination, r.answer, r.reward, (r.error or "")[:150], r.note)
    with tl.RunReader.open(tmp_path / "run") as reader:
        assert reader.check() == []
    assert 0
