"""Paired differences, against every assignment of signs, and by how often their interval holds the truth."""

from __future__ import annotations

import itertools
import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tasks_drawn import paired_cover

from trunkline.errors import UsageError
from trunkline.scoring.metrics import paired
from trunkline.scoring.metrics.comparison import sign_flip

SHARE = st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 1.0])


@settings(max_examples=80)
@given(st.lists(st.sampled_from([-1.0, -0.5, -1 / 3, 0.1, 0.25, 1 / 3, 1.0]), max_size=9))
def test_the_p_value_counts_every_assignment_of_signs(differences: list[float]) -> None:
    seen = abs(math.fsum(differences))
    sums = [
        math.fsum(sign * size for sign, size in zip(signs, differences, strict=True))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    wanted = sum(abs(found) >= seen - 1e-9 for found in sums) / len(sums)
    p, exact = sign_flip(differences)
    assert exact
    assert p == pytest.approx(wanted)


def test_single_tries_of_right_and_wrong_give_the_exact_test_of_mcnemar() -> None:
    first, second = [1.0] * 2 + [0.0] * 10 + [1.0] * 5, [0.0] * 2 + [1.0] * 10 + [1.0] * 5
    found = paired(first, second)
    assert found is not None
    tail = sum(math.comb(12, k) for k in range(3)) / 2**12
    assert found.p == pytest.approx(2 * tail)
    assert (found.better, found.worse, found.same, found.tasks) == (10, 2, 5, 17)


@pytest.mark.parametrize(("better", "worse"), [(30, 10), (21, 19), (20, 20), (60, 30)])
def test_many_changes_take_the_normal_approximation(better: int, worse: int) -> None:
    count = better + worse
    p, exact = sign_flip([1.0] * better + [-1.0] * worse)
    tail = sum(math.comb(count, k) for k in range(worse + 1)) / 2**count
    assert not exact
    assert p == pytest.approx(min(1.0, 2 * tail), abs=0.004)


@pytest.mark.parametrize("sizes", [(1, 1, 2, 4), (2, 3), (3, 4, 6, 12)], ids=["quarters", "no unit", "mixed tries"])
def test_many_changes_of_several_sizes_are_near_all_assignments(sizes: tuple[int, ...]) -> None:
    """Sums of whole numbers of steps: how many assignments lead to each is counted."""
    dice = Random(5)
    for _ in range(8):
        steps = [dice.choice(sizes) * dice.choice((1, 1, -1)) for _ in range(40)]
        sums = {0: 1}
        for step in map(abs, steps):
            grown: dict[int, int] = {}
            for total, ways in sums.items():
                for moved in (total + step, total - step):
                    grown[moved] = grown.get(moved, 0) + ways
            sums = grown
        wanted = sum(ways for total, ways in sums.items() if abs(total) >= abs(sum(steps))) / 2**40
        p, exact = sign_flip([step / 12 for step in steps])
        assert not exact
        assert p == pytest.approx(wanted, abs=0.008)


def test_changes_of_any_size_have_no_step() -> None:
    """Turning all signs, or a change of the scale, changes nothing, and a size that fits no step does no harm."""
    dice = Random(6)
    sizes = [dice.choice((1.0, 0.5, math.pi / 4)) * dice.choice((1, 1, -1)) for _ in range(50)]
    spread = math.sqrt(2 * math.fsum(size * size for size in sizes))
    assert sign_flip(sizes) == (pytest.approx(math.erfc(abs(math.fsum(sizes)) / spread)), False)
    third = [1 / 3] * 30 + [-1 / 3] * 10
    assert sign_flip(third)[0] == pytest.approx(sign_flip([1000 * size for size in third])[0])


def test_the_interval_is_that_of_bonett_and_price_for_single_tries() -> None:
    first, second = [1.0] * 3 + [0.0] * 9 + [1.0] * 38, [0.0] * 3 + [1.0] * 9 + [1.0] * 38
    found = paired(first, second)
    assert found is not None
    up, down = 10 / 52, 4 / 52
    half = 2.0096 * math.sqrt((up + down - (up - down) ** 2) / 52)
    assert (found.low, found.high) == pytest.approx((up - down - half, up - down + half), abs=1e-4)


def test_no_change_is_no_proof_and_more_tasks_are_more_of_one() -> None:
    widths = []
    for tasks in (2, 10, 100):
        found = paired([0.5] * tasks, [0.5] * tasks, draws=4)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        assert (found.difference, found.p, found.same) == (0.0, 1.0, tasks)
        assert found.low == -found.high
        widths.append(found.high)
    assert widths[0] == 1.0
    assert 0.01 < widths[2] < widths[1] < 0.5


@settings(max_examples=80)
@given(st.lists(st.tuples(SHARE, SHARE), min_size=2, max_size=8), st.data())
def test_order_of_tasks_and_of_runs(tasks: list[tuple[float, float]], data: st.DataObject) -> None:
    first, second = zip(*tasks, strict=True)
    found, back = paired(first, second), paired(second, first)
    turned = paired(*zip(*data.draw(st.permutations(tasks)), strict=True))
    assert found is not None
    assert back is not None
    assert turned is not None
    assert found.low is not None
    assert found.high is not None
    assert -1 <= found.low <= found.difference <= found.high <= 1
    assert (turned.difference, turned.low, turned.high, turned.p) == pytest.approx(
        (found.difference, found.low, found.high, found.p)
    )
    assert (-back.difference, -back.high, -back.low, back.p) == pytest.approx(
        (found.difference, found.low, found.high, found.p)
    )
    assert (back.better, back.worse, back.same) == (found.worse, found.better, found.same)


def test_rewards_beyond_one_get_the_t_interval() -> None:
    found = paired([1.0, 2.0, 3.0], [11.0, 22.0, 33.0], bounded=False)
    assert found is not None
    half = 4.303 * 10 / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((20 - half, 20 + half), rel=1e-3)
    assert paired([1.0], [9.0], bounded=False) == paired([1.0], [9.0])


def test_what_cannot_be_paired() -> None:
    assert paired([], []) is None
    with pytest.raises(UsageError, match="2 values cannot be paired with 1"):
        paired([1.0, 0.0], [1.0])
    with pytest.raises(UsageError, match="leave the others out"):
        paired([1.0, math.nan], [1.0, 0.0])


CASES = [
    ((1.0, 1.0), 1.0, 0.0, 20, (1, 1)),
    ((0.1, 0.1), 0.05, 0.2, 20, (4, 4)),
    ((3.0, 0.3), 0.1, 0.3, 20, (1, 8)),
    ((0.1, 0.1), 0.05, 0.2, 50, (1, 1)),
    ((0.02, 0.02), 0.0, 0.02, 20, (1, 1)),
]


@pytest.mark.parametrize(("spread", "redrawn", "gain", "tasks", "tries"), CASES)
def test_the_interval_of_a_difference_holds_the_truth(
    spread: tuple[float, float], redrawn: float, gain: float, tasks: int, tries: tuple[int, int]
) -> None:
    """Where few tasks change, as in the last case, the interval is wide rather than wrong."""
    held = paired_cover(spread, redrawn, gain, tasks, tries, 500)
    assert held >= 0.93
    assert held <= 0.985 or tasks * (redrawn + gain) < 12


def test_chance_alone_is_called_significant_no_more_often_than_it_says() -> None:
    dice, found = Random(3), 0
    for _ in range(400):
        first = [float(dice.random() < 0.6) for _ in range(30)]
        second = [float(dice.random() < 0.6) for _ in range(30)]
        p, _exact = sign_flip([b - a for a, b in zip(first, second, strict=True) if a != b])
        found += p <= 0.05
    assert found / 400 <= 0.06
