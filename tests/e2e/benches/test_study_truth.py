"""The truth, where it is known beforehand."""

from __future__ import annotations

import math

import pytest
from study_agents import compiled_agent

from studies.engine import SimLLM
from studies.growth import grow
from studies.null import check, deciding_turn, draws_of
from studies.tries import Measures, measure, tries_of
from studies.truth import true_steps, true_values
from trunkline.sim.server.options import Settings
from trunkline.strategies.base import prompt
from trunkline.strategies.chain import Chain
from trunkline.strategies.tree_grpo import TreeGRPO


async def plant(task, strategy, preset="null", seed=5):
    return await grow(task, compiled_agent(preset), strategy, SimLLM(Settings()), seed)


async def test_a_question_of_the_null_preset_is_worth_a_half_until_it_is_decided_and_then_all_or_nothing(lookups):
    for task in lookups[:2]:
        tree = await plant(task, Chain(6))
        turn = deciding_turn(task.question, tree)
        before = tree.digest()
        steps = await true_steps(tree, tree.rollouts[2], compiled_agent("null"), 99, {}, 32)
        assert tree.digest() == before
        # The states that lead up to the decision, then those behind it. Four deviations of 32 even draws are 0.36.
        for step in steps[: turn + 1]:
            assert step.before[-1].value == pytest.approx(0.5, abs=0.36)
            assert step.before[-1].error == pytest.approx(0.25 / 31, rel=0.6)
        for step in steps[turn:]:
            assert step.after.value == tree.rollouts[2].reward
            assert step.after.error == 0
        assert [len(step.before) for step in steps] == list(range(1, len(steps) + 1))


async def test_the_prompt_is_worth_a_half_over_256_continuations(lookups):
    tree = await plant(lookups[0], Chain(1))
    (worth,) = await true_values(tree, [prompt(tree.core)], compiled_agent("null"), 99)
    # A deviation is 1/32.
    assert worth.value == pytest.approx(0.5, abs=4 / 32)
    assert tree.core.rollouts == 257


async def test_states_that_are_known_are_not_continued_again(lookups):
    tree, other = [await plant(lookups[0], Chain(2), "default") for _ in range(2)]
    known = {}
    first = await true_steps(tree, tree.rollouts[0], compiled_agent(), 99, known, 8)
    again = await true_steps(other, other.rollouts[0], compiled_agent(), 100, known, 8)
    assert first == again
    assert len(known) == len(first)


async def test_rollouts_that_share_the_deciding_draw_are_right_or_wrong_together(tasks):
    shared = 0
    for task in tasks[:14]:
        pool = await plant(task, Chain(12))
        turn = deciding_turn(task.question, pool)
        tree = await plant(task, TreeGRPO(trees=1, forks=4, rounds=2), seed=7)
        rewards = {}
        for rollout in tree.rollouts:
            forks = tuple(zip(rollout.path[::2], rollout.path[1::2], strict=True))
            rewards.setdefault(tuple(fork for fork in forks if fork[0] <= turn), set()).add(rollout.reward)
        assert all(len(found) == 1 for found in rewards.values())
        assert draws_of(tree, turn) == len(rewards) <= tree.core.rollouts
        shared += tree.core.rollouts - len(rewards)
        assert draws_of(pool, turn) == 12
    assert shared > 10


def test_a_check_compares_with_what_theory_says():
    groups = [Measures(2, 0.5, 0.5, 1.0, 1.0), Measures(2, 0.0, 0.0, 0.0, 0.0)] * 50
    single, majority, passed = check("a", groups, [2, 2] * 50, family=3)
    assert (single.theory, majority.theory, passed.theory) == (0.5, 0.5, 0.75)
    assert single.found.value == 0.25
    # The errors of 0.25 and 0.5 are eight and more deviations off.
    assert not single.passed
    assert passed.found.value == 0.5
    assert passed.found.high == pytest.approx(0.5 + 2.39398 * math.sqrt(0.75 * 0.25 / 100), rel=1e-4)
    assert not passed.passed


def test_where_draws_may_depend_on_each_other_groups_are_all_right_as_often_as_all_wrong():
    mixed, right, wrong = (Measures(2, value, value, *rest) for value, *rest in [(0.5, 1, 1), (1, 1, 0), (0, 0, 0)])
    *_, even = check("a", [mixed, mixed, right, wrong] * 25, None, family=1)
    # 50 of 100 are mixed and pass; of the other 50 one half does, give or take sqrt(50 / 4).
    assert (even.theory, even.found.value) == (0.75, 0.75)
    assert even.found.high - even.found.value == pytest.approx(1.96 * math.sqrt(50 / 4) / 100, rel=1e-4)
    *_, odd = check("a", [mixed, mixed, right, right] * 25, None, family=1)
    assert (odd.theory, odd.found.value, odd.passed) == (0.75, 1.0, False)


async def test_a_strategy_that_looks_at_labels_fails_the_check(tasks):
    groups, draws = [], []
    for task in tasks[:24]:
        pool = await plant(task, Chain(6))
        kept = sorted(tries_of(pool), key=lambda each: -each.reward)[:2]
        groups.append(measure(kept))
        draws.append(2)
    assert not all(one.passed for one in check("cheat", groups, draws, 3))
    honest = [measure(tries_of(await plant(task, Chain(2), seed=8))) for task in tasks[:24]]
    assert all(one.passed for one in check("honest", honest, draws, 3))
