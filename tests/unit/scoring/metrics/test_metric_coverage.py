"""How often intervals hold the truth, on tasks of uneven difficulty; docs/decisions/metrics.md has the whole table."""

from __future__ import annotations

import math

import pytest
from tasks_drawn import covered

from trunkline.errors import UsageError
from trunkline.scoring.metrics import per_solved

EVEN, EXTREME = (2.0, 2.0), (0.5, 0.5)


@pytest.mark.parametrize(
    ("figure", "spread", "tasks"),
    [
        ("accuracy", EVEN, 20),
        ("accuracy", EXTREME, 30),
        ("unbounded", EVEN, 20),
        ("pass@2", EXTREME, 30),
        ("pass@4", EVEN, 40),
        ("pass^2", EVEN, 20),
        ("pass^4", EXTREME, 40),
        ("solved", EVEN, 40),
        ("auroc", EVEN, 20),
        ("brier", EVEN, 20),
        ("gap", EVEN, 20),
    ],
)
def test_the_interval_holds_the_truth_as_often_as_it_says(figure: str, spread: tuple[float, float], tasks: int) -> None:
    assert 0.93 <= covered(figure, spread, tasks, 4, 800) <= 0.985


def test_the_interval_of_a_vote_is_wide_rather_than_wrong() -> None:
    """A task's own value at k below n varies less than a vote held once."""
    assert covered("majority@3", EXTREME, 20, 4, 200) >= 0.95


@pytest.mark.parametrize("figure", ["accuracy", "pass@4", "pass^2"])
def test_few_tasks_make_wide_intervals(figure: str) -> None:
    assert covered(figure, EXTREME, 5, 4, 400) >= 0.94


@pytest.mark.parametrize("figure", ["pass@4", "pass^4"])
def test_few_tasks_of_many_tries_may_agree_by_chance(figure: str) -> None:
    """With all 16 tries for the size of the sample, it would hold the truth nine times in ten."""
    assert covered(figure, EVEN, 5, 16, 400) >= 0.95


def test_a_brier_score_of_few_tasks_is_less_certain_than_it_says() -> None:
    """The t interval of a skewed mean: ten tasks of which most are all right or all wrong."""
    assert 0.87 <= covered("brier", EXTREME, 10, 4, 400) < 0.95


def test_a_solved_task_costs_what_was_spent_on_all() -> None:
    found = per_solved([10.0, 20.0, 30.0], [True, False, True])
    assert found is not None
    assert (found.value, found.tasks, found.solved) == (30.0, 3, 2)
    assert found.low is not None
    assert found.high is not None
    assert 0 < found.low < 30 < found.high
    assert per_solved([10.0], [False]) is None
    assert per_solved([], []) is None
    alone = per_solved([10.0], [True])
    assert alone is not None
    assert (alone.value, alone.low, alone.high) == (10.0, None, None)


def test_all_solved_at_one_price_is_not_certain() -> None:
    found = per_solved([5.0] * 10, [True] * 10)
    assert found is not None
    assert found.low == pytest.approx(5.0)
    assert found.high is not None
    assert 6 < found.high < 10
    nothing = per_solved([0.0, 0.0], [True, True])
    assert nothing is not None
    assert (nothing.value, nothing.low, nothing.high) == (0.0, None, None)


def test_the_unit_of_what_is_spent_makes_no_difference() -> None:
    spent, solved = [3.0, 8.0, 1.0, 4.0], [True, False, True, True]
    one, other = per_solved(spent, solved), per_solved([1000 * amount for amount in spent], solved)
    assert one is not None
    assert other is not None
    assert (other.value, other.low, other.high) == pytest.approx(
        (1000 * one.value, 1000 * (one.low or math.nan), 1000 * (one.high or math.nan))
    )


@pytest.mark.parametrize(
    ("spent", "says"), [([1.0], "do not fit"), ([1.0, -1.0], "from 0 on"), ([1.0, math.nan], "from 0 on")]
)
def test_amounts_that_cannot_be(spent: list[float], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        per_solved(spent, [True, True])
