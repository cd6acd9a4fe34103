"""The marks that sessions leave in trees: what is in them, who skips what, and what damage does."""

from __future__ import annotations

import asyncio
import json
import random
from functools import partial

import pytest
from breaking import Setting, broken_often
from recorder import replayed
from scripted import Say, grow, look
from worlds import Model, World

from trunkline._core import CoreTree
from trunkline.errors import TreeError
from trunkline.llm.pricing import EVERYWHERE, Price
from trunkline.llm.request import Sampling
from trunkline.llm.types import Reply, Request
from trunkline.rollout.budget import Budget
from trunkline.rollout.checkpoint import CarriedOver, Checkpoint, ForkRecord, RoundMark, ServedMark, SpentMark, write
from trunkline.rollout.growth import Barrier
from trunkline.rollout.task_budget import BudgetSources, TaskBudget
from trunkline.strategies.chain import Chain
from trunkline.strategies.tree_grpo import TreeGRPO

WORLD = World(5, words=3, depth=5, stop=0.2)


class Slow(Model):
    """A model whose turns are on the tree a while before anybody is told of them."""

    async def complete(self, request: Request) -> Reply:
        reply = await super().complete(request)
        for _ in range(3):
            await asyncio.sleep(0)
        return reply


def test_a_round_says_what_the_tree_does_not():
    whole = Setting(Chain(4, temperatures=(0.5, 1.0), wave=2), partial(Model, WORLD), [look]).grow()
    marks = [json.loads(mark) for mark in replayed(whole.deltas).marks()]
    assert marks == [
        {"round": 0, "forks": [{"first": 0, "n": 2, "sampling": {"temperature": 0.5}}]},
        {"round": 1, "told": [0, 1], "forks": [{"first": 2, "n": 2, "sampling": {"temperature": 1.0}}]},
    ]


def test_plain_chains_leave_one_mark():
    whole = Setting(Chain(4), partial(Model, WORLD), [look]).grow()
    assert replayed(whole.deltas).marks() == ['{"round":0}']


@pytest.mark.parametrize("currency", ["calls", "tokens", "money"])
@pytest.mark.parametrize("seed", range(3))
def test_a_turn_whose_cost_nobody_wrote_down_costs_what_the_tree_says(currency: str, seed: int):
    limit = {"calls": 12, "tokens": 1500, "money": 0.0015}[currency]
    prices = {EVERYWHERE: Price(prompt=1, generated=2)}
    strategy = TreeGRPO(trees=2, forks=2, rounds=2)
    grows = Setting(strategy, partial(Slow, WORLD, seed), [look], budget=Budget(**{currency: limit}), prices=prices)
    whole = broken_often(grows, random.Random(seed), 12)
    assert whole.ending.word == "budget"


async def test_marks_of_others_are_skipped():
    core = CoreTree()
    core.mark('{"toast":"a call","round":"of drinks"}')
    core.mark("no JSON at all")
    tree, _ = await grow(Chain(1), lambda conversation, seed: Say("1", final=True), core=core)
    assert tree.rollouts[0].answer == "1"


@pytest.mark.parametrize("text", ['{"round":"x"}', '{"cut":1}', '{"served":', '{"round":0,"forks":[{"first":0}]}'])
def test_a_damaged_mark_is_an_error_that_names_it(text: str):
    core = CoreTree()
    core.mark('{"round":0}')
    core.mark(text)
    with pytest.raises(TreeError, match="mark 1 of the tree is damaged"):
        Checkpoint(core, CarriedOver())


def test_who_was_served_and_has_not_moved_is_served_again_and_spends_once():
    core = CoreTree()
    point = core.append(0, 1, b'{"role":"user","content":"?"}')
    for draw in range(3):
        core.open(point, [0, draw])
    write(core, ServedMark({0: point, 1: point}, {2: "task budget: no more"}))
    write(core, SpentMark({"calls": 1}, 0))
    core.turn(0, b'{"role":"assistant","content":"hm"}', 0, 0, 0, 10, 0, 5, 0, 1)
    write(core, SpentMark({"calls": 1}, 1))  # failed, and broke off before that was on record
    past = Checkpoint(core, CarriedOver())
    assert past.decided == {1: None, 2: "task budget: no more"}
    assert past.spent == {"calls": 1}
    assert past.unsettled == {}
    write(core, ServedMark({}))
    assert Checkpoint(core, CarriedOver()).spent == {"calls": 2}


def test_what_an_earlier_run_decided_is_not_this_ones_but_for_its_forks():
    core = CoreTree()
    point = core.append(0, 1, b'{"role":"user","content":"?"}')
    core.open(point, [0, 0])
    fork = ForkRecord(0, 1, steps=2, sampling=Sampling(temperature=0.1))
    write(core, RoundMark(0, (), {0: 1}, {}, (fork,)))
    write(core, SpentMark({"calls": 1}, 0))
    past = Checkpoint(core, CarriedOver.of(core))
    assert (past.last, past.told, past.spent, past.released) == (None, set(), {}, set())
    assert past.fork(0) == fork


async def test_a_grant_holds_though_others_cost_more_than_was_set_aside():
    core = CoreTree()
    point = core.append(0, 1, b'{"role":"user","content":"?"}')
    for draw in range(2):
        core.open(point, [0, draw])
    write(core, ServedMark({0: point, 1: point}))
    write(core, SpentMark({"calls": 9}, 0))
    core.close(0, "answer")
    task_budget = TaskBudget(
        BudgetSources(Budget(tools=1, calls=3), None, {}), core, Barrier(), Checkpoint(core, CarriedOver())
    )
    granted, further = (asyncio.ensure_future(task_budget.tools(1, 2)) for _ in range(2))
    await asyncio.sleep(0.01)
    assert granted.done()
    assert granted.exception() is None
    assert not further.done(), "a grant is for once; who wants more waits for its turn"
    further.cancel()
