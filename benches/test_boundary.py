"""What a call across the boundary costs, beside an empty call of Python and one of C."""

from __future__ import annotations

import statistics
import time

import pytest

from trunkline._core import PROMPT, ActivityCounter, CoreTree

CALLS = 20_000
ROUNDS = 25

TREE = CoreTree()
NODE = TREE.append(0, PROMPT, b'{"role":"user","content":"?"}')
COUNTER = ActivityCounter()
LANE = COUNTER.open()


class Empty:
    """A method that does nothing, in Python."""

    def call(self) -> None:
        pass


PLAIN = Empty()
CASES = {
    "empty method of Python": lambda: PLAIN.call,
    "empty method of C": lambda: "".strip,
    "ActivityCounter.open": lambda: ActivityCounter().open,
    "Tree.__len__": lambda: TREE.__len__,
}
WITH_ARGUMENT = {
    "ActivityCounter.run(lane)": lambda: (COUNTER.run, LANE),
    "Tree.message(node)": lambda: (TREE.message, NODE),
    "Tree.node(node)": lambda: (TREE.node, NODE),
}


def floor() -> float:
    """Seconds an empty call of a C method takes in the same loop."""
    method = "".strip
    start = time.perf_counter()
    for _ in range(CALLS):
        method()
    return (time.perf_counter() - start) / CALLS


@pytest.mark.benchmark(group="boundary")
@pytest.mark.parametrize("name", [*CASES, *WITH_ARGUMENT])
def test_call(benchmark, name: str, capsys):
    floors: list[float] = []

    def setup():
        floors.append(floor())

    if name in CASES:
        method = CASES[name]()

        def calls() -> None:
            for _ in range(CALLS):
                method()

    else:
        method, argument = WITH_ARGUMENT[name]()

        def calls() -> None:
            for _ in range(CALLS):
                method(argument)

    benchmark.pedantic(calls, setup=setup, rounds=ROUNDS, warmup_rounds=2)
    ns = 1e9 * benchmark.stats.stats.median / CALLS
    below = 1e9 * statistics.median(floors)
    benchmark.extra_info.update({"ns_per_call": ns, "floor_ns_per_call": below, "ratio": ns / below})
    with capsys.disabled():
        print(f"\n{name:24} {ns:6.0f} ns a call, {ns / below:.1f}x an empty call of C ({below:.0f} ns)")
