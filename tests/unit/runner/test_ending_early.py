"""Runs that end early and go on later, over pools of tasks and under filters: what their files say."""

from __future__ import annotations

from pathlib import Path

from atlas import agent, tasks
from spending import Clerk

from trunkline._core import base_seed
from trunkline.llm.request import Sampling
from trunkline.rollout.budget import Budget
from trunkline.runner.result import Run
from trunkline.runner.run import arun
from trunkline.scoring.filters.builtin import OverlongPenalty, ZeroVariance
from trunkline.scoring.notes import penalty, read
from trunkline.scoring.rewards import exact_match
from trunkline.store.reader import RunReader
from trunkline.strategies.chain import Chain

SEED = 3
FIRST = {base_seed(SEED, task.id, [], 0): task.reference for task in tasks()}


def draw(seed: int) -> int:
    """Which draw of a question a seed is for."""
    return next(seed - first for first in FIRST if 0 <= seed - first < 100)


async def played(path: Path, clerk: Clerk, **options: object) -> Run:
    who = agent(sampling=Sampling(max_tokens=50))
    given = {"llm": clerk, "workers": 0, "reward": exact_match, "seed": SEED} | options
    result = await arun(who, **({"tasks": tasks()} if "start_from" not in options else {}), **given, out=path)
    with RunReader.open(path) as reader:
        assert reader.check() == []
    return result


def right(wanted: range) -> Clerk:
    """Answers those draws, the even ones with the truth; never the others."""

    def answer(seed: int) -> tuple[int, str]:
        first = next(first for first in FIRST if 0 <= seed - first < 100)
        return 0, FIRST[first] if (seed - first) % 2 == 0 else "no"

    return Clerk(ticks=lambda seed: 0 if draw(seed) in wanted else None, answer=answer)


async def test_a_tail_that_was_kept_is_continued_under_a_budget_of_its_own(tmp_path: Path):
    options = {"strategy": Chain(4), "enough": 2, "cut_tail": "keep", "filters": [ZeroVariance(single=False)]}
    earlier = await played(tmp_path / "a", right(range(2)), **options)
    before = earlier.summary()
    assert (before.ended, before.terminations["answer"]) == ({"enough": 5}, 10)
    assert [len(tree.core.growing) for tree in earlier] == [2] * 5
    # Two of each task go on, and one more each: 15 turns, and 5 rollouts that are started.
    budget = Budget(calls=15, rollouts=5)
    clerk = right(range(9))
    later = await played(tmp_path / "b", clerk, strategy=Chain(1), continue_from=earlier, budget=budget)
    after = later.summary()
    assert (later.state, after.ended, after.terminations) == ("done", {"finished": 5}, {"answer": 25})
    assert after.budget.spent == {"rollouts": 5, "calls": 15}
    assert (clerk.asked, after.budget.refused) == (15, 0)
    everything = await played(tmp_path / "c", right(range(9)), strategy=Chain(5))
    assert [tree.digest() for tree in later] == [tree.digest() for tree in everything]


async def test_rollouts_that_are_cut_do_not_make_a_group_one_to_train_on(tmp_path: Path):
    # Of three draws the second and third are cut: the one that is left has no variance, so no group is kept.
    alike = await played(
        tmp_path / "a", right(range(1)), strategy=Chain(3), enough=1, filters=[ZeroVariance(single=False)], groups=2
    )
    assert (alike.state, alike.summary().groups_kept) == ("exhausted", 0)
    # Two of them differ: the groups are kept as soon as both are there.
    differ = await played(
        tmp_path / "b", right(range(2)), strategy=Chain(3), enough=2, filters=[ZeroVariance(single=False)], groups=2
    )
    assert (differ.state, differ.summary().groups_kept) == ("done", 2)
    assert differ.summary().ended == {"enough": 2}


async def test_a_settled_task_is_kept_or_dropped_by_what_it_has(tmp_path: Path):
    strategy, filters = Chain(4, wave=1), [ZeroVariance(single=False)]
    result = await played(
        tmp_path / "a", right(range(4)), strategy=strategy, stop_when=1.0, filters=filters, groups=1, max_tasks=3
    )
    # The first draw is right, and settles it: a group of one.
    assert (result.state, result.summary().ended) == ("exhausted", {"settled": 3})
    assert result.summary().rollouts == 3


async def test_what_a_filter_said_of_half_a_group_is_not_said_of_the_whole_one(tmp_path: Path):
    filters = [ZeroVariance(single=False)]
    earlier = await played(
        tmp_path / "a", right(range(1)), strategy=Chain(3), enough=1, cut_tail="keep", filters=filters
    )
    assert earlier.summary().groups_kept == 0
    later = await played(tmp_path / "b", right(range(9)), strategy=Chain(1), continue_from=earlier, filters=filters)
    assert later.summary().groups_kept == 5


async def test_a_penalty_of_an_earlier_run_is_not_paid_twice(tmp_path: Path):
    # Turns have 10 tokens; half of the last 10 of 15 are over: a penalty of 0.5.
    filters = [OverlongPenalty(length=15, buffer=10)]
    earlier = await played(tmp_path / "a", right(range(9)), strategy=Chain(1), filters=filters)
    later = await played(tmp_path / "b", right(range(9)), strategy=Chain(1), continue_from=earlier, filters=filters)
    for tree in later:
        assert [penalty(read(rollout.note)) for rollout in tree.rollouts] == [-0.5, -0.5]
