"""How calls are run: options that fit, gates, and the id that each call has."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from perils import awaited_call, isolated_call, threaded_call

from trunkline._internal.validation import check_size
from trunkline.errors import ConfigError, UsageError
from trunkline.llm.types import ToolCall
from trunkline.tools.calls import Origin, current_call
from trunkline.tools.environment import Environment
from trunkline.tools.tool import Tool, tool
from trunkline.tools.toolbox import Toolbox

ORIGIN = Origin(7, "task \ud800", 3, (0, 3), 2)


def plain() -> str:
    return "x"


def stateful(notebook: Environment) -> str:
    return "x"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"concurrency": 0}, "tool 'plain': concurrency must be a whole number of at least 1, not 0"),
        ({"isolated": 1}, "tool 'plain': isolated must be true or false, not 1"),
        ({"isolated": True, "memory": "lots"}, "tool 'plain': memory must be a size .*'512MB'.* not 'lots'"),
        ({"isolated": True, "memory": 1000}, "memory must be a size of at least 1000000 bytes"),
        ({"memory": "512MB"}, "memory limits the process of an isolated tool; set isolated=True, or drop it"),
        ({"pure": True, "side_effects": True}, "pure=True lets calls share .* drop one of the two"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict, words: str):
    with pytest.raises(ConfigError, match=words):
        Tool(plain, **options)


@pytest.mark.parametrize("option", ["isolated", "pure"])
def test_a_tool_with_an_environment_is_neither_isolated_nor_pure(option: str):
    with pytest.raises(ConfigError, match=f"tool 'stateful': {option}=True .* drop one of the two"):
        Tool(stateful, **{option: True})


def test_all_options_travel_with_the_tool():
    one = Tool(plain, timeout=2, concurrency=3, isolated=True, memory="1.5GiB", side_effects=True)
    kind, given = one.__reduce__()
    assert kind(*given).policy == one.policy
    assert one.policy.memory == 1_610_612_736
    assert not one.policy.replay, "it does not run again to bring an environment anywhere"


@given(st.integers(1, 999), st.sampled_from(["B", "KB", "mb", "GiB", "tib"]))
def test_sizes_are_read_as_they_are_written(count: int, unit: str):
    power = " KMGT".index(unit[0].upper()) if len(unit) > 1 else 0
    assert check_size("x", f"{count} {unit}") == count * (1024 if "i" in unit else 1000) ** power


async def test_no_more_calls_run_at_once_than_the_tool_allows():
    running, most = 0, 0

    @tool(concurrency=2)
    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    await Toolbox([work]).call_all([ToolCall("", "work", "")] * 9)
    assert most == 2


async def test_waiting_for_others_is_no_time_that_a_call_takes():
    @tool(concurrency=1, timeout=0.3)
    async def nap() -> str:
        await asyncio.sleep(0.15)
        return "rested"

    seen = await Toolbox([nap]).call_all([ToolCall("", "nap", "")] * 4)
    assert {one.text for one in seen} == {"rested"}


async def test_a_thread_that_hangs_is_warned_of_once(caplog: pytest.LogCaptureFixture):
    @tool(timeout=0.02)
    def nap() -> None:
        time.sleep(0.1)

    with caplog.at_level(logging.WARNING, "trunkline.tools"):
        await Toolbox([nap]).call_all([ToolCall("", "nap", "")] * 3)
    (record,) = caplog.records
    assert "nap did not return within 0.02 s, and its thread is still running" in record.getMessage()
    assert "isolated=True" in record.getMessage()


async def test_every_kind_of_tool_knows_its_call():
    box = Toolbox([isolated_call, threaded_call, awaited_call])
    names = ["isolated_call", "threaded_call", "awaited_call"]
    seen = await box.call_all([ToolCall("", name, "") for name in names], origin=ORIGIN)
    single = [(await box.call_all([ToolCall("", name, "")], origin=ORIGIN))[0].text for name in names]
    await box.close()
    assert [one.text for one in seen] == [ORIGIN.call(index).id for index in range(3)]
    assert single == [ORIGIN.call(0).id] * 3


async def test_outside_of_a_call_there_is_none():
    assert "no tool is being called" in (await Toolbox([threaded_call]).call("threaded_call", "")).text
    with pytest.raises(UsageError, match="no tool is being called by a rollout here"):
        current_call()


def test_ids_are_what_they_were():
    assert ORIGIN.call(0).id == "145374035404a8da4dbe11aee046bd10"
    assert (ORIGIN.call(1).task, ORIGIN.call(1).rollout, ORIGIN.call(1).turn) == ("task \ud800", 3, 2)


def test_a_task_that_spells_a_fork_path_has_ids_of_its_own():
    one, other = Origin(7, "", 0, (0, 1), 0), Origin(7, "\0\0\0\0", 0, (0,), 1)
    assert one.call(0).id != other.call(0).id


origins = st.builds(
    Origin,
    st.integers(0, 2**63 - 1),
    st.text(max_size=3),
    st.just(0),
    st.lists(st.integers(0, 3), max_size=4).map(tuple),
    st.integers(0, 3),
)


@settings(max_examples=50)
@given(origins, st.integers(0, 2), origins, st.integers(0, 2))
def test_ids_are_equal_only_for_equal_calls(one: Origin, first: int, other: Origin, second: int):
    same = (one, first) == (other, second)
    assert (one.call(first).id == other.call(second).id) is same
