"""Environments as tools and agents see them: what the model is told, what is refused, and in which order calls run."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest
from notebook import Clock, Notebook, Paper, look, look_and_tell, look_in_a_thread

import trunkline
from trunkline.agent import Agent
from trunkline.errors import ConfigError, EnvironmentFailed, ForkRefused
from trunkline.llm.config import LLM
from trunkline.llm.types import ToolCall
from trunkline.protocol.job import Job
from trunkline.strategies.chain import Chain
from trunkline.tools.environment import Environment
from trunkline.tools.tool import tool
from trunkline.tools.toolbox import Toolbox
from trunkline.types import Task

TASK = Task.ask("?", id="q")


def agent(**changes: Any) -> Agent:
    return Agent(**({"model": "m", "tools": [look], "environment": Paper} | changes))


def call(what: str, name: str = "look") -> ToolCall:
    return ToolCall("", name, f'{{"what": "{what}"}}')


@pytest.mark.parametrize("one", [look, look_in_a_thread])
async def test_a_tool_gets_the_environment_and_the_model_hears_nothing_of_it(one):
    assert list(one.parameters["properties"]) == one.parameters["required"] == ["what"]
    notes, box = Notebook(), Toolbox([one])
    await notes.fresh(TASK)
    assert (await box.call("look", '{"what": "a"}', notes)).text == "q a"
    refused = await box.call("look", '{"what": "a", "notes": "mine"}', notes)
    assert not refused.ok
    assert "unknown argument 'notes'; the arguments are: what" in refused.text
    assert notes.words == ["q", "a"]
    lonely = await box.call("look", '{"what": "a"}')
    assert lonely[:2] == ("Error: look works on an environment, Paper, which is not there.", False)
    await box.close()


def test_an_agent_takes_a_class_or_a_function_that_makes_one():
    assert agent(environment=Notebook).environment is Notebook
    made = functools.partial(Notebook)
    assert agent(environment=made).environment is made
    assert trunkline.Environment is Environment


async def _two(notes: Paper, other: Clock) -> str: ...


async def _first(notes: Paper, /) -> str: ...


async def plain(what: str) -> str:
    return what


class Other(Environment):
    pass


class Heavy(Paper):
    def __init__(self, size: int) -> None: ...


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"environment": None}, "tool 'look' works on the environment Paper, and the agent has none"),
        ({"environment": Other}, "works on the environment Paper, and the agent has a Other: a rollout has one"),
        ({"environment": Notebook()}, "derived from Environment, or a function that returns one, not <notebook."),
        ({"environment": "Notebook"}, "Agent: environment 'Notebook': cannot import 'Notebook'"),
        ({"environment": dict}, "or a function that returns one; what it returns is {}"),
        ({"environment": Heavy}, "environment Heavy cannot be made without arguments: TypeError"),
    ],
)
def test_an_environment_that_does_not_fit_is_refused_before_the_run(changes, words):
    with pytest.raises(ConfigError) as refusal:
        agent(**changes)
    assert words in str(refusal.value)


def test_an_environment_that_no_tool_takes_is_for_a_program_alone():
    def job(program: Any) -> Job:
        llm = LLM("http://127.0.0.1:9/v1")
        return Job(agent=agent(tools=[tool(plain)]), strategy=Chain(1), reward=None, llm=llm, seed=1, program=program)

    with pytest.raises(ConfigError, match="no tool takes the environment Paper: annotate a parameter"):
        job(None)

    async def play(rollout: Any) -> str:
        return (await rollout.tool(look, what="a")).text

    assert job(play).agent.environment is Paper


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (_two, "'notes' and 'other' both take an environment; a rollout has one"),
        (_first, "'notes' takes the environment, so it must not be positional-only"),
    ],
)
def test_a_tool_has_one_parameter_for_it(function, words):
    with pytest.raises(ConfigError, match=words):
        tool(function)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"fresh": lambda self, task: None}, "fresh must be a method written with `async def`"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0, not 0"),
        ({"snapshots": -1}, "snapshots must be a whole number of at least 0, not -1"),
        ({"snapshot_bytes": 1.5}, "snapshot_bytes must be a whole number of at least 0, not 1.5"),
        ({"replay": "no"}, "replay must be true or false, not 'no'"),
    ],
)
def test_a_class_that_cannot_work_is_refused_where_it_is_written(members, words):
    with pytest.raises(ConfigError, match=words):
        type("Odd", (Environment,), members)


def test_replay_is_a_setting_of_a_tool_that_travels_with_it():
    for one in (look, look_and_tell):
        kind, given = one.__reduce__()
        assert kind(*given).policy.replay is one.policy.replay is (one is look)
    with pytest.raises(ConfigError, match="tool 'plain': replay must be true or false, not 1"):
        tool(replay=1)(plain)


class Racing(Paper):
    """Lets the event loop choose who goes on, in the middle of each call."""

    inside = 0


@tool(name="look")
async def look_slowly(what: str, notes: Racing) -> str:
    notes.inside += 1
    for _ in range(7 - len(notes.words)):  # the later ones would overtake
        await asyncio.sleep(0)
    notes.inside -= 1
    assert not notes.inside
    return notes.write(what)


async def test_calls_of_a_turn_that_take_the_environment_run_in_call_order_beside_the_others():
    met = asyncio.Event()

    @tool
    async def meet() -> str:
        """Wait until the last of the others has run."""
        await met.wait()
        return "met"

    @tool
    async def last(notes: Racing) -> str:
        met.set()
        return " ".join(notes.words)

    notes = Racing()
    box = Toolbox([look_slowly, meet, last])
    calls = [call("a"), ToolCall("", "meet", ""), *map(call, "bcd"), ToolCall("", "last", "")]
    seen = await asyncio.wait_for(box.call_all(calls, notes), 5)
    assert [each.text for each in seen] == ["a", "met", "a b", "a b c", "a b c d", "a b c d"]


async def test_only_calls_on_the_environment_run_again_and_none_that_must_not():
    ran: list[str] = []

    @tool
    async def search(query: str) -> str:
        ran.append(query)
        return query

    notes = Paper()
    box = Toolbox([look, search])
    calls = [call("a"), ToolCall("", "search", '{"query": "x"}'), ToolCall("", "none", ""), call("b")]
    seen = await box.replay(calls, notes)
    assert [each and each.text for each in seen] == ["a", None, None, "a b"]
    assert not ran
    with pytest.raises(ForkRefused, match=r"no snapshot .* calls of look on Clock must not run again"):
        await box.replay(calls, Clock())
    with pytest.raises(ForkRefused, match="calls of look on Paper must not run again"):
        await Toolbox([look_and_tell]).replay(calls[:1], notes)
    assert await Toolbox([look_and_tell, search]).replay(calls[1:2], Clock()) == [None]


class Odd(Environment):
    timeout = 0.05

    async def fresh(self, task: Task) -> None:
        await asyncio.Event().wait()

    async def snapshot(self) -> bytes:
        raise SystemExit("\x1b[31m key sk-abcdefghijklmnopqrstuvwx")


async def test_what_a_method_does_becomes_one_error_that_is_safe_to_show():
    box = Toolbox()
    with pytest.raises(EnvironmentFailed, match=r"^fresh\(\) of the environment Odd took longer than 0.05 s$"):
        await box.manage(Odd(), "fresh", TASK)
    with pytest.raises(EnvironmentFailed) as failed:
        await box.manage(Odd(), "snapshot")
    assert str(failed.value) == "snapshot() of the environment Odd raised SystemExit: \\x1b[31m key (not stored)"
    with pytest.raises(EnvironmentFailed, match=r"NotImplementedError: Odd has snapshot\(\) and no restore\(\)"):
        await box.manage(Odd(), "restore", b"")
    await box.close()
