"""The activity counter through its bindings: it counts lanes, and a handle of an ended lane changes nothing."""

from __future__ import annotations

import pytest

from trunkline._core import ActivityCounter
from trunkline.errors import ArgumentError


def counts(counter: ActivityCounter) -> tuple[int, int, int]:
    return counter.running, counter.asking, counter.away


def test_the_last_lane_that_stops_is_told_so() -> None:
    counter = ActivityCounter()
    one, two, three = counter.open(), counter.open(), counter.open()
    assert [counter.ask(one), counter.leave(two), counter.ask(three)] == [False, False, True]
    assert counts(counter) == (0, 2, 1)
    assert counter.end(two), "those who ask waited for it"
    counter.run(one)
    assert not counter.end(three), "one runs"
    assert repr(counter) == "<ActivityCounter: 1 run, 0 ask, 0 away>"


def test_a_lane_that_ended_is_nobody_although_its_place_is_taken() -> None:
    counter = ActivityCounter()
    ended = counter.open()
    assert counter.end(ended)
    lane = counter.open()
    assert lane != ended
    counter.run(ended)
    assert not any([counter.ask(ended), counter.leave(ended), counter.end(ended)])
    assert counts(counter) == (1, 0, 0)


def test_what_was_never_opened_or_is_no_lane_is_refused() -> None:
    counter = ActivityCounter()
    counter.open()
    with pytest.raises(ArgumentError, match="lane 5 was never opened; it must be one that open"):
        counter.end(5)
    for lane in (-1, 2**64):
        with pytest.raises(ArgumentError, match="must be 0 to 18446744073709551615"):
            counter.ask(lane)
    with pytest.raises(TypeError):
        counter.ask("0")  # type: ignore[arg-type]
    assert counts(counter) == (1, 0, 0)
