"""Lanes through their bindings, against sets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline._core import Lanes
from trunkline.errors import CoreError


def lanes(n: int, out: set[int]) -> Lanes:
    made = Lanes(n)
    for lane in out:
        made.finish(lane)
    return made


@given(data=st.data(), n=st.integers(0, 150))
@settings(max_examples=80, deadline=None)
def test_lanes_are_a_set(data, n: int) -> None:
    some = st.sets(st.integers(0, n - 1)) if n else st.just(set())
    left, right = data.draw(some), data.draw(some)
    one, two = lanes(n, left), lanes(n, right)
    every = set(range(n))
    assert one.ones() == sorted(every - left)
    assert (len(one), one.count(), one.any()) == (n, n - len(left), left != every)
    assert [one.active(lane) for lane in range(n)] == [lane not in left for lane in range(n)]
    assert one.and_(two).ones() == sorted(every - left - right)
    assert one.and_not(two).ones() == sorted(right - left)
    assert one.and_(one).ones() == one.ones()
    assert one.and_not(one).count() == 0


def test_a_lane_finishes_once() -> None:
    three = Lanes(3)
    three.finish(1)
    with pytest.raises(CoreError, match="lane 1 has finished already"):
        three.finish(1)
    with pytest.raises(CoreError, match="lane 3 does not exist; there are 3"):
        three.finish(3)
    with pytest.raises(CoreError, match="lane 3 does not exist"):
        three.active(3)
    assert repr(three) == "<Lanes: 2 of 3 active>"


def test_sizes_and_types_are_checked() -> None:
    with pytest.raises(CoreError, match="different sizes cannot be combined: 3 and 4"):
        Lanes(3).and_(Lanes(4))
    for wrong in (-1, 2**32, 10**40):
        with pytest.raises(CoreError, match="out of range"):
            Lanes(wrong)
    with pytest.raises(TypeError):
        Lanes("3")
    with pytest.raises(TypeError):
        Lanes(3).and_({1, 2})


def test_combining_leaves_both_as_they_were() -> None:
    one, two = lanes(4, {0}), lanes(4, {3})
    one.and_(two).finish(1)
    assert (one.ones(), two.ones()) == ([1, 2, 3], [0, 1, 2])
