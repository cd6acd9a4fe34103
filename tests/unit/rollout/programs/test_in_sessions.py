"""Programs under strategies, budgets and cuts; and a fork in the middle is a replay up to there."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from plays import Actors, cuts, play
from scripted import Silent

from programs import panel
from trunkline._core import OBSERVATION, TURN
from trunkline.agent import Agent, CompiledAgent
from trunkline.errors import ConfigError
from trunkline.llm.config import LLM
from trunkline.llm.token_ids.base import TokenMode
from trunkline.protocol.job import Job, pack_job, settings, unpack_job
from trunkline.rollout.budget import Budget
from trunkline.rollout.programs.context import ProgramContext
from trunkline.rollout.programs.resources import Program
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.task_budget import BudgetSources
from trunkline.rollout.tree_runner import TreeRunner, TreeSettings
from trunkline.strategies.base import Fork, Stop
from trunkline.strategies.chain import Chain
from trunkline.strategies.entropy_tree import EntropyTree
from trunkline.tree.views import Tree
from trunkline.types import Task

A, B, C = (Agent(model=name, name=name) for name in "abc")
called: list[str] = []


def says(messages: list[dict[str, Any]], model: str) -> str:
    return f"{model} after {len(messages)}"


def weigh(what: str) -> int:
    called.append(what)
    return len(what)


async def converse(rollout: ProgramContext) -> str:
    """A turn, something called, an observation, two turns at once, and a last one; all by chance."""
    first = await rollout.ask(A)
    weight = await rollout.call(weigh, "stone")
    await rollout.observe(f"it weighs {weight}, {rollout.random.random():.6f}")
    with contextlib.suppress(ZeroDivisionError):
        await asyncio.gather(rollout.ask(B), rollout.ask(C))
    await rollout.observe(f"chance {rollout.random.random():.6f}")
    return f"{(await rollout.ask(A)).text} {first.text}"


class Again:
    """A chain, and then two forks at the n-th node below the prompt."""

    def __init__(self, place: int, say: str | None = None) -> None:
        self.place = place
        self.say = say

    def rollouts(self) -> int:
        return 3

    def start(self, view: Any) -> list[Fork]:
        return [Fork()]

    def ended(self, view: Any) -> list[Fork]:
        core = view.tree.core
        if core.rollouts > 1:
            return []
        below = [node for node in core.path(core.rollout(0).leaf) if core.node(node).kind != 1]
        return [Fork(below[self.place], n=2, **({"say": self.say} if self.say else {}))]


@pytest.mark.parametrize("say", [None, "think again"])
@pytest.mark.parametrize("place", [1, 4])
async def test_a_fork_in_the_middle_is_given_the_record_up_to_there_and_then_goes_on(place: int, say: str | None):
    called.clear()
    llm = Actors(says)
    grown = await play(converse, llm, strategy=Again(place, say))
    core = grown.tree.core
    facts = [core.rollout(number) for number in range(3)]
    assert [one.termination for one in facts] == ["answer"] * 3, [one.error for one in facts]
    assert called == ["stone"], "it is replayed, and not called again"
    before = {1: 1, 4: 3}[place]
    assert len(llm.asked) == 4 + 2 * (4 - before)
    assert len({one.answer for one in facts}) == 3
    assert core.path(facts[1].leaf)[: place + 2] == core.path(facts[0].leaf)[: place + 2]
    if say is not None:
        assert all(say in str(messages) for messages in llm.messages[4:]), "what a fork says is part of its path"
    told = {str(core.message(node)) for one in facts for node in core.path(one.leaf) if b"chance" in core.message(node)}
    assert len(told) == {1: 3, 4: 1}[place], "each has its own chance from its fork point on"


@pytest.mark.parametrize("place", [1, 4])
async def test_forks_that_break_off_anywhere_go_on_to_the_same_tree(place: int):
    whole = await play(converse, Actors(says), strategy=Again(place, "think again"))
    for core in cuts(whole.deltas):
        again = await play(converse, Actors(says), core, strategy=Again(place, "think again"))
        assert again.tree.digest() == whole.tree.digest()


class Stepwise(Chain):
    """Two chains, in step; the second is stopped after two."""

    stepwise = True

    def stepped(self, view: Any) -> list[Stop]:
        return [Stop(1, "enough") for rollout in view.rollouts if rollout.id == 1 and rollout.turns >= 2]


async def test_a_strategy_that_goes_step_by_step_may_stop_a_program():
    grown = await play(converse, Actors(says), strategy=Stepwise(2))
    ends = [grown.tree.core.rollout(number) for number in range(2)]
    assert [end.termination for end in ends] == ["answer", "censored"]
    assert ends[0].turns == 4


async def test_a_cut_cannot_be_swallowed():
    async def stubborn(rollout: ProgramContext) -> str:
        while True:
            try:
                await rollout.ask(A)
            except BaseException:  # noqa: BLE001
                cut.append(True)
            if len(cut) > 3:
                return "I won"

    cut: list[bool] = []
    tree = Tree(Task.ask("what?", "yes", id="q"))
    compiled = CompiledAgent(Agent(model="lead", name="lead", max_turns=100))
    llm = Actors(says, lambda model: 10**9 if len(llm.asked) == 5 else 0)
    program = Program(stubborn, compiled)
    session = TreeRunner(
        tree, TreeSettings(compiled, Chain(1), None, 7, CompletionClient(llm), program=program), Silent()
    )
    asyncio.get_running_loop().call_later(0.05, session.cut, "stopped", "by hand")
    await asyncio.wait_for(session.run(), 5)
    assert cut
    assert tree.core.rollout(0).termination == "censored"
    assert tree.core.rollout(0).answer is None
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("calls", [1, 2, 3])
async def test_a_budget_of_calls_ends_a_program_in_order(calls: int):
    trees = []
    for slow in ("b", "c"):
        tree = Tree(Task.ask("what?", "yes", id="q"))
        compiled = CompiledAgent(Agent(model="lead", name="lead"))
        llm = Actors(says, lambda model, slow=slow: 50 if model == slow else 0)
        sources = BudgetSources(Budget(calls=calls), None, {})
        session = TreeRunner(
            tree,
            TreeSettings(
                compiled, Chain(1), None, 7, CompletionClient(llm), program=Program(converse, compiled), sources=sources
            ),
            Silent(),
        )
        await session.run()
        assert tree.core.rollout(0).termination == "censored"
        assert tree.core.rollout(0).turns == calls
        trees.append(tree.digest())
    assert trees[0] == trees[1]


async def test_messages_between_agents_are_no_tool_calls():
    grown = await play(converse, Actors(says))
    usage = grown.tree.rollouts[0].usage
    assert (usage.calls, usage.tools) == (4, 0)
    kinds = [grown.tree.core.node(node).kind for node in grown.tree.core.path(grown.tree.core.rollout(0).leaf)]
    assert OBSERVATION not in kinds
    assert kinds.count(TURN) == 4


def test_what_cannot_play_is_refused_before_anything_is_sent():
    def job(**options: Any) -> Job:
        given = {"agent": A, "strategy": Chain(), "reward": None, "llm": LLM("http://x/v1"), "seed": 1}
        return Job(**given | options)  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match="program must be a function, async def"):
        job(program=weigh)
    exact = LLM("http://x/v1", tokens=TokenMode(api="completions"))
    with pytest.raises(ConfigError, match="some keep token ids, and 'b' keeps none; give each one"):
        job(program=panel, llm={"": exact, "b": LLM("http://x/v1")})
    with pytest.raises(ConfigError, match="EntropyTree forks inside turns, which a program and a team cannot do"):
        job(program=panel, llm=exact, strategy=EntropyTree())
    sent = unpack_job(pack_job(job(program=panel)))
    assert sent.program is panel
    assert settings(sent)["program"] == "programs:panel"
    assert settings(job())["program"] is None
