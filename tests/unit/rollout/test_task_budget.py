"""Task budgets: what is refused, in which order, and that they are never overrun."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spending import MOST, Clerk, spend

from trunkline._core import CoreTree, Ledger
from trunkline.llm.pricing import EVERYWHERE, Price
from trunkline.rollout.budget import Budget
from trunkline.rollout.growth import Barrier
from trunkline.rollout.task_budget import BudgetDenied, BudgetSources, LedgerAccount, TaskBudget
from trunkline.strategies.base import Fork
from trunkline.strategies.chain import Chain
from trunkline.strategies.partial import Partial
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.types import Termination


async def test_turns_are_paid_for_in_logical_order_and_the_rest_is_censored_with_the_ledgers_words():
    # 4 chains of 3 turns under 10 calls: 4 + 4 are paid for, then 2 of the last 4.
    tree, session, book = await spend(Chain(4), Clerk(), Budget(calls=10))
    assert [rollout.termination for rollout in tree.rollouts] == [
        Termination.ANSWER,
        Termination.ANSWER,
        Termination.CENSORED,
        Termination.CENSORED,
    ]
    assert tree.rollouts[2].error.message == "task budget: 1 calls wanted, 0 left of 10"
    assert tree.rollouts[2].error.kind == "Stopped"
    assert book.calls == 10
    assert session.ending == ("budget", "task budget: 1 calls wanted, 0 left of 10", 0)


async def test_what_a_turn_left_over_pays_for_others():
    # Each turn reserves 50 and takes 10: with 60 left, one more fits, however many have been paid for.
    tree, _, book = await spend(Chain(1), Clerk(answer=lambda seed: (5, "yes")), Budget(generated=60))
    assert book.generated == 20
    assert tree.rollouts[0].termination == Termination.CENSORED
    assert tree.rollouts[0].error.message == "task budget: 50 generated wanted, 40 left of 60"


async def test_tool_calls_are_refused_and_cost_nothing_else():
    tree, _session, book = await spend(Chain(3), Clerk(), Budget(tools=4))
    # Two tools a rollout: one each, and one more for the first.
    assert [rollout.usage.tools for rollout in tree.rollouts] == [2, 1, 1]
    assert book.calls == 7
    assert tree.rollouts[1].error.message == "task budget: 1 tools wanted, 0 left of 4"


class Greedy:
    """Asks for more rollouts than are paid for."""

    def rollouts(self) -> int:
        return 6

    def start(self, view):
        yield Fork(n=2)
        yield Fork(n=3)
        yield Fork(n=1)

    def ended(self, view):
        yield Fork(n=5)


async def test_forks_beyond_the_budget_are_counted_and_open_nothing():
    tree, session, _ = await spend(Greedy(), Clerk(), Budget(rollouts=4))
    assert len(tree.rollouts) == 4, "two, and two of the next three"
    assert {rollout.termination for rollout in tree.rollouts} == {Termination.ANSWER}
    assert session.ending == ("budget", "task budget: 1 rollouts wanted, 0 left of 4", 2), "one of three, and one"


class RefusesOnce:
    """An account of the run that pays for everything but what it is asked for first."""

    limits = {"rollouts": 9}

    def __init__(self) -> None:
        self.asked = 0

    async def claim(self, most):
        self.asked += 1
        if self.asked == 1:
            raise BudgetDenied("run budget: not now")
        return LedgerAccount("run budget", Ledger(self.limits)).now(most)


async def test_what_the_run_refuses_to_pay_for_is_not_reserved_of_the_tasks_budget():
    sources = BudgetSources(Budget(rollouts=2), RefusesOnce(), {})
    task_budget = TaskBudget(sources, CoreTree(), Barrier())
    assert await task_budget.open(1) == (0, "run budget: not now")
    assert await task_budget.open(2) == (2, "")


async def test_money_is_what_the_price_says():
    # A turn reserves its prompt bound at 1 and 50 generated ones at 2; it pays 100 prompt tokens and 10 generated ones.
    prices = {EVERYWHERE: Price(prompt=1, generated=2)}
    clerk = Clerk(prompt=lambda size: 100)
    tree, _, book = await spend(Chain(8, wave=1), clerk, Budget(money=0.003), prices=prices)
    assert 0 < (100 + 20) * book.calls <= 3000
    assert "money wanted" in tree.rollouts[-1].error.message


async def test_usage_that_is_not_reported_counts_as_what_was_reserved():
    _, _, book = await spend(Chain(9, wave=1), Clerk(prompt=lambda size: -1), Budget(generated=4 * MOST))
    assert book.calls == 4


@given(
    st.integers(0, 2**32),
    st.sampled_from([Chain(6), Chain(6, wave=2), TreeGRPO(trees=2, forks=2, rounds=1)]),
    st.sampled_from(["calls", "generated", "tokens", "prompt", "tools"]),
    st.booleans(),
)
@settings(max_examples=25)
def test_a_budget_is_never_overrun_and_what_it_refuses_does_not_depend_on_who_was_faster(
    seed: int, strategy, currency: str, siblings: bool
):
    limit = {"calls": 9, "generated": 5 * MOST, "tokens": 4000, "prompt": 3600, "tools": 5}[currency]

    def grow(order: int):
        def draw(what: str, seed_of_draw: int, high: int) -> int:
            return random.Random(f"{seed} {what} {seed_of_draw}").randint(0, high)

        clerk = Clerk(
            answer=lambda one: (draw("turns", one, 4), str(draw("answer", one, 2))),
            usage=lambda one: draw("usage", one, MOST),
            ticks=lambda one: random.Random(f"{order} {one}").randint(0, 7),
            prompt=lambda size: size // 4,
            siblings=siblings,
        )
        return asyncio.run(spend(strategy, clerk, Budget(**{currency: limit})))

    trees = [grow(order) for order in range(3)]
    assert len({tree.digest() for tree, _, _ in trees}) == 1
    tree, session, book = trees[0]
    spent = {
        "calls": book.calls,
        "generated": book.generated,
        "tokens": book.generated + book.prompt,
        "prompt": book.prompt,
        "tools": tree.usage.tools,
    }[currency]
    assert spent <= limit
    refused = [rollout for rollout in tree.rollouts if rollout.termination == Termination.CENSORED]
    assert bool(refused) == (session.ending.word == "budget")


@pytest.mark.parametrize("over", [1, 3, 40])
async def test_a_server_that_generates_more_than_it_may_costs_no_more_than_what_was_in_flight(over: int):
    # Four turns at a time; each reserves 50 and takes 50 x over.
    limit = 6 * MOST
    _, _, book = await spend(Chain(4), Clerk(usage=lambda seed: MOST * over), Budget(generated=limit))
    assert book.generated <= limit + 4 * MOST * over
    assert book.calls <= 6


async def test_without_a_budget_nobody_waits_for_anybody():
    clerk = Clerk(ticks=lambda seed: 3)
    tree, session, _ = await spend(Chain(3), clerk)
    assert session.ending == ("finished", None, 0)
    assert all(rollout.termination == Termination.ANSWER for rollout in tree.rollouts)


async def test_partial_rollouts_end_where_not_even_the_initial_ones_are_paid_for():
    strategy = Partial(initial=3, top_k=1, samples=1, budget=6, region="all")
    tree, session, _ = await spend(strategy, Clerk(), Budget(rollouts=2))
    assert len(tree.rollouts) == 2
    assert session.ending == ("budget", "task budget: 1 rollouts wanted, 0 left of 2", 1)
