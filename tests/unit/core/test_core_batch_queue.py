"""The queue of a batch engine through its bindings: each row leaves once, with those that may share its batch."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import pytest

from trunkline._core import BatchQueue
from trunkline.errors import ArgumentError


@dataclass(eq=False)
class Row:
    """A row, known by its identity."""

    seed: int


def filled(queue: BatchQueue[Row], count: int, n: int = 1) -> tuple[list[Row], list[int]]:
    rows = [Row(seed) for seed in range(count)]
    return rows, [queue.add(row, "m", "r", (0, 0), n, 0.0) for row in rows]


def test_rows_leave_once_as_the_objects_they_are_and_in_order_of_arrival() -> None:
    queue: BatchQueue[Row] = BatchQueue(3, 60.0, 60.0, True, True)
    rows, _ = filled(queue, 7)
    assert queue
    assert queue.full
    assert queue.next(0.0, 1, 1, 0) == ([rows[:3]], None)
    assert queue.next(0.0, 9, 1, 0) == ([rows[3:6]], 60.0)
    assert not queue.full
    assert queue.next(60.0, 9, 1, 0) == ([rows[6:]], None)
    assert not queue


@pytest.mark.parametrize(("running", "away", "due"), [(0, 0, None), (1, 0, 5.0), (1, 1, 5.0), (0, 1, 2.0)])
def test_what_lanes_do_says_how_long_rows_wait(running: int, away: int, due: float | None) -> None:
    queue: BatchQueue[Row] = BatchQueue(3, 5.0, 2.0, True, True)
    rows, _ = filled(queue, 1)
    assert queue.next(0.0, 1, running, away) == (([], due) if due else ([rows], None))


def test_a_queue_that_waits_for_lanes_in_tools_is_not_called_with_another_that_is_due() -> None:
    queue: BatchQueue[Row] = BatchQueue(3, 600.0, 600.0, False, True)
    one, two, three = Row(1), Row(2), Row(3)
    queue.add(one, "m", "searcher", (0, 0), 1, 0.0)
    queue.add(two, "m", "answerer", (0, 0), 1, 0.0)
    assert queue.next(0.0, 1, 0, 0) == ([[one]], None)
    queue.add(three, "m", "verifier", (0, 0), 1, 1.0)
    assert queue.next(1.0, 1, 0, 1) == ([[two]], None), "that was called with the first"
    queue.freed(2.0)
    assert queue.next(2.0, 1, 0, 1) == ([], 602.0)
    four = Row(4)
    queue.add(four, "m", "verifier", (0, 0), 1, 3.0)
    assert queue.next(3.0, 1, 0, 0) == ([[three, four]], None)


def test_a_wait_counts_from_when_the_engine_was_freed() -> None:
    queue: BatchQueue[Row] = BatchQueue(3, 5.0, 2.0, True, True)
    filled(queue, 1)
    queue.freed(7.0)
    assert queue.next(7.0, 1, 1, 0) == ([], 12.0)
    assert queue.next(20.0, 0, 0, 0) == ([], None), "no call is free"


def test_rows_that_are_dropped_are_in_no_batch_and_are_let_go() -> None:
    queue: BatchQueue[Row] = BatchQueue(9, 0.0, 0.0, True, True)
    rows, numbers = filled(queue, 4)
    gone = weakref.ref(rows[1])
    queue.drop([numbers[1], numbers[1], 77])
    del rows[1]
    assert gone() is None
    assert queue.next(0.0, 1, 0, 0) == ([rows], None)
    queue.drop(numbers)
    assert queue.clear() == []
    more, _ = filled(queue, 2)
    assert queue.clear() == more
    assert not queue


def test_a_row_that_comes_back_into_the_queue_when_it_is_dropped_is_taken() -> None:
    queue: BatchQueue[object] = BatchQueue(9, 0.0, 0.0, True, True)

    class Back:
        def __del__(self) -> None:
            queue.add("back", "m", "r", (0, 0), 1, 0.0)

    number = queue.add(Back(), "m", "r", (0, 0), 1, 0.0)
    queue.drop([number])
    assert queue.clear() == ["back"]


def test_a_row_of_more_completions_than_a_batch_leaves_alone() -> None:
    queue: BatchQueue[Row] = BatchQueue(3, 0.0, 0.0, True, True)
    rows, _ = filled(queue, 2, n=2**32 - 1)
    assert queue.next(0.0, 2, 0, 0) == ([[rows[0]], [rows[1]]], None)


def test_what_is_no_row_is_refused() -> None:
    queue: BatchQueue[int] = BatchQueue(3, 0.0, 0.0, True, True)
    for step, n in (((0, -1), 1), ((2**32, 0), 1), ((0, 0), -1), ((0, 0), 2**32)):
        with pytest.raises(ArgumentError, match="must be 0 to 4294967295"):
            queue.add(1, "m", "r", step, n, 0.0)
    with pytest.raises(ArgumentError):
        queue.add(1, "\ud800", "r", (0, 0), 1, 0.0)
    with pytest.raises(TypeError):
        queue.add(1, b"m", "r", (0, 0), 1, 0.0)  # type: ignore[arg-type]
    for counts in ((-1, 0, 0), (1, 2**32, 0), (1, 0, -1)):
        with pytest.raises(ArgumentError, match="must be 0 to 4294967295"):
            queue.next(0.0, *counts)
    with pytest.raises(ArgumentError, match="must be 0 to 18446744073709551615"):
        queue.drop([-1])
    assert not queue
