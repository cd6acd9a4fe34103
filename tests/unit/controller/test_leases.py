"""Leases: workers spend from them, the run budget's ledger is the truth, and a limit holds whichever process dies."""

from __future__ import annotations

import asyncio
import random

import pytest
from bank import Bank, call
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.controller.budget import cost_of_call
from trunkline.llm.pricing import EVERYWHERE, Price
from trunkline.rollout.budget import Budget
from trunkline.rollout.task_budget import BudgetDenied as NotPaid


async def test_leases_shrink_as_the_limit_comes_near_and_who_comes_too_late_is_denied():
    bank = Bank(2, Budget(calls=16))
    leases: dict[int, int] = {}
    for turn in range(16):
        claim = await (await bank.claim(turn % 2, {"calls": 1}))
        claim.settle({"calls": 1})
        lease = bank.engines[turn % 2]._lease
        leases[lease.number] = lease.ledger.limits["calls"]
    # A quarter of what is left, rounded up: of 16, of 12, of 9 ...
    sizes = list(leases.values())
    assert sizes[:3] == [4, 3, 3]
    assert sizes == sorted(sizes, reverse=True)
    with pytest.raises(NotPaid, match="run budget: 1 calls wanted, 0 left of 16"):
        await (await bank.claim(0, {"calls": 1}))
    for engine in bank.engines:
        engine.give_back()
    bank.deliver()
    report = bank.run_budget.report()
    assert (report.spent, report.estimated, report.refused) == ({"calls": 16}, {"calls": 0}, 1)
    assert report.closed == "run budget: 1 calls wanted, 0 left of 16"


async def test_who_is_short_gets_what_others_hold_and_do_not_use():
    bank = Bank(2, Budget(generated=100))
    (await (await bank.claim(0, {"generated": 5}))).settle({"generated": 5})
    # The first lease of 25 has 20 left. The other engine needs 90 of the 95 that nobody has spent.
    claim = await (await bank.claim(1, {"generated": 90}))
    claim.settle({"generated": 1})
    assert bank.engines[0]._lease is None, "recalled"
    assert bank.run_budget.closed is None


async def test_who_is_short_waits_until_what_is_in_flight_has_settled():
    bank = Bank(2, Budget(generated=100))
    flying = await (await bank.claim(0, {"generated": 60}))
    waiting = await bank.claim(1, {"generated": 70})
    assert not waiting.done(), "40 are left, and 60 in flight may cost less"
    flying.settle({"generated": 30})
    bank.deliver()
    await asyncio.sleep(0)
    assert waiting.done()
    (await waiting).settle({"generated": 70})


async def test_a_claim_that_is_given_up_while_it_waits_gives_back_what_it_got():
    bank = Bank(1, Budget(calls=2))
    asked = asyncio.ensure_future(bank.engines[0].claim({"calls": 1}))
    await asyncio.sleep(0)
    bank.deliver()
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    for _ in range(2):
        (await (await bank.claim(0, {"calls": 1}))).settle({"calls": 1})
    bank.engines[0].give_back()
    bank.deliver()
    assert bank.run_budget.report().spent == {"calls": 2}


async def test_a_dead_engine_is_charged_what_is_in_the_file_and_at_most_a_step_more_than_it_drew():
    bank = Bank(2, Budget(generated=1600))
    for _ in range(3):
        claim = await (await bank.claim(0, {"generated": 10}))
        claim.settle({"generated": 10})
        bank.unsent[0].append(call(10))
    bank.flush(0)
    await (await bank.claim(0, {"generated": 10}))  # in flight when it dies
    bank.kill(0)
    report = bank.run_budget.report()
    # 30 are in the file. The lease is a quarter, 400; it is drawn in steps of 400 / 8: it told 10 + 50 at first.
    assert report.spent == {"generated": 60}
    assert report.estimated == {"generated": 30}
    assert not bank.run_budget.leases_out


async def test_calls_of_leases_that_were_repaid_are_charged_once():
    bank = Bank(1, Budget(calls=8))
    for _ in range(6):
        claim = await (await bank.claim(0, {"calls": 1}))
        claim.settle({"calls": 1})
        bank.unsent[0].append(call(0))
    bank.flush(0)
    bank.kill(0)
    spent = bank.run_budget.report().spent["calls"]
    assert 6 <= spent <= 8


def test_money_in_the_file_is_what_the_price_says():
    prices = {EVERYWHERE: Price(prompt=2, generated=3)}
    assert cost_of_call(call(10, 100), prices)["micro_dollars"] == 230
    assert cost_of_call(call(-1, -1, draws=0), prices) == {"calls": 1}


@given(st.integers(0, 2**32), st.integers(1, 4), st.booleans())
@settings(max_examples=60)
def test_whatever_happens_the_limit_is_kept_and_everything_that_was_spent_is_counted(seed: int, n: int, kills: bool):
    dice = random.Random(seed)
    limit = dice.randint(60, 600)
    paid, bank = asyncio.run(_play(dice, n, limit, kills=kills))
    report = bank.run_budget.report()
    assert paid <= limit
    assert paid <= report.spent["generated"] <= limit
    assert report.overshoot == {"generated": 0}
    assert report.spent["generated"] - report.estimated["generated"] <= paid
    assert not bank.run_budget.leases_out


async def _play(dice: random.Random, n: int, limit: int, *, kills: bool) -> tuple[int, Bank]:
    """Claim, settle, send and die by chance; returns what was paid, and the bank."""
    bank = Bank(n, Budget(generated=limit))
    flying: list[tuple[int, object, int]] = []
    paid = 0
    for _ in range(120):
        alive = [worker_id for worker_id in range(n) if worker_id not in bank.dead]
        if not alive:
            break
        move = dice.random()
        if move < 0.5:
            worker_id, most = dice.choice(alive), dice.randint(1, 40)
            asked = await bank.claim(worker_id, {"generated": most})
            if asked.done() and asked.exception() is None:
                flying.append((worker_id, asked.result(), most))
            else:
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
        elif move < 0.95 and flying:
            worker_id, claim, most = flying.pop(dice.randrange(len(flying)))
            if worker_id not in bank.dead:
                spent = dice.randint(0, most)
                claim.settle({"generated": spent})
                bank.unsent[worker_id].append(call(spent))
                paid += spent
        elif kills and move > 0.98:
            bank.kill(dice.choice(alive))
        else:
            bank.flush(dice.choice(alive))
        bank.deliver()
    bank.run_budget.close()
    for worker_id, claim, _ in flying:
        if worker_id not in bank.dead:
            claim.settle({"generated": 0})
    for worker_id, engine in enumerate(bank.engines):
        if worker_id not in bank.dead:
            engine.give_back()
    bank.deliver()
    return paid, bank
