"""Lanes through their bindings, against sets; rows against slices of lists; waiting lanes against a dictionary."""

from __future__ import annotations

import subprocess
import sys
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline._core import LaneQueue, Lanes
from trunkline.errors import ArgumentError


def lanes(n: int, out: set[int]) -> Lanes:
    made = Lanes(n)
    made.finish_all(sorted(out))
    return made


def some(n: int) -> st.SearchStrategy[set[int]]:
    return st.sets(st.integers(0, n - 1)) if n else st.just(set())


@given(data=st.data(), n=st.integers(0, 150))
@settings(max_examples=80)
def test_lanes_are_a_set(data, n: int) -> None:
    left, right = data.draw(some(n)), data.draw(some(n))
    one, two = lanes(n, left), lanes(n, right)
    every = set(range(n))
    assert (list(one.ones()), one.ones().format) == (sorted(every - left), "I")
    assert (len(one), one.count(), one.any()) == (n, n - len(left), left != every)
    assert [one.active(lane) for lane in range(n)] == [lane not in left for lane in range(n)]
    assert list(one.and_(two).ones()) == sorted(every - left - right)
    assert list(one.and_not(two).ones()) == sorted(right - left)
    assert one.and_(one).ones() == one.ones()
    assert one.and_not(one).count() == 0
    mask = bytes(lane in right for lane in range(n))
    assert one.finish_where(memoryview(mask).cast("?")) == len(right - left)
    assert list(one.ones()) == sorted(every - left - right)
    assert two.finish_where(mask) == 0


def test_a_lane_finishes_once() -> None:
    three = Lanes(3)
    three.finish(1)
    with pytest.raises(ArgumentError, match="lane 1 has finished already"):
        three.finish(1)
    with pytest.raises(ArgumentError, match="lane 3 does not exist; there are 3"):
        three.finish(3)
    with pytest.raises(ArgumentError, match="lane 3 does not exist"):
        three.active(3)
    with pytest.raises(ArgumentError, match="lane 1 has finished already"):
        three.finish_all([0, 1])
    with pytest.raises(ArgumentError, match="lane 2 has finished already"):
        three.finish_all(array("I", [2, 2]))
    with pytest.raises(ArgumentError, match="2 places of a mask of lanes where 3 are needed"):
        three.finish_where(b"\0\1")
    with pytest.raises(ArgumentError, match="a column holds uint8; it must be uint32"):
        three.finish_all(b"\0\2\0")
    assert repr(three) == "<Lanes: 2 of 3 active>"
    assert three.finish_where([False, False, True]) == 1
    three.finish_all([0])
    assert not three.any()


def test_sizes_and_types_are_checked() -> None:
    with pytest.raises(ArgumentError, match="different sizes cannot be combined: 3 and 4"):
        Lanes(3).and_(Lanes(4))
    for wrong in (-1, 2**32, 10**40):
        with pytest.raises(ArgumentError, match="out of range: it must be 0 to 4294967295"):
            Lanes(wrong)
    for wrong in (lambda: Lanes("3"), lambda: Lanes(3).and_({1, 2}), lambda: Lanes(3).finish_all({1})):
        with pytest.raises(TypeError):
            wrong()


def test_more_lanes_than_memory_are_an_error_and_no_abort() -> None:
    script = """
import resource
from trunkline._core import Lanes
lanes = Lanes(2**32 - 1)
resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
for work in (lanes.ones, lanes.plan):
    try:
        work()
    except ValueError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["not enough memory for 4294967295 lanes"] * 2


def test_combining_leaves_both_as_they_were() -> None:
    one, two = lanes(4, {0}), lanes(4, {3})
    one.and_(two).finish(1)
    assert (list(one.ones()), list(two.ones())) == ([1, 2, 3], [0, 1, 2])


@given(
    data=st.data(), n=st.integers(1, 30), width=st.sampled_from([None, 1, 3, 300]), format=st.sampled_from("bBhiIqQfd")
)
@settings(max_examples=80)
def test_rows_come_back_to_their_lanes(data, n: int, width: int | None, format: str) -> None:
    """300 cells of 8 bytes are copied one row at a time, the other widths all at once."""
    out = data.draw(some(n))
    plan = lanes(n, out).plan()
    active = [lane for lane in range(n) if lane not in out]
    cells = array(format, [number % 100 for number in range(n * (width or 1))])
    rows = memoryview(cells) if width is None else memoryview(cells).cast("B").cast(format, (n, width))
    gathered = plan.gather(rows)
    assert gathered.tolist() == [rows.tolist()[lane] for lane in active]
    assert (gathered.format, gathered.readonly, len(plan), plan.size) == (format, True, len(active), n)
    assert list(plan.lanes) == active
    scattered, valid = plan.scatter(gathered, 7)
    shape = () if width is None else (width,)
    assert (gathered.shape, scattered.shape) == ((len(active), *shape), (n, *shape))
    blank = 7 if width is None else [7] * width
    assert scattered.tolist() == [rows.tolist()[lane] if lane in active else blank for lane in range(n)]
    assert (valid.format, valid.tolist()) == ("?", [lane in active for lane in range(n)])


def test_rows_that_do_not_fit_are_refused() -> None:
    plan = lanes(4, {1, 2}).plan()
    assert (bytes(plan.gather(b"abcd")), repr(plan)) == (b"ad", "<LanePlan: 2 of 4 lanes>")
    cube = memoryview(bytes(8)).cast("B", (4, 2, 1))
    gapped = memoryview(bytes(8))[::2]
    for wrong, text in [
        (b"abc", "3 rows where 4 are needed"),
        (cube, "rows have 3 dimensions; 1 or 2 are needed"),
        (gapped, "rows lie apart in memory"),
    ]:
        with pytest.raises(ArgumentError, match=text):
            plan.gather(wrong)
    with pytest.raises(ArgumentError, match="4 rows where 2 are needed"):
        plan.scatter(b"abcd", 0)
    for fill in (256, -1, "x", 0.5, None):
        with pytest.raises(ArgumentError, match='the fill does not fit cells of format "B"'):
            plan.scatter(b"ab", fill)
    with pytest.raises(TypeError):
        plan.gather([1, 2, 3, 4])


@given(
    n=st.integers(1, 6),
    limits=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    script=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=40),
)
@settings(max_examples=60)
def test_waiting_lanes_are_flushed_when_none_runs(n: int, limits: list[int], script: list[tuple[int, int]]) -> None:
    waiting, at = LaneQueue(n, limits), dict.fromkeys(range(n), -1)
    for lane, queue in script:
        if queue == 4 and lane in at:
            waiting.finish(lane)
            del at[lane]
        elif at.get(lane) == -1 and queue < len(limits):
            waiting.wait(lane, queue)
            at[lane] = queue
        else:
            with pytest.raises(ArgumentError):
                waiting.wait(lane, queue)
        stuck, expected = -1 not in at.values(), []
        for number, limit in enumerate(limits):
            rest = sorted(lane for lane in at if at[lane] == number)
            while rest and (stuck or len(rest) >= limit > 0):
                expected.append((number, rest[: limit or n]))
                rest = rest[limit or n :]
        at |= {lane: -1 for _, batch in expected for lane in batch}
        assert [(number, list(plan.lanes)) for number, plan in waiting.flush()] == expected
        running = sum(place == -1 for place in at.values())
        assert waiting.counts == (running, len(at) - running)
