"""Programs whose tools have side effects: none runs twice, and the record says what is in doubt."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from plays import Actors, cuts, play
from scripted import Silent

from trunkline.agent import Agent, CompiledAgent
from trunkline.llm.types import ToolCall
from trunkline.rollout.programs.context import ProgramContext
from trunkline.rollout.programs.resources import Program
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.side_effects import unresolved_effects
from trunkline.rollout.tree_runner import TreeRunner, TreeSettings
from trunkline.strategies.chain import Chain
from trunkline.tools.calls import current_call
from trunkline.tools.tool import tool
from trunkline.tree.views import Tree
from trunkline.types import Task

RAN: Counter[str] = Counter()


@tool(side_effects=True)
async def pay(amount: int) -> str:
    """Pay, which takes so long.

    Args:
        amount: How much.
    """
    RAN[current_call().id] += 1
    for _ in range(amount):
        await asyncio.sleep(0)
    return f"paid {amount}"


@tool
async def look() -> str:
    """Look around."""
    return "nothing"


def says(messages: list[dict[str, Any]], model: str) -> str | ToolCall:
    return ToolCall("", "pay", '{"amount": 4}') if messages[-1]["role"] == "user" else "done"


async def spend(rollout: ProgramContext) -> str:
    """Pays as the model says, and three times by itself, twice at once."""
    await rollout.use(None, await rollout.ask())
    made = await asyncio.gather(rollout.tool(pay, amount=9), rollout.tool(look), rollout.tool(pay, amount=2))
    await rollout.tool(pay, amount=1)
    return f"{(await rollout.ask()).text} {[one.text for one in made]}"


async def test_no_call_of_a_program_runs_twice_and_one_in_doubt_ends_its_rollout():
    RAN.clear()
    whole = await play(spend, Actors(says), tools=[pay])
    assert whole.end[0] == "answer"
    assert sorted(RAN.values()) == [1] * 4
    doubted = 0
    for core in cuts(whole.deltas):
        if core.rollout(0).termination is not None:
            continue
        began = [mark.partition('"id":"')[2][:32] for mark in core.marks() if mark.startswith('{"intent"')]
        doubtful = bool(unresolved_effects(core))
        RAN.clear()
        RAN.update(dict.fromkeys(began, 1))
        again = await play(spend, Actors(says), core, tools=[pay])
        assert max(RAN.values(), default=1) == 1
        if doubtful:
            doubted += 1
            assert again.end[0] == "unknown_effect"
            assert "pay had begun" in (again.end[2] or "")
        else:
            assert again.tree.digest() == whole.tree.digest()
    assert doubted >= 3


async def test_a_program_that_is_cut_while_it_pays_ends_in_doubt_though_another_tool_has_come_back():
    async def both(rollout: ProgramContext) -> None:
        await asyncio.gather(rollout.tool(pay, amount=10**9), rollout.tool(look))

    tree = Tree(Task.ask("what?", "yes", id="q"))
    compiled = CompiledAgent(Agent(model="lead", name="lead"))
    session = TreeRunner(
        tree,
        TreeSettings(compiled, Chain(1), None, 7, CompletionClient(Actors(says)), program=Program(both, compiled)),
        Silent(),
    )
    asyncio.get_running_loop().call_later(0.05, session.cut, "stopped", "by hand")
    await asyncio.wait_for(session.run(), 5)
    facts = tree.core.rollout(0)
    assert facts.termination == "unknown_effect"
    assert "was ended while pay ran" in (facts.error or "")
