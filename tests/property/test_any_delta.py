"""A tree that broke off after any of its deltas goes on to the tree that it would have been."""

from __future__ import annotations

import random
from functools import partial

import pytest
from breaking import Setting, broken_anywhere, broken_often, check
from every_strategy import STRATEGIES
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import look
from worlds import Model, World, worth

from trunkline.llm.pricing import EVERYWHERE, Price
from trunkline.rollout.budget import Budget
from trunkline.scoring.filters import ZeroVariance
from trunkline.strategies.base import Strategy
from trunkline.strategies.chain import Chain
from trunkline.strategies.stopping import Stopping

each = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)

WORLDS = st.builds(
    World,
    st.integers(0, 10**6),
    words=st.integers(1, 5),
    depth=st.integers(1, 6),
    stop=st.sampled_from([0.0, 0.2, 0.5]),
    fail=st.sampled_from([0.0, 0.0, 0.15]),
)


def setting(strategy: Strategy, world: World, order: int | None = 1, together: bool = False, **options) -> Setting:
    model = partial(Model, world, order, together)
    return Setting(strategy, model, [look], {"max_turns": world.depth}, reward=worth, **options)


@each
def test_every_strategy_goes_on_after_any_delta(strategy: Strategy):
    grows = setting(strategy, World(5, words=3, depth=5, stop=0.2))
    whole = broken_anywhere(grows)
    assert len(whole.deltas) > 2 * len(whole.rollouts)


@each
@settings(max_examples=10)
@given(world=WORLDS, luck=st.integers(0, 2**32))
def test_it_goes_on_however_often_it_breaks_off(strategy: Strategy, world: World, luck: int):
    grows = setting(strategy, world, luck % 5 or None, luck % 3 == 0 and not world.fail, filters=[ZeroVariance()])
    broken_often(grows, random.Random(luck), 3)


@each
@settings(max_examples=10)
@given(
    world=WORLDS,
    luck=st.integers(0, 2**32),
    currency=st.sampled_from(["calls", "generated", "tokens", "prompt", "tools", "rollouts", "money"]),
    part=st.sampled_from([0.2, 0.5, 0.8]),
)
def test_what_a_budget_refuses_is_the_same(strategy: Strategy, world: World, luck: int, currency: str, part: float):
    most = {"calls": 30, "generated": 200, "tokens": 6000, "prompt": 5000, "tools": 20, "rollouts": 8, "money": 0.02}
    limit = most[currency] * part
    budget = Budget(**{currency: limit if currency == "money" else max(1, int(limit))})
    prices = {EVERYWHERE: Price(prompt=1, generated=2, cached=0.5)}
    grows = setting(strategy, world._replace(fail=0.0), luck % 5 or None, luck % 3 == 0, budget=budget, prices=prices)
    broken_often(grows, random.Random(luck), 3)


@each
@settings(max_examples=6)
@given(world=WORLDS, luck=st.integers(0, 2**32), settled=st.sampled_from(["answer", 0.5]))
def test_what_is_settled_stays_so(strategy: Strategy, world: World, luck: int, settled: object):
    grows = setting(strategy, world, luck % 5, stopping=Stopping(stop_when=settled), filters=[ZeroVariance()])
    broken_often(grows, random.Random(luck), 3)


def test_enough_is_counted_over_all_that_it_broke_off_into():
    grows = setting(Chain(6, wave=1), World(5, depth=5, stop=0.2), stopping=Stopping(enough=3))
    whole = broken_anywhere(grows)
    assert (whole.ending.word, len(whole.rollouts)) == ("enough", 3)


@pytest.mark.parametrize("tail", ["censor", "keep"])
def test_who_was_cut_is_cut_wherever_it_goes_on(tail: str):
    """Who is fastest may be another after a break; once it is cut, nothing of that is open any more."""
    grows = setting(Chain(6, wave=3), World(5, depth=5, stop=0.2), stopping=Stopping(enough=2, cut_tail=tail))
    whole = grows.grow()
    cut = [termination for termination, *_ in whole.rollouts if termination in (None, "censored")]
    assert cut == [None if tail == "keep" else "censored"]
    settled = [number for number, data in enumerate(whole.deltas) if b'{"cut":"enough"' in data]
    assert len(settled) == 1
    for kept in range(len(whole.deltas) + 1):
        before = whole.deltas[:kept]
        again = grows.grow(before)
        if kept > settled[0]:
            check(whole, before, again)
        assert again.ending == whole.ending
        assert sum(termination not in (None, "censored") for termination, *_ in again.rollouts) == 2
