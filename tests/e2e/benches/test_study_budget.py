"""Equal budgets: what chains cost, how many of them a tree is worth, and that none of it favours short tries."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.budget import chains_measure, chains_worth, cost_curve
from studies.tries import COSTS, TOKENS, Try, measure, price
from trunkline.errors import ConfigError

RIGHT, WRONG = Try(1.0, "a", 10, 5, 1), Try(0.0, "b", 30, 5, 1)


def test_a_price_adds_up_generated_tokens_prompt_tokens_and_tool_calls():
    tries = [Try(1.0, "a", 100, 50, 2), Try(math.nan, None, 10, 0, 1)]
    assert price(tries, TOKENS) == 110
    assert price(tries, COSTS) == pytest.approx(110 + 0.2 * 50 + 50 * 3)


def test_a_group_is_measured_over_its_scored_tries_and_a_tie_is_a_fair_draw():
    cut = Try(math.nan, None, 7, 0, 0)
    assert measure([RIGHT, WRONG, cut]) == (2, 0.5, 0.5, 1.0, 1.0)
    assert measure([WRONG, WRONG, RIGHT]) == (3, pytest.approx(1 / 3), 0.0, 1.0, 1.0)
    assert measure([RIGHT]) == (1, 1.0, 1.0, 1.0, 0.0)
    assert measure([cut]) == (0, 0.0, 0.0, 0.0, 0.0)


def test_chains_are_bought_along_the_curve_of_what_they_cost():
    curve = cost_curve([[RIGHT, WRONG, RIGHT], [WRONG, WRONG, WRONG]], TOKENS)
    # (10 + 30) / 2, then (40 + 60) / 2, then (50 + 90) / 2.
    assert curve == [0, 20, 50, 70]
    assert [chains_worth(budget, curve) for budget in (20, 35, 50, 55, 70)] == [1, 1.5, 2, 2.25, 3]
    with pytest.raises(ConfigError, match="costs 71 tokens"):
        chains_worth(71, curve)
    with pytest.raises(ConfigError, match="another size"):
        chains_worth(19, curve)


@pytest.mark.parametrize("chains", [1.0, 1.5, 2.0, 2.75, 4.0])
def test_so_many_chains_show_on_average_what_so_many_independent_tries_do(chains: float):
    # All 16 equally likely pools of four draws, where a wrong try is three times as long as a right one.
    pools = list(itertools.product([RIGHT, WRONG], repeat=4))
    found = [chains_measure(pool, chains) for pool in pools]
    low, share = math.floor(chains), chains - math.floor(chains)
    passed = (1 - share) * (1 - 0.5**low) + share * (1 - 0.5 ** (low + 1))
    assert math.fsum(each.single for each in found) / 16 == pytest.approx(0.5)
    assert math.fsum(each.passed for each in found) / 16 == pytest.approx(passed)
    assert all(each.rollouts == pytest.approx(chains) for each in found)


def test_cutting_groups_off_where_their_tokens_run_out_would_favour_short_tries():
    # Why the number of chains is fixed before they are drawn: the same pools, each cut at 40 tokens.
    kept = []
    for pool in itertools.product([RIGHT, WRONG], repeat=4):
        spent = itertools.accumulate(each.generated for each in pool)
        kept += [each.reward for each, so_far in zip(pool, spent, strict=True) if so_far <= 40]
    # 19 of the 31 tries that fit are right, where half of all are.
    assert math.fsum(kept) / len(kept) > 0.6


@given(st.lists(st.sampled_from([RIGHT, WRONG]), min_size=2, max_size=7), st.data())
def test_neighbours_in_the_pool_stand_for_a_whole_number_of_chains(pool, data):
    count = data.draw(st.integers(1, len(pool)))
    starts = range(len(pool)) if count < len(pool) else [0]
    groups = [[pool[(start + step) % len(pool)] for step in range(count)] for start in starts]
    expected = [math.fsum(values) / len(groups) for values in zip(*map(measure, groups), strict=True)]
    assert chains_measure(pool, float(count)) == pytest.approx(expected)
