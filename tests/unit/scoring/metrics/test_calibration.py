"""Calibration of confidences: against pairs counted one by one, and where it is not defined."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.errors import UsageError
from trunkline.scoring.metrics import Calibration, calibration

NAN = math.nan
PAIR = st.tuples(st.sampled_from([0.0, 0.1, 0.5, 0.7, 0.9, 1.0, NAN]), st.sampled_from([0.0, 1.0, NAN]))
TASKS = st.lists(st.lists(PAIR, max_size=4), max_size=6)


def _of(tasks: list[list[tuple[float, float]]], bins: int = 10) -> Calibration | None:
    return calibration(
        [[sure for sure, _ in task] for task in tasks], [[r for _, r in task] for task in tasks], bins=bins
    )


@settings(max_examples=150)
@given(TASKS, st.integers(1, 5), st.data())
def test_figures_are_those_of_pairs_counted_one_by_one(
    tasks: list[list[tuple[float, float]]], bins: int, data: st.DataObject
) -> None:
    pairs = [(sure, right) for task in tasks for sure, right in task if not math.isnan(sure) and not math.isnan(right)]
    found = _of(tasks, bins)
    assert (found is None) == (not pairs)
    if found is None:
        return
    assert found.tries == len(pairs)
    assert found.brier is not None
    assert found.gap is not None
    assert found.ece is not None
    assert found.brier.value == pytest.approx(sum((sure - right) ** 2 for sure, right in pairs) / len(pairs))
    assert found.gap.value == pytest.approx(sum(sure - right for sure, right in pairs) / len(pairs))
    rights = [sure for sure, right in pairs if right]
    wrongs = [sure for sure, right in pairs if not right]
    if rights and wrongs:
        won = [(above > below) + (above == below) / 2 for above in rights for below in wrongs]
        assert found.auroc is not None
        assert found.auroc.value == pytest.approx(sum(won) / len(won))
    else:
        assert found.auroc is None
    for row in found.bins:
        held = [(sure, right) for sure, right in pairs if row.low <= sure <= row.high]
        assert len(held) == row.tries
        assert row.confidence == pytest.approx(sum(sure for sure, _ in held) / len(held))
        assert row.right == pytest.approx(sum(right for _, right in held) / len(held))
    assert sum(row.tries for row in found.bins) == len(pairs)
    assert len(found.bins) <= bins
    gaps = [row.tries * abs(row.confidence - row.right) for row in found.bins]
    assert found.ece == pytest.approx(sum(gaps) / len(pairs))
    turned = _of([data.draw(st.permutations(task)) for task in data.draw(st.permutations(tasks))], bins)
    assert turned is not None
    assert turned.bins == found.bins
    assert turned.brier is not None
    assert turned.brier.value == pytest.approx(found.brier.value)
    assert (turned.brier.low, turned.brier.high) == pytest.approx((found.brier.low, found.brier.high))


def test_bins_have_equal_mass_where_confidences_differ() -> None:
    found = calibration([[step / 100 for step in range(100)]], [[float(step % 2) for step in range(100)]], bins=4)
    assert found is not None
    assert [(row.low, row.high, row.tries) for row in found.bins] == [
        (0.0, 0.24, 25), (0.25, 0.49, 25), (0.5, 0.74, 25), (0.75, 0.99, 25),
    ]  # fmt: skip


def test_a_confidence_that_is_no_chance_has_an_order_and_no_calibration() -> None:
    found = calibration([[-3.0, 2.0], [-1.0, 5.0], [0.5, 4.0]], [[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    assert found is not None
    assert (found.brier, found.gap, found.ece, found.bins) == (None, None, None, [])
    assert found.auroc is not None
    assert found.auroc.value == pytest.approx(6 / 9)
    assert found.right == 0.5


def test_what_is_not_known_is_left_out_and_counted() -> None:
    found = calibration([[0.9, NAN, 0.4], [NAN]], [[1.0, 1.0, NAN], [0.0]])
    assert found is not None
    assert (found.tasks, found.tries, found.left_out) == (1, 1, 2)
    assert found.brier is not None
    assert (found.brier.value, found.brier.low) == (pytest.approx(0.01), None)
    assert calibration([[NAN]], [[1.0]]) is None
    assert calibration([], []) is None


def test_two_kinds_that_do_not_overlap_have_an_area_and_no_interval() -> None:
    found = calibration([[0.9, 0.1]] * 5, [[1.0, 0.0]] * 5)
    assert found is not None
    assert found.auroc is not None
    assert (found.auroc.value, found.auroc.low, found.auroc.high) == (1.0, None, None)


@pytest.mark.parametrize(
    ("confidences", "rewards", "bins", "says"),
    [
        ([[0.5]], [[1.0, 0.0]], 10, "of the same tasks and tries"),
        ([[0.5]], [[1.0], [0.0]], 10, "of the same tasks and tries"),
        ([[math.inf]], [[1.0]], 10, "infinite"),
        ([[0.5]], [[1.0]], 0, "at least 1"),
    ],
)
def test_what_does_not_fit(confidences: list, rewards: list, bins: int, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        calibration(confidences, rewards, bins=bins)
