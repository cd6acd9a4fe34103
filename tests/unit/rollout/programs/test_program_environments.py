"""Programs and teams that work on an environment: forks by snapshot, by replay or not at all; last steps; failures."""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress
from itertools import pairwise
from typing import Any, ClassVar

import pytest
from notebook import Clock, Liar, Notebook, Paper, account, forget, look, look_and_sign, look_and_tell
from plays import Actors, cuts, play
from virtual_time import JumpingLoop

from trunkline.agent import Agent
from trunkline.errors import ConfigError
from trunkline.llm.types import ToolCall
from trunkline.rollout.programs.context import ProgramContext
from trunkline.strategies.base import Fork
from trunkline.strategies.chain import Chain
from trunkline.team.role import Role
from trunkline.team.team import Team, TeamPlay
from trunkline.tools.environment import Environment
from trunkline.tools.tool import Tool, tool
from trunkline.tree.views import Kind, Trajectory
from trunkline.types import Termination, Usage


def writes(messages: list[dict[str, Any]], model: str) -> ToolCall | str:
    """Writes a, b and c, and then answers."""
    turn = sum(message["role"] == "assistant" for message in messages)
    return ToolCall("", "look", f'{{"what": "{"abc"[turn]}"}}') if turn < 3 else "done"


class At:
    """A chain, and a fork before each of these turns of it."""

    def __init__(self, *turns: int) -> None:
        self.turns = turns

    def rollouts(self) -> int:
        return 1 + len(self.turns)

    def start(self, view: Any) -> list[Fork]:
        return [Fork()]

    def ended(self, view: Any) -> list[Fork]:
        if len(view.tree.rollouts) > 1:
            return []
        nodes = view.tree.rollouts[0].nodes
        before = [one.id for one, after in pairwise(nodes) if after.kind is Kind.TURN]
        return [Fork(before[turn]) for turn in self.turns if turn < len(before)]


def loop(own: Tool[..., Any] = look) -> Any:
    """The agent's loop, as a program, which writes a word of its own after each turn."""

    async def program(rollout: ProgramContext) -> str:
        while True:
            turn = await rollout.ask()
            if not await rollout.use(None, turn):
                return turn.text
            await rollout.observe((await rollout.tool(own, what="p")).text)

    return program


async def grow(environment: Any, *turns: int, own: Tool[..., Any] = look, program: Any = None, **options: Any) -> Any:
    forget()
    strategy = At(*turns)
    return await play(
        program or loop(own), Actors(writes), strategy=strategy, tools=[own], environment=environment, **options
    )


def observed(rollout: Trajectory) -> list[str]:
    return [node.text for node in rollout.nodes if node.kind in {Kind.OBSERVATION, Kind.MESSAGE}]


async def test_a_fork_has_the_state_of_its_point_by_snapshot_and_by_replay():
    snapped = await grow(Notebook, 2, 0)
    done = account()
    assert done[-20:].count("restore") == 1
    replayed = await grow(Paper, 2, 0)
    done = account()
    assert done.count("fresh") == 3, "one that begins at the prompt is no fork of a state"
    assert snapped.tree.digest() == replayed.tree.digest()
    first, forked, anew = replayed.tree.rollouts
    assert observed(first)[-2:] == ["q a p b p c", "q a p b p c p"]
    assert observed(forked) == observed(first)
    assert forked.note == "tool calls replayed: 4"
    assert anew.note is None
    assert snapped.tree.rollouts[1].note is None
    assert forked.usage.tools == 1, "what is replayed is no call"


async def test_what_is_run_again_has_the_ids_that_it_had():
    grown = await grow(Paper, 2, own=look_and_sign)
    assert [rollout.termination for rollout in grown.tree.rollouts] == [Termination.ANSWER] * 2


@pytest.mark.parametrize(
    ("environment", "own", "reason"),
    [
        (Clock, look, "there is no snapshot to go back to, and calls of look on Clock must not run again"),
        (Paper, look_and_tell, "there is no snapshot to go back to, and calls of look on Paper must not run again"),
        (Liar, look, "call 0 of turn 0 (look), run again, says 'q a at "),
    ],
)
async def test_a_fork_whose_state_cannot_be_had_is_refused_before_a_model_is_asked(environment, own, reason, caplog):
    with caplog.at_level(logging.WARNING):
        grown = await grow(environment, 1, 2, own=own)
    account()
    assert len(grown.llm.asked) == 4
    for rollout in grown.tree.rollouts[1:]:
        assert (rollout.termination, rollout.error.kind) == (Termination.CANCELLED, "ForkRefused")
        assert rollout.error.message.startswith(reason)
        assert rollout.usage == Usage()
    assert len(caplog.records) == 1, "a warning, once"


class Other(Environment):
    """An environment that has nothing to do with notebooks."""


@pytest.mark.parametrize(
    ("environment", "what", "message"),
    [
        (
            Notebook,
            "agent",
            "agent 'other' of a program has the environment Paper, and the run's agent 'lead' has Noteb",
        ),
        (Other, "tool", "look works on the environment Paper, and the run's agent 'lead' has Other: a rollout has one"),
        (
            None,
            "tool",
            "look works on the environment Paper, and the run's agent 'lead' has none: a rollout has that of",
        ),
    ],
)
async def test_a_rollout_has_one_environment(environment: Any, what: str, message: str):
    other = Agent(model="m", name="other", tools=[look], environment=Paper)

    async def program(rollout: ProgramContext) -> str:
        return (await (rollout.tool(look, what="a") if what == "tool" else rollout.ask(other))).text

    termination, _, error = (await play(program, Actors(writes), environment=environment)).end
    assert termination == "lost"
    assert message in str(error)


class Pair(Team, frozen=True, kw_only=True):
    """A writer whose calls run, and a program that writes, too."""

    writer = Role(prompt=None, tools=(look,))

    environment: Any = Notebook

    async def play(self, rollout: TeamPlay) -> str:
        for word in "xy":
            await rollout.use(await rollout.ask(self.writer))
            await rollout.observe(look, word)
        return (await rollout.tool(look, what="z")).text


async def test_the_roles_of_a_team_share_its_environment():
    forget()
    team = Pair(model="m")
    grown = await play(team, Actors(writes), strategy=At(1), environment=team.agent.environment)
    assert [rollout.answer for rollout in grown.tree.rollouts] == ["q a x b y z"] * 2
    assert account().count("restore") == 1
    assert team.settings()["environment"] == "Notebook"
    assert "environment" not in Pair(model="m", environment="notebook:Notebook").settings()["roles"]["writer"]
    with pytest.raises(ConfigError, match=r"role 'writer': Agent: tool 'look' works on the environment Paper, and the"):
        Pair(model="m", environment=Other).members  # noqa: B018


class Walk(Notebook):
    """A notebook whose third word is the last one."""

    last: ClassVar[tuple[bool, bool]] = (True, False)

    async def stepped(self) -> tuple[float | None, bool, bool]:
        return (float(len(self.words)), *((False, False) if len(self.words) < 4 else self.last))

    async def final_info(self) -> dict[str, Any]:
        return {"words": self.words}


class Cut(Walk):
    last = (False, True)


@pytest.mark.parametrize(("environment", "ends"), [(Walk, Termination.ANSWER), (Cut, Termination.MAX_TURNS)])
@pytest.mark.parametrize("answer", [None, "mine"])
async def test_after_the_last_step_a_program_may_observe_and_answer_and_no_more(environment, ends, answer):
    async def program(rollout: ProgramContext) -> str | None:
        await rollout.use(None, await rollout.ask())
        for _ in range(2):
            seen = await rollout.tool(look, what="p")
            await rollout.observe(seen.text, seen=seen)
        if answer is None:
            for step in (rollout.ask, lambda: rollout.tool(look, what="p"), lambda: rollout.observe("late")):
                with pytest.raises(BaseException, match=r"^$"):
                    await step()
        return answer

    whole = await grow(environment, program=program)
    points = [whole.tree.core, *cuts(whole.deltas)]
    for core in points:
        tree = (await grow(environment, program=program, core=core)).tree
        (rollout,) = tree.rollouts
        assert observed(rollout) == ["q a", "q a p", "q a p p"]
        assert rollout.step_rewards == [2 + 3 + 4], "of all calls after a turn"
        assert rollout.final_info == {"words": ["q", "a", "p", "p"]}
        assert rollout.answer == answer
        assert rollout.termination is (Termination.ANSWER if answer else ends)


async def test_what_calls_before_the_first_turn_earn_belongs_to_no_step():
    async def program(rollout: ProgramContext) -> str:
        await rollout.tool(look, what="p")
        return (await rollout.ask(None, [{"role": "user", "content": "?"}])).text

    assert math.isnan((await grow(Walk, program=program)).tree.rollouts[0].step_rewards[0])


class Slow(Paper):
    """Where the writing of z never ends."""


@tool
async def write(word: str, notes: Slow) -> str:
    """Write."""
    if word == "z":
        await asyncio.Event().wait()
    return notes.write(word)


@pytest.mark.parametrize(("waits", "refused"), [(0.0, "ForkRefused"), (60.0, None)])
def test_what_the_program_gave_up_is_run_again_only_if_it_had_not_begun(waits: float, refused: str | None):
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(give_up(waits, refused))


async def give_up(waits: float, refused: str | None) -> None:
    async def program(rollout: ProgramContext) -> str:
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                # One is there before the other in line, whose calls begin once it is first.
                await asyncio.gather(rollout.call(asyncio.sleep, waits), rollout.tool(write, word="z"))
        await rollout.ask(None, [{"role": "user", "content": "?"}])
        return (await rollout.tool(write, word="a")).text

    whole = await play(program, Actors(writes), environment=Slow)
    assert whole.end[:2] == ("answer", "q a")
    (core, *_) = (core for core in cuts(whole.deltas) if core.rollout(0).turns == 1)
    (rollout,) = (await play(program, Actors(writes), core, environment=Slow)).tree.rollouts
    assert (rollout.error and rollout.error.kind) == refused
    if rollout.error:
        assert rollout.error.message.startswith("the program gave up 'tool write' before its calls had ended")


def odd(name: str, value: Any) -> type[Notebook]:
    """A notebook, one of whose methods returns this, raises it, or never ends."""

    async def method(self: Notebook, *given: Any) -> Any:
        if value is ...:
            await asyncio.Event().wait()
        if isinstance(value, Exception):
            raise value
        return value

    return type("Odd", (Notebook,), {name: method, "timeout": 0.05})


@pytest.mark.parametrize("value", [RuntimeError("\x1b[31m sk-abcdefghijklmnopqrstuvwx"), ..., (math.nan, 0, 0), "text"])
@pytest.mark.parametrize("method", ["fresh", "restore", "snapshot", "stepped", "final_info", "close"])
async def test_an_environment_that_fails_ends_its_own_rollout_at_most(method: str, value: Any):
    grown = await grow(odd(method, value), 2)
    harmless = method in {"snapshot", "close"} or (
        method in {"fresh", "restore"} and not isinstance(value, Exception) and value is not ...
    )
    ends = {(rollout.termination, rollout.error and rollout.error.kind) for rollout in grown.tree.rollouts}
    if harmless and method != "snapshot":
        assert (Termination.ANSWER, None) in ends
        return
    if method == "snapshot":
        assert ends <= {(Termination.ANSWER, None), (Termination.TOOL_ERROR, "EnvironmentFailed")}
        return
    assert (Termination.TOOL_ERROR, "EnvironmentFailed") in ends
    said = " ".join(rollout.error.message for rollout in grown.tree.rollouts if rollout.error)
    assert said.isprintable()
    assert "sk-abc" not in said


async def test_an_environment_that_cannot_be_made_ends_its_rollout():
    made = []

    def once() -> Notebook:
        made.append(None)
        if len(made) > 3:
            raise OSError("\a no room")
        return Notebook()

    grown = await play(loop(), Actors(writes), strategy=Chain(3), tools=[look], environment=once)
    failed = [rollout.error.message for rollout in grown.tree.rollouts if rollout.error]
    assert set(failed) == {"the environment could not be made: OSError: \\x07 no room"}
