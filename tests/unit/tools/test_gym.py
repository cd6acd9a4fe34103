"""Environments of Gymnasium: tools and spaces, seeds, snapshots, crossing to workers, and those that misbehave."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from functools import partial
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mazes import WAYS, Dict, Discrete, Drawn, Maze, Text, make

import trunkline as tl
from trunkline._internal.serialization import load, pack
from trunkline.errors import ConfigError, EnvironmentFailed
from trunkline.tools import gym
from trunkline.tools.gym import from_gym
from trunkline.tools.toolbox import Toolbox
from trunkline.types import Task

TASK = Task.ask("?", id="q")


async def began(kind: type[gym.GymEnvironment], **metadata: Any) -> gym.GymEnvironment:
    environment = kind()
    await environment.fresh(msgspec.structs.replace(TASK, metadata=metadata))
    return environment


def test_the_tools_tell_of_the_spaces():
    maze = tl.from_gym("mazes:make")
    action = maze.step.parameters["properties"]["action"]
    assert maze.step.parameters["required"] == ["action"]
    assert action["properties"] == {
        "way": {"type": "string", "minLength": 1, "maxLength": 5, "description": "a text of 1 to 5 characters"},
        "far": {"type": "integer", "minimum": 1, "maximum": 2, "description": "an integer from 1 to 2"},
    }
    assert maze.step.description == (
        "Take one action in the environment make. The result is the observation, an object (place: a text of 1 to 5 "
        "characters; left: an integer from 0 to 8)."
    )
    assert maze.look.parameters["properties"] == {}
    assert maze.tools == (maze.look, maze.step)
    agent = tl.Agent(model="m", tools=maze.tools, environment=maze)
    assert agent.environment is maze
    assert from_gym(Drawn).step.parameters["properties"]["action"]["maximum"] == 3


@given(st.lists(st.tuples(st.sampled_from(list(WAYS)), st.integers(1, 2)), max_size=9), st.integers(0, 99), st.data())
def test_an_episode_is_that_of_the_environment_by_itself_also_after_a_snapshot(steps: list[Any], seed: int, data: Any):
    async def play() -> None:
        kind = from_gym(make, snapshot=True)
        box, environment, plain = Toolbox(kind.tools), await began(kind, seed=seed, options={"a": 1}), Maze()
        seen, info = plain.reset(seed=seed, options={"a": 1})
        assert (await box.call("look", "{}", environment)).text == json.dumps(seen, separators=(",", ":"))
        over, earned = False, 0.0
        for way, far in steps:
            if data.draw(st.booleans()):
                snapshot = await environment.snapshot()
                await environment.close()
                environment = kind()
                await environment.restore(snapshot)
            said = await box.call("step", json.dumps({"action": {"way": way, "far": far}}), environment)
            if over:
                assert said[:2] == ("Error: the episode is over.", False)
                assert await environment.stepped() is None
                continue
            seen, reward, *ends, info = plain.step({"way": way, "far": far})
            over, earned = any(ends), earned + reward
            assert said.text == json.dumps(seen, separators=(",", ":")) + "\nThe episode is over." * over
            assert await environment.stepped() == (reward, *ends)
        facts = await environment.final_info()
        assert (facts["return"], facts["info"]) == (earned, info)
        await environment.close()
        await box.close()

    asyncio.run(play())


async def test_what_is_no_action_is_said_to_the_model_and_changes_nothing():
    kind = from_gym(make)
    box, environment = Toolbox(kind.tools), await began(kind, seed=1)
    before = (await box.call("look", "{}", environment)).text
    for action, said in [
        ({"way": "up", "far": 1}, "Error: {'way': 'up', 'far': 1} is no action: an object (way: a text of 1 to 5"),
        ({"way": "north", "far": 3}, "Error: argument 'action.far': expected `int` <= 2".replace("`", "")),
        ({"way": "north"}, "Error: missing argument 'far' in 'action'"),
        ("north", "Error: argument 'action': expected"),
    ]:
        seen = await box.call("step", json.dumps({"action": action}), environment)
        assert not seen.ok
        assert seen.text.startswith(said)
    assert (await box.call("look", "{}", environment)).text == before
    assert await environment.stepped() is None
    await environment.close()
    await box.close()


async def test_the_seed_follows_from_the_run_and_the_task_unless_the_task_names_one():
    kind = from_gym(make)
    environment = kind()
    environment.task_seed = 7
    await environment.fresh(TASK)
    assert environment.gym.goal == (await began(kind, seed=7)).gym.goal
    for wrong in (-1, "7", True, 1.5):
        with pytest.raises(ValueError, match=r"seed in the metadata of the task is .*: give an integer from 0"):
            await began(kind, seed=wrong)


async def test_what_is_drawn_for_a_terminal_is_plain():
    environment = await began(from_gym(Drawn), seed=1)
    assert environment.describe(3) == ".[A].[8]\nobservation: 3".replace(".[8]\n", ".[8\n]\n")
    await environment.close()


class Lake(from_gym(make)):  # type: ignore[misc]
    """A maze in words of one's own."""

    def describe(self, observation: Any) -> str:
        return f"at {observation['place']}"


@tl.tool
def go(way: str, lake: Lake) -> str:
    """Go one place.

    Args:
        way: Where to.
    """
    return lake.act({"way": way, "far": 1})


async def test_a_class_of_ones_own_has_its_words_and_tools():
    agent = tl.Agent(model="m", tools=[go, Lake.look], environment=Lake)
    box, environment = Toolbox(agent.tools), await began(Lake, seed=1)
    assert (await box.call("look", "{}", environment)).text == "at 0 0"
    assert (await box.call("go", '{"way": "east"}', environment)).text in {"at 1 0", "at 0 0"}
    await environment.close()
    await box.close()


def test_what_has_a_name_crosses_by_it_and_other_processes_make_it_again(monkeypatch: pytest.MonkeyPatch):
    for named in ("mazes:make", make, Maze):
        kind = from_gym(named)
        assert from_gym(named) is kind
        packed = pack(kind, "it", by_value=False)
        assert packed.module == "trunkline.tools.gym"
        assert load(packed) is kind
        assert load(pack(kind.step, "it", by_value=False)) is kind.step
        monkeypatch.setattr(gym, "_made", {})
        again = load(packed)
        assert again is not kind
        assert again.__qualname__ == kind.__qualname__
        assert load(pack(again.look, "it")) is again.look
    assert from_gym("mazes:make").__qualname__ == 'from_gym["mazes:make",{},false]'
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        gym.nothing  # noqa: B018


def test_what_no_name_leads_to_stays_in_its_process():
    pytest.importorskip("cloudpickle")

    def small() -> Maze:
        return Maze()

    for by_value in (True, False):
        with pytest.raises(tl.errors.CrossingError, match="at the top level of a module"):
            pack(from_gym(small), "it", by_value=by_value)
    assert tl.Agent(model="m", tools=(kind := from_gym(small)).tools, environment=kind).environment is kind


class Bare:
    """An environment of one kind of misbehaviour."""

    action_space: ClassVar[Any] = Discrete(2)
    observation_space: ClassVar[Any] = Text()

    def reset(self, **_: Any) -> Any:
        return "here", {}

    def step(self, action: int) -> Any:
        return "there", 1, False, False, {}

    def close(self) -> None: ...


class Endless(dict):
    """Data that refuses to be read."""

    def items(self) -> Any:
        raise RuntimeError("\x1b[31mno")


def returning(method: str, value: Any) -> type[Bare]:
    def run(self: Bare, *_: Any, **__: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    return type("Odd", (Bare,), {method: run})


@pytest.mark.parametrize(
    ("method", "value", "said"),
    [
        ("reset", "here", "reset() returned 'here', which is not (observation, info)"),
        ("reset", RuntimeError("\x1b[31mno"), "no"),
        ("reset", TypeError("unexpected keyword 'seed'"), "unexpected keyword"),
    ],
)
async def test_one_that_cannot_be_reset_fails(method: str, value: Any, said: str):
    kind = from_gym(returning(method, value))
    box = Toolbox(kind.tools)
    with pytest.raises(EnvironmentFailed) as failure:
        await box.manage(kind(), "fresh", TASK)
    assert said in str(failure.value)
    await box.close()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (("there", 1.0, True, {}), "step() returned ('there', 1.0, True, {}), which is not (observation, reward, term"),
        (RuntimeError("\x1b[31m"), "Error: step failed with RuntimeError"),
        ((Endless(), 1.0, False, False, {}), "Error: step failed with RuntimeError"),
        (("x" * 10**6, 1.0, False, False, {}), "xxx"),
        ((b"\xff", 1.0, False, False, Endless()), "b'"),
    ],
)
async def test_one_whose_steps_misbehave_is_an_answer_to_the_model(value: Any, said: str):
    kind = from_gym(returning("step", value))
    box, environment = Toolbox(kind.tools), await began(kind)
    seen = await box.call("step", '{"action": 1}', environment)
    assert said in seen.text
    assert len(seen.text) < 110_000
    await environment.close()
    await box.close()


async def test_one_that_hangs_fails_and_holds_up_no_other(monkeypatch: pytest.MonkeyPatch):
    wake = threading.Event()
    kind = from_gym(type("Still", (Bare,), {"reset": lambda self, **_: wake.wait(60)}))
    monkeypatch.setattr(kind, "timeout", 0.05)
    box, other = Toolbox(kind.tools), await began(from_gym(make))
    try:
        with pytest.raises(EnvironmentFailed, match=r"fresh\(\) of the environment Still took longer than 0.05 s"):
            await box.manage(kind(), "fresh", TASK)
        await other.close()
    finally:
        wake.set()
    await box.close()


@pytest.mark.parametrize("info", [{"picture": [0] * 20_000}, {"text": "\ud800"}])
async def test_what_is_no_fact_is_left_out_of_the_final_ones(info: dict[str, Any]):
    environment = await began(from_gym(returning("step", ("there", 1, True, False, info))))
    environment.act(1)
    await environment.stepped()
    assert await environment.final_info() == {
        "steps": 1, "return": 1.0, "terminated": True, "truncated": False, "info": None,
    }  # fmt: skip
    await environment.close()


async def test_a_reward_that_is_none_fails_the_step():
    kind = from_gym(returning("step", ("there", "much", False, False, {})))
    environment = await began(kind)
    environment.act(1)
    with pytest.raises(ValueError, match="much"):
        await environment.stepped()


def nested(depth: int) -> Any:
    space: Any = Discrete(2)
    for _ in range(depth):
        space = Dict(inside=space)
    return space


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (5, {}, "from_gym takes an id, a function or an environment, not 5"),
        ("mazes:nothing", {}, "from_gym: 'mazes:nothing': 'mazes' has no 'nothing'"),
        (make, {"size": 3}, "from_gym: size is for an id, which <function make at "),
        (Maze(), {}, "is one environment, and each rollout needs one of its own: give the function that makes it"),
        (returning("close", OSError("\x1b[31mno")), {}, "from_gym: Odd cannot be made: OSError: \\x1b[31mno"),
        (partial(int, "x"), {}, "from_gym: partial cannot be made: ValueError: invalid literal"),
        (
            type("Far", (Bare,), {"action_space": object()}),
            {},
            "from_gym: the action space of Far is <object object at",
        ),
        (type("Deep", (Bare,), {"action_space": nested(40)}), {}, "a model can be told of Text, Discrete and Dict"),
        ("Maze-v0", {"api_key": "x" * 40}, "from_gym: an option looks like a key, which run files would hold"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(given: Any, options: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as refusal:
        from_gym(given, **options)
    assert message in str(refusal.value)
    assert str(refusal.value).isprintable()


def test_an_id_without_gymnasium_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ConfigError, match=r"from_gym\('Maze-v0'\) needs an extra .*pip install 'trunkline\[gym\]'"):
        from_gym("Maze-v0")
