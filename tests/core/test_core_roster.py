"""A roster through its bindings: what lanes do is counted, and whoever holds one that ended changes nothing."""

from __future__ import annotations

import pytest

from trunkline._core import ActivityCounter
from trunkline.errors import ArgumentError


def counts(roster: ActivityCounter) -> tuple[int, int, int]:
    return roster.running, roster.asking, roster.away


def test_the_last_lane_that_stops_is_told_so() -> None:
    roster = ActivityCounter()
    one, two, three = roster.open(), roster.open(), roster.open()
    assert [roster.ask(one, 0), roster.leave(two), roster.ask(three, 7)] == [False, False, True]
    assert counts(roster) == (0, 2, 1)
    assert [roster.asking_of(queue) for queue in (0, 6, 7, 65535)] == [1, 0, 1, 0]
    assert roster.end(two), "those who ask waited for it"
    roster.run(one)
    assert not roster.end(three), "one runs"
    assert repr(roster) == "<ActivityCounter: 1 run, 0 ask, 0 away>"


def test_a_lane_that_ended_is_nobody_although_its_place_is_taken() -> None:
    roster = ActivityCounter()
    ended = roster.open()
    assert roster.end(ended)
    lane = roster.open()
    assert lane != ended
    roster.run(ended)
    assert not any([roster.ask(ended, 0), roster.leave(ended), roster.end(ended)])
    assert counts(roster) == (1, 0, 0)


def test_what_was_never_opened_or_is_no_queue_is_refused() -> None:
    roster = ActivityCounter()
    lane = roster.open()
    with pytest.raises(ArgumentError, match="lane 5 was never opened; it must be one that open"):
        roster.end(5)
    for queue in (-1, 65536):
        with pytest.raises(ArgumentError, match="must be 0 to 65535"):
            roster.ask(lane, queue)
    assert counts(roster) == (1, 0, 0)
