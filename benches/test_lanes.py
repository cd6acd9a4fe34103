"""Lanes, gather and scatter through the binding, in turn with numpy and with the way of Dr.MAS.

Every figure is the fastest of some rounds in which each side works once, so that what else the machine does hits both.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from rivals import masks
from trunkline._core import Lanes

ROUNDS = 15
SIZES = [256, 4096, 65536]
DRAW = np.random.default_rng(1)


def race(benchmark, capsys, ours: Callable[[], object], rival: Callable[[], object], calls: int, items: int) -> None:
    """Time both in turn; print and keep nanoseconds an item and how many times as fast ours is."""

    def clock(work: Callable[[], object]) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            work()
        return (time.perf_counter() - start) * 1e9 / calls

    times: list[list[float]] = [[], []]

    def once() -> None:
        for work, into in zip((ours, rival), times, strict=True):
            into.append(clock(work))

    benchmark.pedantic(once, rounds=ROUNDS, warmup_rounds=1)
    fast, slow = map(min, times)
    figures = {"us": fast / 1e3, "rival_us": slow / 1e3, "ns_an_item": fast / items, "times_as_fast": slow / fast}
    benchmark.extra_info.update(figures)
    with capsys.disabled():
        print("\n" + "  ".join(f"{name} {value:,.2f}" for name, value in figures.items()))


def half(size: int) -> tuple[Lanes, np.ndarray]:
    """A random half of some lanes, and its mask."""
    active = DRAW.permutation(size) < size // 2
    lanes = Lanes(size)
    lanes.finish_where(~active)
    return lanes, active


@pytest.mark.parametrize("size", SIZES)
def test_list_active_lanes(benchmark, capsys, size: int):
    lanes, active = half(size)
    assert np.array_equal(lanes.ones(), np.flatnonzero(active))
    race(benchmark, capsys, lanes.ones, lambda: np.flatnonzero(active), 400_000 // size, size // 2)


@pytest.mark.parametrize("size", SIZES)
def test_gather_one_number_a_lane(benchmark, capsys, size: int):
    lanes, active = half(size)
    rows = DRAW.integers(0, 100, size)
    assert np.array_equal(lanes.plan().gather(rows), masks.take(rows, active))
    race(
        benchmark,
        capsys,
        lambda: lanes.plan().gather(rows),
        lambda: masks.take(rows, active),
        400_000 // size,
        size // 2,
    )


@pytest.mark.parametrize("size", SIZES)
def test_scatter_one_number_a_lane(benchmark, capsys, size: int):
    lanes, active = half(size)
    rows = DRAW.integers(0, 100, size // 2)
    every, valid = lanes.plan().scatter(rows, -1)
    assert np.array_equal(every, masks.put(rows, active, -1))
    assert np.array_equal(valid, active)
    race(
        benchmark,
        capsys,
        lambda: lanes.plan().scatter(rows, -1),
        lambda: masks.put(rows, active, -1),
        400_000 // size,
        size,
    )


@pytest.mark.parametrize(("size", "count"), [(64, 6), (256, 25)])
def test_prompts_out_and_replies_back(benchmark, capsys, size: int, count: int):
    """Rows of 8,192 prompt and 4,096 response tokens: prompts are gathered, both are put back."""
    active = DRAW.permutation(size) < count
    lanes = Lanes(size)
    lanes.finish_where(~active)
    prompts = DRAW.integers(0, 150_000, (size, 8192))
    replies = DRAW.integers(0, 150_000, (count, 4096))

    def ours() -> tuple[memoryview, memoryview, memoryview]:
        plan = lanes.plan()
        back, valid = plan.scatter(plan.gather(prompts), 0)
        return back, plan.scatter(replies, 0)[0], valid

    def theirs() -> masks.Batch:
        out = masks.extract({"prompts": prompts}, active)
        return masks.restore(out | {"responses": replies}, active)

    back, said, valid = (np.asarray(view) for view in ours())
    rival = theirs()
    assert np.array_equal(valid, active)
    assert np.array_equal(back[active], rival["prompts"][active])
    assert np.array_equal(said[active], rival["responses"][active])
    assert not back[~active].any()
    assert not said[~active].any()
    # What the mask keeps apart here looks like data there.
    assert rival["responses"][~active].any()
    race(benchmark, capsys, ours, theirs, 1, size)
