"""Teams that are ended in the middle, with two roles out: by a cut, a budget, a limit, an error, a tool in doubt."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from plays import cuts, play
from recorder import Recorder, replayed
from small_teams import SURE, TEAMS, Cast, acts, rows

from trunkline._core import CoreTree
from trunkline.agent import Agent, CompiledAgent
from trunkline.rollout.budget import Budget
from trunkline.rollout.checkpoint import CarriedOver
from trunkline.rollout.programs.resources import Program
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.side_effects import unresolved_effects
from trunkline.rollout.task_budget import BudgetSources
from trunkline.rollout.tree_runner import TreeRunner, TreeSettings
from trunkline.strategies.chain import Chain
from trunkline.strategies.stopping import Stopping
from trunkline.strategies.tree_search import TreeSearch
from trunkline.team.projection import Reading
from trunkline.team.role import Role
from trunkline.team.team import Team, TeamPlay
from trunkline.tools.calls import current_call
from trunkline.tools.tool import tool
from trunkline.tree.views import Tree
from trunkline.types import Task

NEVER = 10**9
"""Turns of the event loop of an answer that does not come."""


def session(
    team: Team, llm: Cast, core: CoreTree | None = None, n: int = 1, **given: Any
) -> tuple[TreeRunner, Recorder]:
    """A session of a team, and what it would have written."""
    recorder = Recorder(CoreTree() if core is None else core)
    tree = Tree(Task.ask("what?", "yes", id="q"), recorder.core)
    compiled = CompiledAgent(Agent(model="lead", name="lead"))
    shared = Program(team, compiled)
    made = TreeRunner(
        tree,
        TreeSettings(compiled, Chain(n), None, 7, CompletionClient(llm), program=shared, **given),
        recorder,
        taken=CarriedOver(),
    )
    return made, recorder


async def check_goes_on(core: CoreTree, name: str) -> None:
    """Whoever goes on with a tree whose rollouts have all ended asks nobody, and changes nothing."""
    llm, digest = Cast(), core.digest()
    again, recorder = session(TEAMS[name], llm, core, n=core.rollouts)
    await again.run()
    assert (llm.asked, recorder.core.digest()) == ([], digest)


@pytest.mark.parametrize(("slow", "roles"), [("left", []), ("right", ["left"])])
async def test_a_cut_with_two_roles_out_keeps_what_came_in_order(slow: str, roles: list[str]) -> None:
    made, recorder = session(TEAMS["council"], Cast(lambda model: NEVER * (model == slow)))
    asyncio.get_running_loop().call_later(0.1, made.cut, "stopped", "by hand")
    await asyncio.wait_for(made.run(), 10)
    core = recorder.core
    core.check()
    assert core.rollout(0).termination == "censored"
    assert [act.role for act in acts(core, 0) if act.nodes] == roles
    assert len(asyncio.all_tasks()) == 1, "nobody is left behind"
    await check_goes_on(core, "council")


@pytest.mark.parametrize("name", ["council", "search", "stubborn"])
async def test_enough_rollouts_cut_the_others_wherever_their_roles_are(name: str) -> None:
    made, recorder = session(TEAMS[name], Cast(), n=3, stopping=Stopping(enough=1))
    await made.run()
    core = recorder.core
    core.check()
    assert {core.rollout(number).termination for number in range(3)} <= {"answer", "censored"}
    for number in range(3):
        assert sum(bool(act.nodes) for act in acts(core, number) if act.kind == "ask") == core.rollout(number).turns
    for kept in range(1, len(recorder.deltas) + 1, 3):
        if (half := replayed(recorder.deltas[:kept])).rollouts:
            again, after = session(TEAMS[name], Cast(), half, n=3, stopping=Stopping(enough=1))
            await again.run()
            after.core.check()
            assert not after.core.growing


@pytest.mark.parametrize("calls", [1, 2, 3, 4, 6])
async def test_a_budget_of_calls_ends_a_team_in_the_order_of_its_program(calls: int) -> None:
    digests = set()
    for slow in ("left", "right", "clerk"):
        llm = Cast(lambda model, slow=slow: 50 * (model == slow))
        made, recorder = session(TEAMS["council"], llm, sources=BudgetSources(Budget(calls=calls), None, {}))
        await made.run()
        assert recorder.core.rollout(0).termination == "censored"
        assert recorder.core.rollout(0).turns == calls == len(llm.asked), "not one is asked beyond it"
        digests.add(recorder.core.digest())
    assert len(digests) == 1


async def test_a_budget_of_tokens_counts_what_a_role_is_sent_and_not_the_path() -> None:
    class Long(Team):
        writer = Role(prompt="{question} " + 5000 * "x", sampling=SURE.__class__(max_tokens=10))

        async def play(self, rollout: TeamPlay) -> str:
            return await rollout.ask(self.writer)

    llm = Cast()
    made, recorder = session(Long(model="m"), llm, sources=BudgetSources(Budget(tokens=3000), None, {}))
    await made.run()
    assert recorder.core.rollout(0).termination == "censored"
    assert llm.asked == []


async def test_a_deadline_ends_a_team_whose_roles_are_out() -> None:
    llm = Cast(lambda model: NEVER * (model == "right"))
    made, recorder = session(TEAMS["council"], llm, sources=BudgetSources(Budget(seconds=0.1), None, {}))
    await asyncio.wait_for(made.run(), 10)
    assert recorder.core.rollout(0).termination == "censored"
    assert "deadline" in (recorder.core.rollout(0).error or "")


@pytest.mark.parametrize("most", [1, 2, 3, 5])
async def test_the_limit_of_turns_counts_all_roles_and_is_the_same_after_a_crash(most: int) -> None:
    whole = await play(TEAMS["council"], Cast(), max_turns=most)
    assert (whole.end[0], len(whole.roles)) == ("max_turns", most)
    for core in cuts(whole.deltas):
        again = await play(TEAMS["council"], Cast(), core, max_turns=most)
        assert again.tree.digest() == whole.tree.digest()
        assert rows(again.tree.core, 0) == rows(whole.tree.core, 0)


class Choosy:
    """Refuses to read some replies."""

    def read(self, text: str, reasoning: str | None) -> Reading:
        if "says" in text:
            raise ZeroDivisionError("cannot be read")
        return Reading(text)


class Misread(Team):
    """Two at once, one of which cannot be read."""

    left = Role(prompt="Left of {question}")
    odd = Role(prompt="Right of {question}", reads=Choosy())

    async def play(self, rollout: TeamPlay) -> str:
        one, two = await asyncio.gather(rollout.ask(self.left), rollout.ask(self.odd))
        return one + two


async def test_a_projection_that_raises_ends_one_rollout_with_its_name_and_counts_the_reply() -> None:
    whole = await play(Misread(model="m"), Cast())
    assert whole.end[0] == "lost"
    assert "role 'odd': reads raised ZeroDivisionError: cannot be read" in (whole.end[2] or "")
    assert whole.roles == ["left"], "what cannot be read is no row"
    for core in cuts(whole.deltas):
        again = await play(Misread(model="m"), Cast(), core)
        assert again.tree.digest() == whole.tree.digest()


PAID: Counter[str] = Counter()


@tool(side_effects=True)
async def pay(amount: int) -> str:
    """Pay.

    Args:
        amount: How much.
    """
    PAID[current_call().id] += 1
    await asyncio.sleep(0)
    return f"paid {amount}"


class Buyers(Team):
    """Pays between two rounds."""

    left = Role(prompt="Left of {question}.{context}")
    right = Role(prompt="Right of {question}.{context}")

    async def play(self, rollout: TeamPlay) -> str:
        for amount in (1, 2):
            await asyncio.gather(rollout.ask(self.left), rollout.ask(self.right))
            await rollout.observe(pay, amount=amount)
        return await rollout.ask(self.left)


async def test_what_a_team_has_paid_is_paid_once_and_what_is_in_doubt_ends_its_rollout() -> None:
    PAID.clear()
    whole = await play(Buyers(model="m"), Cast())
    assert (whole.end[0], sorted(PAID.values())) == ("answer", [1, 1])
    doubted = 0
    for core in cuts(whole.deltas):
        if core.rollout(0).termination is not None:
            continue
        PAID.clear()
        doubtful = bool(unresolved_effects(core))
        began = sum(mark.startswith('{"intent"') for mark in core.marks())
        again = await play(Buyers(model="m"), Cast(), core)
        if doubtful:
            doubted += 1
            assert again.end[0] == "unknown_effect"
        else:
            assert again.tree.digest() == whole.tree.digest()
            assert PAID.total() == 2 - began
    assert doubted == 2, "once for each payment"


def lately(rollout: Any) -> float:
    return float(len(str(rollout.messages[-1]["content"])))


@pytest.mark.parametrize("name", ["council", "experts", "stubborn"])
async def test_who_answers_first_makes_no_difference_to_what_goes_step_by_step(name: str) -> None:
    strategy, digests = TreeSearch(width=3, keep=2, depth=4, value=lately), set()
    for slow in ("left", "right", "theorist", "sceptic", "present", "nobody"):
        late = await play(TEAMS[name], Cast(lambda model, slow=slow: 40 * (model == slow)), None, strategy)
        digests.add(late.tree.digest())
    assert len(digests) == 1


class Leaver(Team):
    """Leaves somebody behind who waits for the next step."""

    left = Role(prompt="Left of {question}")

    async def play(self, rollout: TeamPlay) -> str:
        await rollout.ask(self.left)
        behind.append(asyncio.create_task(rollout.ask(self.left)))
        await rollout.observe("enough")
        return "done"


behind: list[asyncio.Task[Any]] = []


async def test_who_is_left_behind_between_two_steps_holds_nobody_up() -> None:
    behind.clear()
    strategy = TreeSearch(width=2, keep=1, depth=3, value=lately)
    grown = await asyncio.wait_for(play(Leaver(model="m"), Cast(), None, strategy), 10)
    core = grown.tree.core
    assert {core.rollout(number).termination for number in range(core.rollouts)} <= {"answer", "censored"}
    assert behind
    assert all(task.cancelled() or task.exception() is not None for task in behind)
