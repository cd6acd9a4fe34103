"""Intervals over questions."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.interval import known, mean, ratio


def test_the_interval_of_a_mean_is_students():
    found = mean([0.0, 1.0])
    # Standard error 0.5, one degree of freedom.
    assert found == (0.5, pytest.approx(0.5 - 0.5 * 12.7062), pytest.approx(0.5 + 0.5 * 12.7062), 2)
    assert found.holds(0.0)
    assert not mean([0.2, 0.2]).holds(0.3)


def test_several_intervals_together_are_wider_by_bonferroni():
    # The 1 - 0.05 / 2 / 10 point of the normal distribution is 2.80703.
    assert known(0.5, 0.1, 9, family=10).high == pytest.approx(0.5 + 0.280703, abs=1e-6)
    single, family = mean([0.0, 1.0, 1.0]), mean([0.0, 1.0, 1.0], family=10)
    assert (family.high - family.value) / (single.high - single.value) == pytest.approx(2.80703 / 1.95996, rel=1e-5)


def test_nothing_measured_is_no_figure_and_one_question_is_no_interval():
    assert math.isnan(mean([]).value)
    assert math.isnan(ratio([1.0, 2.0], [0.0, 0.0]).value)
    alone = ratio([1.0], [4.0])
    assert alone.value == 0.25
    assert math.isnan(alone.low)
    assert not alone.holds(0.25)


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0.1, 5)), min_size=2, max_size=20))
def test_a_ratio_is_that_of_the_sums_and_does_not_depend_on_the_unit(pairs):
    above, below = [one for one, _ in pairs], [other for _, other in pairs]
    found = ratio(above, below)
    assert found.value == pytest.approx(math.fsum(above) / math.fsum(below))
    scaled = ratio([7 * one for one in above], [7 * other for other in below])
    assert scaled == pytest.approx(found)


def test_intervals_hold_the_truth_as_often_as_they_say():
    # 2,000 intervals of 95 %: the number that hold has a standard deviation of 9.7.
    rng = random.Random(1)
    held = sum(
        ratio([rng.gauss(2, 1) for _ in range(30)], [rng.uniform(0.5, 1.5) for _ in range(30)]).holds(2.0)
        for _ in range(2000)
    )
    assert 1860 <= held <= 1940
