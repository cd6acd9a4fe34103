from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.errors import UsageError
from trunkline.scoring.metrics import accuracy, best_of_n, majority_at_n, mean_pass_at_k, pass_at_k, student

NAN = math.nan


@settings(max_examples=60)
@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_right_try(tries: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(tries)))
    subsets = [any(subset) for subset in itertools.combinations(tries, k)]
    assert pass_at_k(len(tries), sum(tries), k) == pytest.approx(sum(subsets) / len(subsets))


@pytest.mark.parametrize(("n", "c", "k"), [(3, 1, 4), (3, 1, 0), (3, 4, 1), (3, -1, 1), (0, 0, 1)])
def test_pass_at_k_refuses_numbers_that_do_not_fit(n: int, c: int, k: int) -> None:
    with pytest.raises(UsageError):
        pass_at_k(n, c, k)


def test_mean_pass_at_k_takes_only_tasks_with_enough_scored_tries() -> None:
    estimate = mean_pass_at_k([[1.0, 0.0, 0.0], [1.0, NAN, NAN], [0.0, 0.0]], 2)
    assert estimate is not None
    assert estimate.tasks == 2
    assert estimate.value == pytest.approx((2 / 3 + 0) / 2)
    assert mean_pass_at_k([[1.0]], 2) is None


def test_nothing_scored_is_none_and_never_zero() -> None:
    for rewards in ([], [[]], [[NAN, NAN], [NAN]]):
        assert accuracy(rewards) is None
        assert best_of_n(rewards) is None
        assert mean_pass_at_k(rewards, 1) is None
        assert majority_at_n([[None] * len(task) for task in rewards], rewards) is None


def test_accuracy_is_a_mean_over_tasks_of_scored_tries() -> None:
    estimate = accuracy([[1.0, 1.0, 1.0, NAN], [0.0], [NAN]])
    assert estimate is not None
    assert (estimate.value, estimate.tasks, estimate.scored, estimate.tries) == (0.5, 2, 4, 6)


def test_one_task_has_no_interval() -> None:
    estimate = accuracy([[1.0, 0.0]])
    assert estimate is not None
    assert estimate.low is None
    assert estimate.high is None


def test_all_right_is_not_certain() -> None:
    estimate = accuracy([[1.0]] * 10)
    assert estimate is not None
    assert estimate.high == 1.0
    assert estimate.low is not None
    assert 0.5 < estimate.low < 0.8


def test_rewards_beyond_one_get_the_t_interval() -> None:
    estimate = accuracy([[10.0], [20.0], [30.0]])
    assert estimate is not None
    assert estimate.low is not None
    half = 4.303 * 10 / math.sqrt(3)
    assert estimate.low == pytest.approx(20 - half, rel=1e-3)
    assert estimate.high == pytest.approx(20 + half, rel=1e-3)


@pytest.mark.parametrize(
    ("freedom", "point"), [(1, 12.706), (2, 4.303), (3, 3.182), (10, 2.228), (30, 2.042), (1000, 1.962)]
)
def test_student(freedom: int, point: float) -> None:
    assert student(freedom) == pytest.approx(point, rel=2e-3)


@pytest.mark.parametrize(("rate", "tasks", "alike"), [(0.5, 20, 0.5), (0.8, 60, 0.9), (0.5, 100, 0.0)])
def test_the_interval_covers(rate: float, tasks: int, alike: float) -> None:
    """Tries of a task agree with chance ``alike``; treating them as independent would cover far less."""
    dice = random.Random(7)
    covered = 0
    for _ in range(400):
        rewards = []
        for _ in range(tasks):
            chance = float(dice.random() < rate) if dice.random() < alike else rate
            rewards.append([float(dice.random() < chance) for _ in range(4)])
        estimate = accuracy(rewards)
        assert estimate is not None
        assert estimate.low is not None
        assert estimate.high is not None
        covered += estimate.low <= rate <= estimate.high
    assert 0.91 <= covered / 400 <= 0.995


@settings(max_examples=100)
@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, NAN]), max_size=4), max_size=8))
def test_intervals_contain_the_value(rewards: list[list[float]]) -> None:
    for estimate in (accuracy(rewards), best_of_n(rewards), mean_pass_at_k(rewards, 1)):
        if estimate is not None and estimate.low is not None and estimate.high is not None:
            assert 0.0 <= estimate.low <= estimate.value <= estimate.high <= 1.0


def test_best_of_n() -> None:
    estimate = best_of_n([[0.0, 1.0], [0.0, NAN], [NAN]])
    assert estimate is not None
    assert (estimate.value, estimate.tasks, estimate.scored) == (0.5, 2, 3)


def test_majority() -> None:
    estimate = majority_at_n([["a", "A", "b"], ["x", "y", "y"]], [[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    assert estimate is not None
    assert estimate.value == 0.5


def test_a_tie_counts_as_its_expectation_and_order_does_not_matter() -> None:
    for order in itertools.permutations(range(4)):
        answers = ["a", "a", "b", "b"]
        rewards = [1.0, 1.0, 0.0, 0.0]
        estimate = majority_at_n([[answers[i] for i in order]], [[rewards[i] for i in order]])
        assert estimate is not None
        assert estimate.value == 0.5


def test_a_vote_without_answers_fails_only_if_something_was_scored() -> None:
    estimate = majority_at_n([[None, None]], [[0.0, NAN]])
    assert estimate is not None
    assert estimate.value == 0.0
    assert majority_at_n([["a", "a", "b"]], [[NAN, NAN, 1.0]]) is None


def test_majority_refuses_lists_of_different_length() -> None:
    with pytest.raises(UsageError):
        majority_at_n([["a"]], [[1.0, 0.0]])
