"""Metrics of k tries among n, against every subset of k tries."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.errors import UsageError
from trunkline.scoring.metrics import (
    accuracy,
    avg_at_k,
    majority_at_k,
    majority_at_n,
    mean_pass_at_k,
    mean_pass_hat_k,
    metric,
    pass_at_k,
    pass_hat_k,
)
from trunkline.scoring.metrics.at_k import AnswerClasses, majority_of, shares

NAN = math.nan
ANSWERS = st.sampled_from(["a", "A", "b", "c", "7", "7.0", None])
TRY = st.tuples(ANSWERS, st.sampled_from([0.0, 0.5, 1.0]))


@settings(max_examples=60)
@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_pass_hat_k_is_the_share_of_subsets_that_are_all_right(tries: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(tries)))
    subsets = [all(subset) for subset in itertools.combinations(tries, k)]
    assert pass_hat_k(len(tries), sum(tries), k) == pytest.approx(sum(subsets) / len(subsets))
    assert pass_hat_k(len(tries), sum(tries), k) == pytest.approx(1 - pass_at_k(len(tries), tries.count(False), k))


@pytest.mark.parametrize(("n", "c", "k"), [(3, 1, 4), (3, 1, 0), (3, 4, 1), (3, -1, 1), (0, 0, 1)])
def test_pass_hat_k_refuses_numbers_that_do_not_fit(n: int, c: int, k: int) -> None:
    with pytest.raises(UsageError):
        pass_hat_k(n, c, k)


def test_mean_pass_hat_k_mirrors_pass_at_k_interval_and_all() -> None:
    rewards = [[1.0, 0.0, 0.0, NAN], [1.0, 1.0, 1.0, 0.0], [0.0, 0.0], [1.0]]
    hat = mean_pass_hat_k(rewards, 2)
    mirrored = mean_pass_at_k([[1 - reward for reward in task] for task in rewards], 2)
    assert hat is not None
    assert mirrored is not None
    assert (hat.tasks, hat.scored, hat.tries) == (3, 9, 11)
    assert hat.value == pytest.approx((0 + 3 / 6 + 0) / 3)
    assert (hat.value, hat.low, hat.high) == pytest.approx((1 - mirrored.value, 1 - mirrored.high, 1 - mirrored.low))


@settings(max_examples=80)
@given(st.lists(TRY, min_size=1, max_size=7), st.data())
def test_a_vote_of_k_is_the_mean_over_all_subsets(tries: list[tuple[str | None, float]], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(tries)))
    votes = [
        majority_of([answer for answer, _ in subset], [reward for _, reward in subset])
        for subset in itertools.combinations(tries, k)
    ]
    counted = [worth for worth in votes if worth is not None]
    assert len(counted) == len(votes)
    answers, rewards = zip(*tries, strict=True)
    found = AnswerClasses(answers, rewards).worth(k)
    assert found == pytest.approx(sum(counted) / len(counted))
    turned = data.draw(st.permutations(tries))
    assert AnswerClasses([answer for answer, _ in turned], [reward for _, reward in turned]).worth(k) == pytest.approx(
        found
    )


@settings(max_examples=40)
@given(st.lists(st.lists(TRY, min_size=3, max_size=3), min_size=1, max_size=4))
def test_a_vote_of_all_is_the_vote_of_n_and_of_one_the_accuracy(tasks: list[list[tuple[str | None, float]]]) -> None:
    answers = [[answer for answer, _ in task] for task in tasks]
    rewards = [[reward if answer is not None else 0.0 for answer, reward in task] for task in tasks]
    whole, single = majority_at_k(answers, rewards, 3), majority_at_k(answers, rewards, 1)
    voted, tried = majority_at_n(answers, rewards), accuracy(rewards)
    assert whole is not None
    assert single is not None
    assert voted is not None
    assert tried is not None
    assert whole.value == pytest.approx(voted.value)
    assert (whole.low, whole.high) == pytest.approx((voted.low, voted.high)) or len(tasks) < 2
    assert single.value == pytest.approx(tried.value)


def test_what_was_not_scored_does_not_vote_and_is_no_try() -> None:
    found = majority_at_k([["a", "a", "b"], ["x", None, "y"]], [[0.0, 0.0, NAN], [NAN, NAN, 1.0]], 2)
    assert found is not None
    assert (found.value, found.tasks, found.scored, found.tries) == (0.0, 1, 2, 6)
    assert majority_at_k([["a"]], [[1.0]], 2) is None


def test_shares_of_many_tries_are_exact() -> None:
    """Counts of subsets far beyond what a float can hold."""
    right, wrong = shares((500, 350), 0, 301)
    assert right + wrong == pytest.approx(1)
    ways = [math.comb(500, k) * math.comb(350, 301 - k) for k in range(302)]
    assert right == pytest.approx(sum(ways[151:]) / sum(ways))
    assert shares((), 3, 2) == ()


@settings(max_examples=60)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(0, 4), st.data())
def test_shares_are_those_of_every_count_of_votes(sizes: list[int], blank: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, sum(sizes) + blank))
    won = [0.0] * len(sizes)
    for votes in itertools.product(*(range(size + 1) for size in sizes)):
        if sum(votes) <= k and any(votes):
            ways = math.prod(map(math.comb, sizes, votes)) * math.comb(blank, k - sum(votes))
            leaders = [place for place, got in enumerate(votes) if got == max(votes)]
            for place in leaders:
                won[place] += ways / len(leaders)
    subsets = math.comb(sum(sizes) + blank, k)
    ordered = sorted(range(len(sizes)), key=lambda place: -sizes[place])
    found = shares(tuple(sizes[place] for place in ordered), blank, k)
    assert found == pytest.approx([won[place] / subsets for place in ordered])


def test_a_thousand_tries_with_a_long_tail_are_counted() -> None:
    """In any order of classes; who leads is all but certain, and chances that are all but 0 are none."""
    sizes = (450, 350, 50, 20, 10, *[2] * 10, *[1] * 90)
    found = shares(sizes, 10, 512)
    assert sum(found) == pytest.approx(1)
    assert 0 < found[1] < 1e-3
    assert found[-1] == 0
    assert shares(sizes[::-1], 10, 512) == found[::-1]


def test_avg_at_k_is_the_mean_of_tasks_with_enough_tries() -> None:
    found = avg_at_k([[1.0, 0.0, 0.0], [1.0, NAN], [1.0, 1.0]], 2)
    assert found is not None
    assert (found.value, found.tasks, found.tries) == (pytest.approx(2 / 3), 2, 7)
    assert avg_at_k([[1.0]], 2) is None


@pytest.mark.parametrize("of_k", [avg_at_k, mean_pass_at_k, mean_pass_hat_k], ids=["avg", "pass_at", "pass_hat"])
def test_of_no_try_has_no_meaning(of_k) -> None:
    with pytest.raises(UsageError, match="k must be at least 1"):
        of_k([[1.0]], 0)
    with pytest.raises(UsageError, match="k must be at least 1"):
        majority_at_k([["a"]], [[1.0]], 0)


NAMES = ["accuracy", "best", "majority", "avg@2", "pass@2", "pass^2", "majority@2"]


@settings(max_examples=40)
@given(st.lists(st.lists(TRY, min_size=1, max_size=4), min_size=1, max_size=4))
@pytest.mark.parametrize("name", NAMES)
def test_an_estimate_is_the_mean_of_the_values_of_tasks(name: str, tasks: list[list[tuple[str | None, float]]]) -> None:
    wanted = metric(name)
    answers = [[answer for answer, _ in task] for task in tasks]
    rewards = [[reward for _, reward in task] for task in tasks]
    values = [wanted.value(*task) for task in zip(answers, rewards, strict=True)]
    counted = [value for value in values if value is not None]
    found = wanted.estimate(answers, rewards)
    assert wanted.name == name
    assert (found is None) == (not counted)
    if found is not None:
        assert found.value == pytest.approx(sum(counted) / len(counted))
        assert found.tasks == len(counted)


@pytest.mark.parametrize(
    "name", ["", "pass", "pass@", "pass@0", "pass@-1", "pass@1.5", "maj@4", "accuracy@2", "pass@2 "]
)
def test_a_metric_that_is_none_lists_those_that_are(name: str) -> None:
    with pytest.raises(UsageError, match=r"one of accuracy, best, majority, avg@K, pass@K, pass\^K, majority@K"):
        metric(name)


def test_draws_are_the_values_that_a_task_could_hold() -> None:
    assert [metric(name).draws(8) for name in NAMES] == [8.0, 1.0, 1.0, 8.0, 4.0, 4.0, 4.0]
    assert metric("pass@8").draws(4) == 1.0
