"""All that a strategy may ask for, broken off after any delta: what forks say, stops, drops, values, environments."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from functools import partial

import pytest
from breaking import Setting, broken_anywhere, broken_often, check
from every_strategy import STRATEGIES, halfway
from goers import More
from notebook import Notebook, Paper, forget
from notebook import look as note_down
from recorder import replayed
from scripted import look
from worlds import Model, World, worth

from trunkline._core import TURN
from trunkline.llm.request import Sampling
from trunkline.llm.token_ids.base import TokenMode
from trunkline.llm.types import Reply, Request
from trunkline.rollout.budget import Budget
from trunkline.scoring.notes import Verdict
from trunkline.sim.tools import search, visit
from trunkline.strategies.base import Drop, Fork, Move, Stop, Strategy, View
from trunkline.strategies.chain import Chain
from trunkline.strategies.entropy_tree import EntropyTree
from trunkline.strategies.partial import Partial
from trunkline.strategies.stopping import Stopping
from trunkline.tools.calls import current_call
from trunkline.tools.tool import tool
from trunkline.types import Task

WORLD = World(7, words=4, depth=5, stop=0.15)


class Warm(Model):
    """A model that says something else at another temperature."""

    def _choice(self, body: dict, draw: int) -> dict[str, object]:
        return super()._choice(body | {"seed": body["seed"] + int(1000 * body.get("temperature", 0))}, draw)


class Rich:
    """Whatever a strategy may yield, in two rounds that follow from the tree."""

    value = staticmethod(halfway)

    def rollouts(self) -> int:
        return 12

    def start(self, view: View) -> Iterable[Fork]:
        yield Fork(n=2, sampling=Sampling(temperature=0.3))
        yield Fork(n=2, say="Be quick.", sampling=Sampling(temperature=0.6))
        yield Fork(n=2, steps=2)

    def stepped(self, view: View) -> Iterable[Move]:
        for rollout in view.rollouts:
            if rollout.turns == 2 and rollout.id % 2:
                yield Stop(rollout.id, "odd ones stop")
        if view.tree.core.rollouts == 6:
            point = view.rollouts[0].leaf.id
            yield Fork(point, n=2, steps=1, sampling=Sampling(temperature=0.9))
            yield Fork(point, n=1, say="Go on.", steps=1)

    def ended(self, view: View) -> Iterable[Move]:
        yield from (Drop(rollout.id, "it was short") for rollout in view.rollouts if rollout.turns < 3)


def setting(strategy: Strategy, **options) -> Setting:
    given = {"llm": partial(Warm, WORLD, 1), "tools": [look], "agent": {"max_turns": 5}, "reward": worth} | options
    return Setting(strategy, **given)


@pytest.mark.parametrize("budget", [None, Budget(calls=14), Budget(tokens=1000), Budget(tools=7)])
def test_all_moves(budget: Budget | None):
    whole = broken_anywhere(setting(Rich(), budget=budget))
    if budget is None:
        why = " ".join(error or "" for _, _, error, _ in whole.rollouts)
        assert "odd ones stop" in why
        assert "it took the steps it was given" in why
        assert any(whole.verdicts)
        assert any(error and "steps" in error and reward != "nan" for _, _, error, reward in whole.rollouts), "valued"


@pytest.mark.parametrize("environment", [Notebook, Paper])
@pytest.mark.parametrize("name", STRATEGIES)
def test_environments(name: str, environment: type):
    agent = {"max_turns": 5, "environment": environment, "max_tool_calls": 3}
    grows = setting(STRATEGIES[name], tools=[note_down], agent=agent)
    broken_often(grows, random.Random(name), 4)
    forget()


def test_who_was_done_when_others_were_cut_is_not_cut_elsewhere():
    """Two answer, and the one that closes its environment first is enough; of the others two ask and two look."""
    agent = {"max_turns": 5, "environment": Slow}
    grows = setting(
        Chain(6), llm=TwoAnswered, tools=[look_for_ever], agent=agent, reward=worth, stopping=Stopping(enough=1)
    )
    whole = grows.grow()
    settled = next(number for number, data in enumerate(whole.deltas) if b'{"cut":"enough"' in data)
    assert b'"spared":[' in whole.deltas[settled]
    assert [end for end, *_ in whole.rollouts].count("answer") == 2
    assert sorted(one for one in SEEN if one > 1) == [4, 5]
    for kept in range(settled + 1, len(whole.deltas) + 1):
        check(whole, whole.deltas[:kept], grows.grow(whole.deltas[:kept]))
    forget()


SEEN: set[int] = set()
"""Rollouts that have called the tool."""


class TwoAnswered(Warm):
    """A model that never answers the first requests of two rollouts."""

    def __init__(self) -> None:
        super().__init__(WORLD)

    async def complete(self, request: Request) -> Reply:
        if self.requests in {2, 3}:
            self.requests += 1
            await asyncio.get_running_loop().create_future()
        return await super().complete(request)


@tool(name="look")
async def look_for_ever(what: str, notes: Paper) -> str:
    """Write a word down; for two rollouts that takes until they are cut.

    Args:
        what: The word.
    """
    rollout = current_call().rollout
    SEEN.add(rollout)
    if rollout > 3:
        await asyncio.get_running_loop().create_future()
    return notes.write(what)


class Slow(Paper):
    """A notebook whose first one is not closed before another one is."""

    begun = False
    other = asyncio.Event()

    async def close(self) -> None:
        if Slow.begun:
            Slow.other.set()
        Slow.begun = True
        await Slow.other.wait()
        await super().close()


@pytest.mark.parametrize("api", ["completions", "generate"])
def test_forks_inside_turns(api: str, tasks: list[Task]):
    strategy = EntropyTree(chains=2, points=1, rounds=2, samples=2)
    sampling = Sampling(max_tokens=2000)
    grows = Setting(strategy, None, [search, visit], {"max_turns": 6}, sampling, task=tasks[1], mode=TokenMode(api=api))
    whole = broken_often(grows, random.Random(api), 8)
    assert any(b'"at":' in data for data in whole.deltas)


@pytest.mark.parametrize("dialect", ["native", "hermes"])
def test_dialects(dialect: str, tasks: list[Task]):
    agent = {"max_turns": 8, "dialect": dialect}
    grows = Setting(Chain(2), None, [search, visit], agent, Sampling(max_tokens=2000), task=tasks[1],
                    mode=TokenMode(api="chat"))  # fmt: skip
    broken_often(grows, random.Random(dialect), 5)


@pytest.mark.parametrize("strategy", [Chain(2), More(1), Partial(top_k=1, samples=2, budget=5, region="all")])
@pytest.mark.parametrize("seed", range(6))
def test_runs_that_go_on_from_another(strategy: Strategy, seed: int):
    luck = random.Random(seed)
    deltas = setting(Rich()).grow().deltas
    earlier = deltas[: luck.randint(0, len(deltas))]
    grows = setting(strategy, budget=[None, Budget(calls=10), Budget(rollouts=1)][seed % 3])
    broken_often(grows, luck, 4, earlier)


class Nobody(More):
    """Goes on with what is there, and begins nothing of its own."""


def test_what_forks_of_an_earlier_run_said_still_holds():
    """Its strategy is not asked any more, but who had not begun is sampled as it said, and takes the steps it said."""
    first = setting(Chain(4, temperatures=(0.2, 0.9)))
    whole = first.grow()
    for kept in range(2, len(whole.deltas) + 1):
        before = whole.deltas[:kept]
        again = setting(Nobody(0)).grow(before, kept)
        core = replayed(before)
        if core.rollouts:
            assert again.same == whole.same
            assert again.asked == whole.asked - sum(core.node(node).kind == TURN for node in range(len(core)))


def test_what_filters_said_is_said_once():
    class Twice:
        """Says something of every rollout."""

        def judge(self, group):
            return [(rollout.id, Verdict("twice", "mask")) for rollout in group.rollouts]

    whole = broken_anywhere(setting(Chain(2), filters=[Twice()]))
    assert [len(said) for said in whole.verdicts] == [1, 1]
