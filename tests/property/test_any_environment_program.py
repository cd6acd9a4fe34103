"""Any program that works on an environment, whoever answers when: the same tree, forked and broken off anywhere."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledgers import Ledger, OneSnapLedger, SnappedLedger, add, ask_around, check, entries
from plays import Actors, cuts, play
from program_plans import slow

from trunkline.agent import Agent
from trunkline.errors import BadRequest, LLMError
from trunkline.llm.types import ToolCall
from trunkline.rollout.programs.context import ProgramContext
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.tools.environment import Environment
from trunkline.tools.environment_pool import EnvironmentPool
from trunkline.types import Termination

acts = st.one_of(
    st.tuples(st.sampled_from(["turn", "say"]), st.sampled_from("ab")),
    st.tuples(st.sampled_from(["add", "elsewhere", "observe", "call"]), st.sampled_from("xyz")),
)
plans = st.lists(
    st.one_of(acts, st.tuples(st.sampled_from(["together", "group"]), st.lists(acts, min_size=2, max_size=3))),
    min_size=1,
    max_size=5,
)


def scripted(plan: list[Any], environment: type[Environment] | EnvironmentPool) -> Any:
    """A program that does what a plan says, and says what it heard last."""
    roles = {name: Agent(model=name, name=name, tools=[add, ask_around], environment=environment) for name in "ab"}

    async def program(rollout: ProgramContext) -> str | None:
        heard: list[str] = []

        async def act(kind: str, word: Any) -> None:
            match kind:
                case "turn":
                    turn = await rollout.ask(roles[word])
                    heard.extend(seen.text for seen in await rollout.use(roles[word], turn))
                case "say":
                    heard.append((await rollout.ask(roles[word], [{"role": "user", "content": "|".join(heard)}])).text)
                case "add":
                    heard.append((await rollout.tool(add, what=word)).text)
                case "elsewhere":
                    heard.append((await rollout.tool(ask_around, what=word)).text)
                case "observe":
                    seen = await rollout.tool(add, what=word)
                    await rollout.observe(seen.text, by="add", seen=seen)
                case "call":
                    heard.append(str(await rollout.call(len, [*heard])))
                case "together":
                    await asyncio.gather(*(act(*one) for one in word))
                case "group":
                    async with asyncio.TaskGroup() as group:
                        for one in word:
                            group.create_task(act(*one))

        for step in plan:
            try:
                await act(*step)
            except* LLMError as errors:
                heard.append(str(len(errors.exceptions)))
        return heard[-1] if len(heard) % 2 else None

    return program


def says(messages: list[dict[str, Any]], model: str) -> Any:
    """A call of one of the tools, or a text, by what was said before."""
    luck = random.Random(f"{model} {messages}")
    if (chance := luck.random()) < 0.2:
        return BadRequest("no") if chance < 0.05 else "well"
    name = luck.choice(["add", "add", "ask_around"])
    return ToolCall("", name, f'{{"what": "{luck.choice("abc")}"}}')


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(
    plans,
    st.integers(0, 1000),
    st.sampled_from([Ledger, SnappedLedger, OneSnapLedger, *(EnvironmentPool(Ledger, size=size) for size in (1, 3))]),
    st.booleans(),
)
def test_any_program_with_an_environment(
    plan: list[Any], seed: int, environment: type[Environment] | EnvironmentPool, looks: bool
) -> None:
    reward = entries if looks else None

    async def grow(llm: Actors, kind: type[Environment] | EnvironmentPool, core: Any = None) -> Any:
        strategy = TreeGRPO(trees=2, forks=2, rounds=1)
        return await play(scripted(plan, kind), llm, core, strategy, reward, tools=[add], environment=kind)

    async def run() -> None:
        whole = await grow(Actors(says), Ledger)
        for rollout in whole.tree.rollouts:
            assert rollout.termination in {Termination.ANSWER, Termination.MAX_TURNS}, rollout.error
            check(rollout, "q", scored=looks)
        other = await grow(Actors(says, slow(seed)), environment)
        assert other.tree.digest() == whole.tree.digest(), "latency, and by snapshot or by replay"
        for core in random.Random(seed).sample(points := cuts(other.deltas), min(len(points), 5)):
            again = await grow(Actors(says, slow(seed + 1)), environment, core)
            assert again.tree.digest() == whole.tree.digest(), "broken off"
            for rollout in again.tree.rollouts:
                check(rollout, "q", scored=looks)

    asyncio.run(run())
