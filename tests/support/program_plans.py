"""Programs that are drawn by chance, and a strategy that forks them anywhere."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from trunkline._core import TURN
from trunkline.agent import Agent
from trunkline.errors import LLMError
from trunkline.llm.request import Sampling
from trunkline.rollout.programs.context import ProgramContext
from trunkline.strategies.base import Fork
from trunkline.tools.tool import tool


@tool
async def look(what: str) -> str:
    """Look something up.

    Args:
        what: What to look up.
    """
    await asyncio.sleep(0)
    return f"seen {what}"


ROLES = {name: Agent(model=name, name=name, tools=[look], sampling=Sampling(max_tokens=300)) for name in "abc"}

leaves = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from("abc"), st.booleans()),
    st.tuples(st.sampled_from(["observe", "call", "tool"])),
)
lines = st.recursive(
    st.lists(leaves, min_size=1, max_size=3),
    lambda inner: st.lists(
        st.one_of(leaves, st.tuples(st.sampled_from(["gather", "group"]), st.lists(inner, min_size=2, max_size=3))),
        min_size=1,
        max_size=3,
    ),
    max_leaves=7,
)


def scripted(plan: list[Any]) -> Any:
    """A program that does what a plan says, and lets all that it was told and its chance decide what it says."""

    async def program(rollout: ProgramContext) -> str:
        heard: list[str] = []

        async def follow(line: list[Any]) -> None:
            for step in line:
                match step:
                    case ("ask", role, own):
                        words = [{"role": "user", "content": "|".join(heard) or "?"}]
                        try:
                            heard.append((await rollout.ask(ROLES[role], words if own else None)).text)
                        except LLMError as error:
                            heard.append(str(error))
                    case ("observe",):
                        heard.append((await rollout.observe(f"{len(heard)} {rollout.random.random():.3f}")).text)
                    case ("call",):
                        heard.append(str(await rollout.call(len, [*heard])))
                    case ("tool",):
                        heard.append((await rollout.tool(look, what=heard[-1] if heard else "?")).text)
                    case ("gather", inner):
                        await asyncio.gather(*(follow(one) for one in inner))
                    case ("group", inner):
                        async with asyncio.TaskGroup() as group:
                            for one in inner:
                                group.create_task(follow(one))

        await follow(plan)
        return "|".join(heard)

    return program


def slow(seed: int) -> Any:
    chance = random.Random(seed)
    return lambda model: chance.choice([0, 0, 1, 5, 30, 100])


class Twice:
    """A chain, and then two forks at one of its nodes."""

    def __init__(self, place: int) -> None:
        self.place = place

    def rollouts(self) -> int:
        return 3

    def start(self, view: Any) -> list[Fork]:
        return [Fork()]

    def ended(self, view: Any) -> list[Fork]:
        core = view.tree.core
        if core.rollouts > 1:
            return []
        path = core.path(core.rollout(0).leaf)
        states = [
            node for node, after in pairwise(path) if core.node(node).kind != TURN and core.node(after).kind == TURN
        ]
        return [Fork(states[self.place % len(states)], n=2)] if states else []
