"""Pure tools: equal calls share one result, there or under way."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.tools.tool import tool
from trunkline.tools.toolbox import Results, Toolbox, key_of


class Counted:
    """A pure tool that counts how often it runs and ends when told to."""

    def __init__(self) -> None:
        self.runs: list[float] = []
        self.cancelled = 0
        self.go = asyncio.Event()

        @tool(pure=True)
        async def half(n: float, unit: str = "m") -> str:
            self.runs.append(n)
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            if n < 0:
                raise ValueError("negative")
            return f"{n / 2} {unit}"

        self.box = Toolbox([half])

    def call(self, arguments: str) -> asyncio.Task:
        return asyncio.create_task(self.box.call("half", arguments))


async def test_equal_calls_run_once_whatever_their_spelling():
    counted = Counted()
    counted.go.set()
    first = await counted.call('{"n": 4, "unit": "m"}')
    second = await counted.call('{"unit":"m","n":4.0}')
    other = await counted.call('{"n": 4, "unit": "s"}')
    assert (first.text, second.text, other.text) == ("2.0 m", "2.0 m", "2.0 s")
    assert counted.runs == [4, 4]
    assert counted.box.hits == {"half": 1}
    assert second.micros == 0 < first.micros


async def test_calls_under_way_are_joined():
    counted = Counted()
    calls = [counted.call('{"n": 4}') for _ in range(3)]
    await asyncio.sleep(0.01)
    counted.go.set()
    assert {(await call).text for call in calls} == {"2.0 m"}
    assert counted.runs == [4]
    assert counted.box.hits == {"half": 2}


async def test_who_gives_up_takes_nobody_along():
    counted = Counted()
    calls = [counted.call('{"n": 4}') for _ in range(3)]
    await asyncio.sleep(0.01)
    calls[0].cancel()
    await asyncio.sleep(0.01)
    counted.go.set()
    assert calls[0].cancelled()
    assert [(await call).text for call in calls[1:]] == ["2.0 m"] * 2
    assert (counted.runs, counted.cancelled) == ([4], 0)


async def test_the_last_who_gives_up_stops_the_work_and_the_next_begins_anew():
    counted = Counted()
    calls = [counted.call('{"n": 4}') for _ in range(2)]
    await asyncio.sleep(0.01)
    for call in calls:
        call.cancel()
    later = counted.call('{"n": 4}')
    await asyncio.sleep(0.01)
    assert counted.cancelled == 1
    counted.go.set()
    assert (await later).text == "2.0 m"
    assert counted.runs == [4, 4]


async def test_what_fails_is_told_to_those_who_waited_and_not_kept():
    counted = Counted()
    calls = [counted.call('{"n": -1}') for _ in range(2)]
    await asyncio.sleep(0.01)
    counted.go.set()
    assert {(await call).text for call in calls} == {"Error: half failed with ValueError: negative"}
    assert not (await counted.call('{"n": -1}')).ok
    assert counted.runs == [-1, -1]


async def test_a_tool_that_is_not_pure_runs_each_time():
    runs = []

    @tool
    async def count() -> int:
        runs.append(1)
        return len(runs)

    box = Toolbox([count])
    assert [(await box.call("count", "")).text for _ in range(2)] == ["1", "2"]
    assert box.hits == {}


SIZE = 1000


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 500)), max_size=40))
def test_the_latest_results_are_kept_within_their_bytes(asked: list[tuple[int, int]]):
    """Against a list that is walked from its end each time."""
    import sys

    def took(key: bytes, text: str) -> int:
        return sys.getsizeof(key) + sys.getsizeof(text) + 200

    async def main() -> list[bool]:
        results = Results(SIZE)
        sizes: dict[int, int] = {}

        async def get(number: int, size: int) -> bool:
            text = "x" * sizes.setdefault(number, size)

            async def work() -> tuple[str, bool]:
                return text, True

            found = await results.get("t", key_of("t", [number], {}, ""), work)
            assert found[:2] == (text, True)
            return found[2]

        return [await get(*one) for one in asked]

    model: OrderedDict[int, str] = OrderedDict()
    sizes: dict[int, int] = {}
    expected = []
    for number, size in asked:
        text = "x" * sizes.setdefault(number, size)
        expected.append(number in model)
        model[number] = text
        model.move_to_end(number)
        while sum(took(key_of("t", [n], {}, ""), t) for n, t in model.items()) > SIZE:
            model.popitem(last=False)
    assert asyncio.run(main()) == expected


@pytest.mark.parametrize(
    ("one", "other"), [([1], [1.0]), ([1], [True]), (["1"], [1]), ([[1, 2]], [[2, 1]]), ([None], []), ([{}], [[]])]
)
def test_different_arguments_have_different_keys(one: list, other: list):
    assert key_of("t", one, {}, "") != key_of("t", other, {}, "")
    assert key_of("t", one, {}, "") != key_of("u", one, {}, "")


def test_the_order_of_names_makes_no_difference_and_what_is_no_json_stands_as_written():
    assert key_of("t", [], {"a": 1, "b": 2}, "") == key_of("t", [], {"b": 2, "a": 1}, "")
    assert key_of("t", [object()], {}, "x") == key_of("t", [object()], {}, "x") != key_of("t", [object()], {}, "y")
