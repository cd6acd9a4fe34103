"""Programs are run again over what is on record: the same tree, and nothing is paid for twice."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from plays import Actors, cuts, play, turns

from trunkline.agent import Agent
from trunkline.errors import BadRequest, CallFailed, LLMError
from trunkline.llm.types import ToolCall
from trunkline.rollout.programs.context import ProgramContext
from trunkline.tools.tool import tool

ran: list[str] = []


@tool
async def look(what: str) -> str:
    """Look something up.

    Args:
        what: What to look up.
    """
    ran.append(what)
    return f"seen {what}"


A = Agent(model="a", name="a", tools=[look])
B = Agent(model="b", name="b")
C = Agent(model="c", name="c")
JUDGE = Agent(model="judge", name="judge")


def says(messages: list[dict[str, Any]], model: str) -> str:
    return f"{model} after {len(messages)}"


async def three(rollout: ProgramContext) -> str:
    """Three roles at once, and then one that hears them all."""
    heard = await asyncio.gather(*(rollout.ask(role) for role in (A, B, C)))
    chosen = rollout.random.choice(heard)
    return (await rollout.ask(JUDGE, [*rollout.task.messages, *heard, chosen])).text


async def branches(rollout: ProgramContext) -> str:
    """Two lines of thought at once, of two turns each."""

    async def line(role: Agent) -> str:
        first = await rollout.ask(role)
        await rollout.observe(f"{role.name} heard {first}", by=role.name)
        return (await rollout.ask(role, [{"role": "user", "content": f"and then? {first}"}])).text

    return " ".join(await asyncio.gather(line(A), line(B)))


def tick() -> int:
    ran.append("tick")
    return 41


async def everything(rollout: ProgramContext) -> str:
    """All that is on record."""
    started = rollout.now()
    said = await rollout.ask(A)
    seen = await rollout.use(A, said)
    number = await rollout.call(tick)
    direct = await rollout.tool(look, what=f"number {number}")
    try:
        await rollout.ask(C)
    except LLMError as error:
        await rollout.observe(f"{type(error).__name__}: {error}")
    try:
        await rollout.call(fails, 3)
    except CallFailed as error:
        await rollout.observe(str(error))
    again = await rollout.ask(B, temperature=rollout.random.random())
    assert started <= rollout.now()
    return f"{seen[0].text} {number} {direct.text} {again.text} {rollout.turn} {rollout.step}"


def fails(number: int) -> None:
    ran.append("fails")
    raise ZeroDivisionError(f"number {number}")


def mixed(messages: list[dict[str, Any]], model: str) -> Any:
    if model == "c":
        return BadRequest("not today")
    if model == "a":
        return ToolCall("", "look", '{"what":"x"}')
    return says(messages, model)


@pytest.mark.parametrize(
    ("program", "script"), [(three, says), (branches, says), (everything, mixed)], ids=["three", "branches", "all"]
)
async def test_a_program_that_is_broken_off_after_any_delta_goes_on_to_the_same_tree(program: Any, script: Any):
    ran.clear()
    whole = await play(program, Actors(script))
    assert whole.end[0] == "answer", whole.end
    done = len(ran)
    points = set()
    for core in cuts(whole.deltas):
        before = turns(core)
        ran.clear()
        again = await play(program, Actors(script), core)
        assert again.end == whole.end
        assert again.tree.digest() == whole.tree.digest(), f"broken off with {before} turns"
        assert len(ran) <= done
        assert len(again.llm.asked) <= len(whole.llm.asked) - before
        points.add(before)
    assert points == set(range(turns(whole.tree.core) + 1))


@pytest.mark.parametrize("program", [three, branches])
@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "b", "a"), ("b", "a", "c")])
async def test_turns_follow_one_another_as_they_were_asked_for_whoever_answers_first(program: Any, order: Any):
    plain = await play(program, Actors(says))
    slow = await play(program, Actors(says, lambda model: 40 * order.index(model) if model in order else 0))
    assert slow.roles == plain.roles
    assert slow.tree.digest() == plain.tree.digest()


async def on_time(rollout: ProgramContext) -> str:
    """Asks as long as there is time."""
    until = rollout.now() + 3
    while rollout.now() < until:
        await rollout.ask(A)
    return str(rollout.turn)


async def told_on_time(rollout: ProgramContext) -> str:
    """The same, with an observation between its turns and the time."""
    until = rollout.now() + 3
    while rollout.now() < until:
        await rollout.ask(A)
        await rollout.observe("go on")
    return str(rollout.turn)


async def test_a_loop_on_time_takes_as_many_turns_when_it_is_run_again(monkeypatch: pytest.MonkeyPatch):
    clock = iter(range(1000))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    whole = await play(on_time, Actors(says))
    assert whole.end[:2] == ("answer", "2")
    for core in cuts(whole.deltas):
        told, before = sum('"now"' in mark for mark in core.marks()), turns(core)
        clock = iter(range(told, 1000))
        again = await play(on_time, Actors(says), core)
        assert again.tree.digest() == whole.tree.digest()
        assert len(again.llm.asked) == 2 - before


async def test_time_that_passed_meanwhile_ends_the_loop_where_it_is_new(monkeypatch: pytest.MonkeyPatch):
    clock = iter(range(1000))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    whole = await play(told_on_time, Actors(says))
    assert whole.end[:2] == ("answer", "2")
    first = next(core for core in cuts(whole.deltas) if turns(core) == 1)
    clock = iter(range(500, 1000))
    again = await play(told_on_time, Actors(says), first)
    assert again.end[:2] == ("answer", "1")
    assert again.llm.asked == []


async def test_a_replay_reads_the_same_chance():
    async def lots(rollout: ProgramContext) -> str:
        drawn.append([rollout.random.random() for _ in range(3)])
        await rollout.ask(A)
        drawn[-1].append(rollout.random.random())
        return "done"

    drawn: list[list[float]] = []
    whole = await play(lots, Actors(says))
    await play(lots, Actors(says), cuts(whole.deltas)[0])
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 4
