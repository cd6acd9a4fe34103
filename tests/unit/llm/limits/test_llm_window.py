"""How much may be in flight: cut once per burst, back within a minute, slow to start after an outage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.llm.limits.adaptive_window import Window


def test_a_burst_of_refusals_cuts_once():
    window = Window(100)
    for answer in range(50):
        window.refused(begun=1.0, now=2.0 + answer / 100)
    assert window.size == 70


def test_refusals_of_what_was_sent_long_after_the_cut_cut_again():
    window = Window(100)
    window.refused(1.0, 2.0)
    window.refused(begun=6.9, now=7.0)
    assert window.size == 70
    window.refused(begun=7.1, now=7.2)
    assert window.size == pytest.approx(49)


@given(cap=st.integers(1, 5000), cuts=st.integers(1, 60))
def test_after_any_cuts_nine_tenths_are_back_within_a_minute(cap, cuts):
    window = Window(cap)
    now = 0.0
    for _ in range(cuts):
        now += 6.0
        window.refused(now, now)
        assert window.size >= 1
    window.grow(now + 4.9)
    assert window.size <= max(1, cap * 0.7)
    window.grow(now + 30.0)
    middle = window.size
    window.grow(now + 60.0)
    assert middle <= window.size <= cap
    assert window.size >= 0.9 * cap


def test_a_slowdown_cuts_where_the_window_is_in_use():
    window = Window(64)
    now = 0.0
    for _ in range(40):
        now += 1.0
        window.replied([(1.0, 100)], 64, now)
    for _ in range(60):
        now += 0.01
        window.replied([(8.0, 100)], 3, now)
    assert window.size == 64, "three in flight do not slow a server down"
    for _ in range(40):
        now += 0.01
        window.replied([(8.0, 100)], 64, now)
    assert window.size == pytest.approx(64 * 0.7)
    for _ in range(20):
        now += 6.0
        window.replied([(80.0, 100)], 64, now)
    assert window.size == 16, "it is not brought below a quarter"


def test_longer_replies_are_no_slowdown():
    window = Window(64)
    for step in range(200):
        generated = 1 if step % 40 < 20 else 2000
        window.replied([(0.5 + generated / 50, generated)], 64, float(step))
    assert window.size == 64


def test_a_workload_that_is_slower_for_good_is_not_held_down_for_ever():
    window = Window(10, slowdown=5.0)
    now = 0.0
    for pace in [1.0] * 50 + [20.0] * 4000:
        now += 0.5
        window.replied([(pace, 0)], 10, now)
        window.grow(now)
    window.grow(now + 60)
    before = window.size
    window.replied([(20.0, 0)], 10, now + 60)
    assert before == window.size == 10


def test_after_an_outage_it_starts_from_one_and_doubles_each_round_up_to_half():
    window = Window(64)
    window.restart()
    window.grow(1000.0)
    assert window.size == 1, "nothing grows while nobody answers"
    sizes, now = [], 1000.0
    for _ in range(5):
        sizes.append(int(window.size))
        for _ in range(int(window.size)):
            window.replied([(1.0, 10)], 1, now)
    assert sizes == [1, 2, 4, 8, 16]
    window.replied([(1.0, 10)], 1, now)
    assert window.size == 32
    window.grow(now + 50)
    assert window.size == 64


def test_one_that_does_not_adapt_stays():
    window = Window(8, adaptive=False)
    window.refused(0.0, 1.0)
    window.restart()
    for _ in range(100):
        window.replied([(100.0, 0)], 8, 50.0)
    assert window.size == 8


def test_it_is_narrow_until_something_is_served():
    window = Window(64)
    window.begin()
    window.grow(1e9)
    assert (window.size, window.narrow) == (4, True)
    window.open()
    assert (window.size, window.narrow) == (64, False)
    window.refused(0.0, 10.0)
    window.open()
    assert window.size == 64 * 0.7, "later it opens by growing"


@pytest.mark.parametrize("trouble", [lambda window: window.refused(0.0, 1.0), Window.restart])
def test_trouble_at_a_narrow_window_counts_from_its_cap(trouble):
    narrow, wide = Window(64), Window(64)
    narrow.begin()
    for window in (narrow, wide):
        trouble(window)
        for moment in range(2, 30):
            window.replied([(1.0, 10)], 1, moment)
            window.grow(moment)
    assert narrow.size == wide.size


def test_a_small_one_is_not_narrow():
    window = Window(4)
    window.begin()
    assert (window.size, window.narrow) == (4, False)
