"""Programs that do something else when they are run again, that swallow what ends them, or misuse their rollout."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from places import SUPPORT
from plays import Actors, cuts, play, turns

from trunkline._core import CoreTree
from trunkline.agent import Agent
from trunkline.errors import BadRequest, LLMError
from trunkline.llm.types import ToolCall
from trunkline.rollout.programs.context import ProgramContext
from trunkline.tools.tool import tool


@tool
async def look(what: str) -> str:
    """Look something up.

    Args:
        what: What to look up.
    """
    return f"seen {what}"


A, B, C = (Agent(model=name, name=name, tools=[look]) for name in "abc")


def says(messages: list[dict[str, Any]], model: str) -> Any:
    return f"{model} after {len(messages)}"


def at(deltas: list[bytes], wanted: int) -> CoreTree:
    """The last tree with so many turns."""
    return [core for core in cuts(deltas) if turns(core) == wanted and core.growing][-1]


def in_order(order: list[Agent]) -> Any:
    async def program(rollout: ProgramContext) -> str:
        return " ".join([(await rollout.ask(role)).text for role in order])

    return program


@pytest.mark.parametrize("known", [1, 2])
async def test_an_order_that_changed_is_caught_at_the_first_difference_with_both_shown(known: int):
    first = await play(in_order([A, B, C]), Actors(says))
    core = at(first.deltas, known)
    llm = Actors(says)
    again = await play(in_order([B, A, C]), llm, core)
    assert llm.asked == []
    assert again.end[0] == "lost"
    failure = json.loads(again.end[2] or "")
    assert failure["kind"] == "ReplayDiverged"
    assert "'b'" in failure["message"] or "'ask b'" in failure["message"]
    assert ("'ask a'" if known == 1 else "a after 1") in failure["message"], failure["message"]


SETS = """
import sys
sys.path[:0] = {path!r}
import asyncio
from plays import Actors, play
from test_divergence import by_set, says
grown = asyncio.run(play(by_set, Actors(says)))
print(*(delta.hex() for delta in grown.deltas))
"""


def elsewhere(seed: int) -> CoreTree:
    """Two turns of `by_set` in a process with another hash seed."""
    path = [str(Path(__file__).parent), str(SUPPORT), *filter(None, sys.path)]
    made = subprocess.run(
        [sys.executable, "-c", SETS.format(path=path)],
        env=os.environ | {"PYTHONHASHSEED": str(seed)},
        capture_output=True,
        text=True,
        check=True,
    )
    return at([bytes.fromhex(word) for word in made.stdout.split()], 2)


async def by_set(rollout: ProgramContext) -> str:
    """A bug: the order of a set of texts is another one in every process."""
    roles = {agent.name: agent for agent in (A, B, C)}
    names = set(roles) | {"d", "e"}
    return " ".join([(await rollout.ask(roles[name])).text for name in names if name in roles])


async def test_the_order_of_a_set_is_no_order():
    here = at((await play(by_set, Actors(says))).deltas, 2)
    other = next(core for core in map(elsewhere, range(1, 100)) if core.digest() != here.digest())
    llm = Actors(says)
    again = await play(by_set, llm, other)
    assert again.end[0] == "lost"
    assert json.loads(again.end[2] or "")["kind"] == "ReplayDiverged"
    assert llm.asked == []


async def test_the_order_of_a_set_makes_no_difference_to_a_gather():
    async def gathers(rollout: ProgramContext) -> str:
        roles = [A, B, C] if forward else [C, B, A]
        return " ".join(sorted(one.text for one in await asyncio.gather(*map(rollout.ask, roles))))

    forward = True
    whole = await play(gathers, Actors(says))
    cut = at(whole.deltas, 3)
    forward = False
    again = await play(gathers, Actors(says), cut)
    assert again.tree.digest() == whole.tree.digest()
    assert again.llm.asked == []


async def test_a_request_that_changed_is_shown():
    async def program(rollout: ProgramContext) -> str:
        await rollout.ask(A, [{"role": "user", "content": f"the word is {word}"}])
        return (await rollout.ask(B)).text

    word = "hello"
    whole = await play(program, Actors(says))
    cut = at(whole.deltas, 1)
    word = "help\x1b"
    again = await play(program, Actors(says), cut)
    failure = json.loads(again.end[2] or "")
    assert failure["kind"] == "ReplayDiverged"
    assert "hello" in failure["message"]
    assert "help" in failure["message"]
    assert "\x1b" not in failure["message"]
    assert again.llm.asked == []


async def test_another_model_or_sampling_is_a_difference():
    async def program(rollout: ProgramContext) -> str:
        await rollout.ask(A)
        await rollout.ask(B, temperature=warmth)
        return (await rollout.ask(C)).text

    warmth = 0.5
    whole = await play(program, Actors(says))
    cut = at(whole.deltas, 2)
    warmth = 0.6
    again = await play(program, Actors(says), cut)
    assert "another model, sampling or tools" in (again.end[2] or "")


async def test_a_program_that_ends_before_its_record_does_has_diverged():
    async def program(rollout: ProgramContext) -> str:
        await rollout.ask(A)
        if early:
            return "done"
        await rollout.observe("go on")
        return (await rollout.ask(B)).text

    early = False
    whole = await play(program, Actors(says))
    cut = at(whole.deltas, 1)
    early = True
    assert cut.rollout(0).leaf == 3
    again = await play(program, Actors(says), cut)
    assert "ends where its record goes on with 'observe'" in (again.end[2] or ""), again.end


async def stubborn(rollout: ProgramContext) -> str:
    """Swallows whatever it can, and goes on."""
    for _ in range(50):
        try:
            await rollout.ask(A)
        except BaseException:  # noqa: BLE001
            rollout.random.random()
    return "I won"


async def test_the_limit_of_turns_cannot_be_swallowed():
    grown = await play(stubborn, Actors(says), max_turns=3)
    assert grown.end[0] == "max_turns"
    assert len(grown.llm.asked) == 3


async def test_failures_count_as_turns_and_can_be_caught():
    grown = await play(stubborn, Actors(lambda messages, model: BadRequest("no")), max_turns=3)
    assert grown.end[0] == "max_turns"
    assert len(grown.llm.asked) == 3
    for core in cuts(grown.deltas)[:-1]:
        again = await play(stubborn, Actors(lambda messages, model: BadRequest("no")), core, max_turns=3)
        assert again.tree.digest() == grown.tree.digest()
        assert [*again.llm.seeds] == grown.llm.seeds[3 - len(again.llm.seeds) :]


async def test_divergence_and_the_end_cannot_be_swallowed():
    async def swallows(rollout: ProgramContext) -> str:
        with contextlib.suppress(BaseException):
            await rollout.ask(B if changed else A)
        with contextlib.suppress(BaseException):
            rollout.finish("early")
        with contextlib.suppress(Exception):
            await rollout.ask(A)
        return "late"

    changed = False
    whole = await play(swallows, Actors(says))
    assert whole.end[:2] == ("answer", "early")
    assert whole.llm.asked == ["a"]
    changed = True
    again = await play(swallows, Actors(says), at(whole.deltas, 1))
    assert again.end[0] == "lost"
    assert "ReplayDiverged" in (again.end[2] or "")
    assert again.llm.asked == []


async def test_an_error_of_the_endpoint_is_not_the_programs_to_swallow():
    from trunkline.errors import EndpointError

    with pytest.raises(EndpointError, match="no key"):
        await play(stubborn, Actors(lambda messages, model: EndpointError("no key")))


async def test_a_group_that_gives_up_when_one_fails_does_so_again():
    async def program(rollout: ProgramContext) -> str:
        try:
            async with asyncio.TaskGroup() as group:
                for role in (A, B, C):
                    group.create_task(rollout.ask(role))
        except* LLMError:
            pass
        return (await rollout.ask(A)).text

    def script(messages: list[dict[str, Any]], model: str) -> Any:
        return BadRequest("no") if model == "b" else says(messages, model)

    whole = await play(program, Actors(script))
    assert whole.roles == ["a", "a"], "b failed, so c was given up, whether it had answered or not"
    for core in cuts(whole.deltas):
        again = await play(program, Actors(script), core)
        assert again.tree.digest() == whole.tree.digest()


async def test_what_a_program_leaves_behind_is_given_up():
    left = []

    async def program(rollout: ProgramContext) -> str:
        said = await rollout.ask(A)
        left.extend(asyncio.create_task(rollout.ask(role)) for role in (B, C))
        while "c" not in answered:
            await asyncio.sleep(0.001)
        return said.text

    def script(messages: list[dict[str, Any]], model: str) -> str:
        answered.append(model)
        return says(messages, model)

    answered: list[str] = []
    grown = await play(program, Actors(script, lambda model: 10**9 if model == "b" else 0))
    assert grown.end[0] == "answer"
    assert grown.roles == ["a"], "c had answered, but b comes before it"
    assert all(task.cancelled() for task in left)
    assert len(asyncio.all_tasks()) == 1


async def bad_message(rollout: ProgramContext) -> str:
    return (await rollout.ask(A, [{"role": "nobody", "content": "x"}])).text


async def no_agent(rollout: ProgramContext) -> str:
    return (await rollout.ask("A")).text  # type: ignore[arg-type]


async def bad_sampling(rollout: ProgramContext) -> str:
    return (await rollout.ask(A, temperature=-1)).text


async def no_json(rollout: ProgramContext) -> str:
    return str(await rollout.call(object))


async def no_answer(rollout: ProgramContext) -> Any:
    return 3


async def leaves(rollout: ProgramContext) -> str:
    sys.exit(3)


@pytest.mark.parametrize("program", [bad_message, no_agent, bad_sampling, no_json, no_answer, leaves])
async def test_a_mistake_ends_one_rollout_with_an_error_that_names_it(program: Any):
    grown = await play(program, Actors(says))
    assert grown.end[0] == "lost"
    assert json.loads(grown.end[2] or "")["kind"] == "ProgramError"


async def test_a_program_of_tools_reads_what_the_model_is_told():
    async def program(rollout: ProgramContext) -> str:
        said = await rollout.ask(A)
        (seen,) = await rollout.use(A, said)
        return f"{seen.text} {seen.ok} {rollout.step}"

    grown = await play(program, Actors(lambda messages, model: ToolCall("", "look", '{"what":"x"}')))
    assert grown.end[1] == "seen x True 1"
    assert grown.tree.rollouts[0].usage.tools == 1


async def test_a_program_may_make_its_agents_anew_each_time(monkeypatch: pytest.MonkeyPatch):
    async def program(rollout: ProgramContext) -> str:
        for turn in range(20):
            role = Agent(model="a", name="a", tools=[look])
            await rollout.ask(role, temperature=1.0 + turn % 2)
        return (await rollout.ask(Agent(model="b", name="b"))).text

    monkeypatch.setattr("trunkline.rollout.programs.resources._MOST", 3)
    grown = await play(program, Actors(says))
    assert grown.roles == ["a"] * 20 + ["b"], grown.end
