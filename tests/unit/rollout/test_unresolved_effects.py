"""Calls with side effects in trees that break off anywhere, whatever the strategy: none ever runs twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from functools import partial

import pytest
from breaking import Grown, Setting, check
from every_strategy import STRATEGIES
from notebook import Paper
from recorder import replayed
from worlds import Model, World, worth

from trunkline.llm.types import Reply, Request
from trunkline.rollout.budget import Budget
from trunkline.rollout.side_effects import unresolved_effects
from trunkline.strategies.base import Strategy
from trunkline.strategies.chain import Chain
from trunkline.strategies.stopping import Stopping
from trunkline.tools.calls import current_call
from trunkline.tools.tool import Tool, tool

RAN: Counter[str] = Counter()


async def _pay(what: str) -> str:
    RAN[current_call().id] += 1
    for _ in range(3):
        await asyncio.sleep(0)
    return f"paid {what}"


@tool(name="look", side_effects=True)
async def pay(what: str) -> str:
    """Pay for something, which takes a while.

    Args:
        what: What.
    """
    return await _pay(what)


@tool(name="look", side_effects=True)
async def pay_on_paper(what: str, paper: Paper) -> str:
    """Pay for something and write it down.

    Args:
        what: What.
    """
    paper.write(what)
    return await _pay(what)


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


WORLD = World(5, words=3, depth=4, stop=0.2)


def setting(
    strategy: Strategy, used: Tool = pay, agent: dict | None = None, order: int | None = 1, **options
) -> Setting:
    model = partial(Model, WORLD, order)
    return Setting(strategy, model, [used], {"max_turns": 4} | (agent or {}), reward=worth, **options)


def doubtful(deltas: list[bytes]) -> set[int]:
    """Who grows and has a call in doubt."""
    core = replayed(deltas)
    return unresolved_effects(core).keys() & set(core.growing)


def ends(grown: Grown) -> list[str | None]:
    return [termination for termination, *_ in grown.rollouts]


@pytest.mark.parametrize("name", STRATEGIES)
def test_no_call_runs_twice_and_who_is_in_doubt_ends_for_that(name: str):
    grows = setting(STRATEGIES[name])
    whole = grows.grow()
    undisturbed = dict(RAN)
    assert undisturbed
    luck = random.Random(name)
    for kept in luck.sample(range(len(whole.deltas) + 1), min(12, len(whole.deltas))):
        before = whole.deltas[:kept]
        doubted = doubtful(before)
        RAN.clear()
        RAN.update(dict.fromkeys(known(before), 1))
        again = grows.grow(before)
        assert max(RAN.values(), default=1) == 1, f"broken off after {kept} deltas"
        assert {n for n, end in enumerate(ends(again)) if end == "unknown_effect"} == doubted
        if not doubted:
            check(whole, before, again)


def known(deltas: list[bytes]) -> list[str]:
    """Ids of the calls that may have begun."""
    return [mark.partition('"id":"')[2][:32] for mark in replayed(deltas).marks() if mark.startswith('{"intent"')]


@tool(name="look", side_effects=True)
async def pay_for_ever(what: str) -> str:
    """Pay for something; the first payment takes until the tree is cut.

    Args:
        what: What.
    """
    if not RAN:
        RAN[current_call().id] += 1
        await asyncio.get_running_loop().create_future()
    return await _pay(what)


class OneUnanswered(Model):
    """A model that never answers its sixth request: the first turn of the last of six rollouts."""

    def __init__(self) -> None:
        super().__init__(WORLD, 1)

    async def complete(self, request: Request) -> Reply:
        if self.requests == 5:
            self.requests += 1
            await asyncio.get_running_loop().create_future()
        return await super().complete(request)


def cut_while_paying(**stopping: str) -> Setting:
    """A tree that is cut while one rollout pays and another asks."""
    return setting(Chain(6), pay_for_ever, stopping=Stopping(enough=1, **stopping))._replace(llm=OneUnanswered)


def test_who_was_cut_while_it_paid_is_in_doubt_wherever_it_goes_on():
    grows = cut_while_paying()
    whole = grows.grow()
    assert "unknown_effect" in ends(whole)
    assert "censored" in ends(whole)
    cut = next(n for n, data in enumerate(whole.deltas) if b'{"cut":"enough"' in data)
    for kept in range(cut + 1, len(whole.deltas) + 1):
        again = grows.grow(whole.deltas[:kept])
        assert ends(again) == ends(whole), f"broken off after {kept} deltas"
        assert again.ending == whole.ending


def test_who_is_kept_when_it_was_cut_stays_as_it_is_and_is_in_doubt_in_the_next_run():
    grows = cut_while_paying(cut_tail="keep")
    whole = grows.grow()
    doubted = doubtful(whole.deltas)
    assert doubted
    assert {ends(whole)[number] for number in doubted} == {None}
    assert ends(grows.grow(whole.deltas)) == ends(whole)
    later = setting(Chain(1)).grow(whole.deltas, len(whole.deltas))
    assert {ends(later)[number] for number in doubted} == {"unknown_effect"}


@pytest.mark.parametrize("limits", [{"max_tool_calls": 0}, {"environment": Paper}])
def test_a_doubt_comes_before_whatever_else_would_end_the_rollout(limits: dict):
    used = pay_on_paper if "environment" in limits else pay
    agent = {"environment": Paper} if "environment" in limits else {}
    whole = setting(Chain(2), used, agent, None).grow()
    kept = next(n for n in range(len(whole.deltas)) if len(doubtful(whole.deltas[:n])) == 2)
    again = setting(Chain(2), used, limits).grow(whole.deltas[:kept])
    assert ends(again) == ["unknown_effect"] * 2


def test_what_was_paid_for_a_call_in_doubt_stays_spent():
    grows = setting(Chain(4), budget=Budget(tools=4))
    whole = grows.grow()
    kept = next(n for n in range(len(whole.deltas)) if len(doubtful(whole.deltas[:n])) == 4)
    before = whole.deltas[:kept]
    RAN.clear()
    again = grows.grow(before)
    assert set(ends(again)) == {"unknown_effect"}
    one = setting(Chain(5, wave=4), budget=Budget(tools=4)).grow(before)
    assert ends(one)[4] == "censored", "nothing was left for it"
    assert not RAN


def test_enough_are_enough_where_answers_are_there_already():
    """Some have answered and nobody was closed: the first to be closed cuts the others."""
    grows = setting(Chain(3), stopping=Stopping(enough=1))
    whole = setting(Chain(3)).grow()
    kept = max(n for n in range(len(whole.deltas) + 1) if not closed(whole.deltas[:n]))
    again = grows.grow(whole.deltas[:kept])
    assert again.ending.word == "enough"
    assert ends(again).count("answer") == 1


def closed(deltas: list[bytes]) -> bool:
    core = replayed(deltas)
    return len(core.growing) < core.rollouts
