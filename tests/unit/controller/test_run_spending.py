"""The ledger of a run that goes on, and of eight engines whose messages are late and who die."""

from __future__ import annotations

import asyncio
import random

import pytest
from bank import Bank, call
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.controller.budget import RunSpending, spent_so_far
from trunkline.llm.pricing import EVERYWHERE, Price
from trunkline.rollout.budget import Budget
from trunkline.rollout.task_budget import BudgetDenied
from trunkline.store.schema import CallRow, RolloutRow


def rollout(termination: str | None, tools: int = 0) -> RolloutRow:
    counts = [0] * 6 + [tools] + [0] * 6
    return RolloutRow(0, "0", 0, 1, termination, None, None, None, None, 1, *counts)


ROWS = [call(10, 100), call(20, 200, draws=2), call(-1, -1, draws=1), CallRow("cache", 1, 9, 0, 9, 0, 0, -1, 5, 0)]
ROLLOUTS = [rollout("answer", 3), rollout(None, 1), rollout(None)]


def test_rows_say_what_was_spent_and_what_came_out_of_a_cache_was_not():
    found = spent_so_far(ROWS, ROLLOUTS, {EVERYWHERE: Price(prompt=2, generated=3)}, ended=True)
    assert found.amounts == {
        "calls": 4,
        "prompt": 300,
        "generated": 30,
        "tokens": 330,
        "micro_dollars": 690,
        "rollouts": 3,
        "tools": 4,
    }
    assert found.estimated == {}


def test_a_turn_that_may_have_been_in_flight_is_charged_like_the_others_and_said_to_be_an_estimate():
    found = spent_so_far(ROWS, ROLLOUTS, {}, ended=False)
    assert found.estimated == {"calls": 2, "prompt": 150, "generated": 16, "tokens": 166}
    assert (found.amounts["calls"], found.amounts["tokens"]) == (6, 496)


def test_what_was_estimated_in_an_earlier_sitting_stays_spent():
    found = spent_so_far(ROWS, ROLLOUTS, {}, {"calls": 1}, ended=True)
    assert (found.amounts["calls"], found.estimated) == (5, {"calls": 1})


async def test_a_run_that_goes_on_has_what_is_left_and_turns_that_are_paid_again_count():
    bank = Bank(1, Budget(calls=5), RunSpending({"calls": 3}, {"calls": 1}))
    for _ in range(2):
        (await (await bank.claim(0, {"calls": 1}))).settle({"calls": 1})
    with pytest.raises(BudgetDenied, match="0 left of 5"):
        await (await bank.claim(0, {"calls": 1}))
    bank.engines[0].give_back()
    bank.deliver()
    report = bank.run_budget.report()
    assert (report.spent, report.estimated, report.overshoot) == ({"calls": 5}, {"calls": 1}, {"calls": 0})


async def test_a_run_that_spent_more_than_its_new_budget_begins_nothing():
    bank = Bank(1, Budget(calls=2), RunSpending({"calls": 3}, {}))
    with pytest.raises(BudgetDenied):
        await (await bank.claim(0, {"calls": 1}))
    assert bank.run_budget.report().spent == {"calls": 3}


@given(st.integers(0, 2**32), st.integers(0, 100))
@settings(max_examples=60)
def test_eight_engines_whose_messages_are_late_and_who_die_never_spend_more_than_there_is(seed: int, before: int):
    dice = random.Random(seed)
    limit = before + dice.randint(100, 2000)
    paid, bank = asyncio.run(_play(dice, limit, before))
    report = bank.run_budget.report()
    assert before + paid <= report.spent["generated"] <= limit
    assert report.overshoot == {"generated": 0}
    assert report.spent["generated"] - report.estimated["generated"] <= before + paid
    assert not bank.run_budget.leases_out


async def _play(dice: random.Random, limit: int, before: int) -> tuple[int, Bank]:
    """Claim, settle, send and die by chance, while each engine's messages arrive when chance says so."""
    bank = Bank(8, Budget(generated=limit), RunSpending({"generated": before}, {}))
    asked: list[tuple[int, asyncio.Future, int]] = []
    paid = 0
    for _ in range(250):
        worker_id, move = dice.randrange(8), dice.random()
        if worker_id in bank.dead:
            bank.carry(worker_id, up=True)
        elif move < 0.25:
            most = dice.randint(1, 40)
            asked.append((worker_id, asyncio.ensure_future(bank.engines[worker_id].claim({"generated": most})), most))
        elif move < 0.5:
            done = [one for one in asked if one[1].done() and one[0] not in bank.dead]
            if done:
                asked.remove(one := dice.choice(done))
                if one[1].exception() is None:
                    spent = dice.randint(0, one[2])
                    one[1].result().settle({"generated": spent})
                    bank.unsent[one[0]].append(call(spent))
                    paid += spent
        elif move < 0.7:
            bank.carry(worker_id, up=True)
        elif move < 0.9:
            bank.carry(worker_id, up=False)
        elif move < 0.98:
            bank.flush(worker_id)
        else:
            # What was sent to a server is paid, whoever dies: at most what was claimed.
            for one in [one for one in asked if one[0] == worker_id]:
                asked.remove(one)
                if one[1].done() and one[1].exception() is None:
                    paid += one[2]
                one[1].cancel()
            bank.die(worker_id)
        await asyncio.sleep(0)
    bank.deliver()
    bank.run_budget.close()
    for _, waits, _ in asked:
        if waits.done() and waits.exception() is None:
            waits.result().settle({"generated": 0})
        waits.cancel()
    await asyncio.gather(*(one[1] for one in asked), return_exceptions=True)
    for worker_id, engine in enumerate(bank.engines):
        if worker_id not in bank.dead:
            engine.give_back()
    bank.deliver()
    return paid, bank
