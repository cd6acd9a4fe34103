"""The tally through its bindings, against a plain count."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline._core import Tally
from trunkline.errors import ArgumentError

ANSWERS = st.one_of(st.none(), st.integers(0, 3), st.sampled_from(["", "0", "1", "a"]))


@given(st.lists(st.tuples(ANSWERS, st.integers(0, 4)), max_size=30), st.integers(0, 20))
@settings(max_examples=100)
def test_a_tally_is_a_count(votes: list[tuple[int | str | None, int]], tries: int) -> None:
    tally, counts = Tally(), {}
    for answer, weight in votes:
        tally.vote(answer, weight)
        if answer is not None:
            old = counts.get(answer, (0, 0))
            counts[answer] = (old[0] + weight, old[1] + 1)
    assert tally.answers() == [(answer, *found) for answer, found in counts.items()]
    ranked = sorted(counts, key=lambda answer: -counts[answer][0])
    first, second = [*ranked, None, None][:2]
    lead = counts.get(first, (0, 0))[0] - counts.get(second, (0, 0))[0]
    assert (tally.leader, tally.runner_up, tally.margin) == (first, second, lead)
    assert tally.settled(tries) == (tries == 0 or lead > tries)
    assert tally.abstained == sum(answer is None for answer, _ in votes)


def test_a_possible_tie_is_not_settled() -> None:
    tally = Tally()
    for answer in ("b", "a", "b", "b"):
        tally.vote(answer)
    assert [tally.settled(tries) for tries in (0, 1, 2, 3)] == [True, True, False, False]
    assert (tally.settled(2, 0.9), tally.settled(2, 1.1)) == (True, False)


def test_a_cluster_is_whatever_is_an_index() -> None:
    class Cluster:
        def __index__(self) -> int:
            return 3

    tally = Tally()
    tally.vote(Cluster())
    tally.vote(3)
    assert tally.answers() == [(3, 2.0, 2)]


def test_what_cannot_be_a_vote_is_refused() -> None:
    tally = Tally()
    for weight in (math.nan, math.inf, -0.5):
        with pytest.raises(ArgumentError, match="it must be a finite number, 0 or more"):
            tally.vote("a", weight)
        with pytest.raises(ArgumentError, match="the weight of a remaining try is"):
            tally.settled(1, weight)
    with pytest.raises(ArgumentError, match="lone surrogates"):
        tally.vote("\ud800")
    with pytest.raises(ArgumentError, match="out of range"):
        tally.vote(-1)
    with pytest.raises(TypeError):
        tally.vote(1.5)
    assert tally.answers() == []
