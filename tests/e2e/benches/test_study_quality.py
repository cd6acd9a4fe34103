"""Estimators beside what they estimate, and how many tries rollouts are worth."""

from __future__ import annotations

import itertools
import math
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from study_agents import compiled_agent

from studies.cell import POOL, Group
from studies.compare import compare, effective
from studies.engine import SimLLM
from studies.estimators import ESTIMATORS, Guess, guesses
from studies.growth import grow
from studies.quality import qualities
from studies.tries import TOKENS, Try
from studies.truth import Step, Worth
from trunkline.sim.server.options import Settings
from trunkline.strategies.tree_grpo import TreeGRPO


def group(arm, rewards, seed=0, question="q", tokens=10, found=()):
    tries = [Try(reward, str(reward), tokens, 0, 0) for reward in rewards]
    return Group("default", seed, question, "lookup 1", arm, tries, 0, list(found))


async def test_every_estimator_has_a_target_and_says_something_of_every_step(lookups):
    tree = await grow(lookups[0], compiled_agent(), TreeGRPO(), SimLLM(Settings()), 5)
    turns = [node.id for node in tree.rollouts[0].nodes if node.finish]
    start, state, after = Worth(0.5, 0.01), Worth(0.4, 0.02), Worth(0.7, 0.03)
    found = guesses(tree, [Step(turns[1], (start, state), after)])
    assert [guess.estimator for guess in found] == [estimator.name for estimator in ESTIMATORS]
    true = {guess.estimator: (guess.true, guess.error) for guess in found}
    # V(s') - V(s) and V(s') - V(root): variances add up.
    assert true["leaf mean, local"] == true["SPO"] == pytest.approx((0.3, 0.05))
    assert true["leaf mean, global"] == true["RLOO"] == pytest.approx((0.2, 0.04))
    # Twice V(s') less the two others.
    assert true["TreeRL, undamped"] == pytest.approx((0.5, 4 * 0.03 + 0.02 + 0.01))
    assert true["TreePO"] == pytest.approx((0.7 - 0.45, 0.03 + 0.02 / 4 + 0.01 / 4))
    # At V = 0.5 the deviation is 0.5 and does not move: both slopes are 2.
    assert true["GRPO"] == pytest.approx((0.4, 4 * 0.01 + 4 * 0.03), rel=1e-3)
    assert true["Tree-GRPO"] == pytest.approx((0.8, 16 * 0.04), rel=1e-3)
    assert true["ARPO, hard"] == true["GRPO"]
    values = {guess.estimator: guess.value for guess in found}
    node = tree.node(turns[1])
    assert values["leaf mean, local"] == pytest.approx(node.value - node.parent.value)
    assert values["leaf mean, global"] == pytest.approx(node.value - tree.reward)
    assert values["TreePO"] == pytest.approx(treepo(tree, turns[1]))


def treepo(tree, turn):
    """Of the rollouts through a turn, the mean over depths of the reward less the mean of those with equal turns."""
    paths = [([node.id for node in one.nodes if node.finish], one.reward) for one in tree.rollouts]
    found = []
    for path, reward in paths:
        groups = [[other for turns, other in paths if turns[:depth] == path[:depth]] for depth in range(len(path) + 1)]
        if turn in path:
            found.append(fmean(reward - fmean(alike) for alike in groups if len(alike) > 1))
    return fmean(found)


async def test_a_standardised_advantage_of_a_sure_question_has_no_target(lookups):
    tree = await grow(lookups[0], compiled_agent(), TreeGRPO(), SimLLM(Settings()), 5)
    turn = next(node.id for node in tree.rollouts[0].nodes if node.finish)
    found = guesses(tree, [Step(turn, (Worth(1.0, 0.0),), Worth(1.0, 0.0))])
    assert {"GRPO", "Tree-GRPO", "ARPO, hard"}.isdisjoint(guess.estimator for guess in found)
    assert len(found) == len(ESTIMATORS) - 3


def test_bias_error_slope_and_sign_are_those_of_the_steps():
    name = ESTIMATORS[0].name
    found = [
        [Guess(name, 0.5, 0.25, 0.01), Guess(name, 0.0, -0.5, 0.01)],
        [Guess(name, -0.1, 0.05, 0.0), Guess(name, -0.2, -0.3, 0.01)],
    ]
    groups = [group("a", [1.0], question=str(place), found=each) for place, each in enumerate(found)]
    judged = qualities(groups, "a")[0]
    assert judged.steps == 4
    # Errors 0.25, 0.5, -0.15, 0.1.
    assert judged.bias.value == pytest.approx((0.25 + 0.5 - 0.15 + 0.1) / 4)
    assert judged.error.value == pytest.approx((0.0625 + 0.25 + 0.0225 + 0.01 - 0.03) / 4)
    # Products 0.125, 0, -0.005, 0.06 over squares 0.0625 + 0.25 + 0.0025 + 0.09 less what truth is uncertain by.
    assert judged.slope.value == pytest.approx(0.18 / (0.405 - 0.03))
    # Right, half right, too small to count, right.
    assert judged.sign.value == pytest.approx(2.5 / 3)
    assert math.isnan(qualities(groups, "b")[0].bias.value)


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=4),
            st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=5),
        ),
        min_size=2,
        max_size=6,
    )
)
def test_the_correlation_of_rollouts_is_that_of_all_pairs(questions):
    groups = []
    above = below = 0.0
    for place, (rewards, pool) in enumerate(questions):
        groups += [group("a", rewards, question=str(place)), group(POOL, pool, question=str(place))]
        pairs = list(itertools.permutations(rewards, 2))
        chains = list(itertools.permutations(pool, 2))
        # Over two rollouts and two different chains, which stand for the question's own mean.
        products = [(one - mine) * (other - theirs) for one, other in pairs for mine, theirs in chains]
        above += math.fsum(products) / len(products)
        below += math.fsum(mine * (1 - theirs) for mine, theirs in chains) / len(chains)
    found = effective(groups, "a")
    if below == 0:
        assert math.isnan(found.rho.value)
    else:
        assert found.rho.value == pytest.approx(above / below, abs=1e-9)
        size = math.fsum(len(rewards) for rewards, _ in questions) / len(questions)
        design = 1 + (size - 1) * above / below
        assert found.tries.value == (pytest.approx(size / design) if design > 1e-9 else found.tries.value)


def test_rollouts_that_are_always_alike_are_worth_one_try():
    # Each question is right in one try of two; its four rollouts are copies of one.
    groups = []
    for place in range(8):
        groups.append(group("a", [float(place % 2)] * 4, question=str(place)))
        groups.append(group(POOL, [0.0, 1.0] * 200, question=str(place)))
    assert effective(groups, "a").tries.value == pytest.approx(1.0, abs=0.01)


def test_what_an_arm_is_worth_in_chains_is_read_off_the_other_worlds():
    def study(tokens):
        groups = []
        for seed in (1, 2, 3):
            for question in "abc":
                size = tokens if seed == 1 else 10
                groups.append(group("a", [1.0, 0.0, 1.0], seed, question, size))
                groups.append(group(POOL, [1.0, 0.0, 1.0, 1.0, 0.0], seed, question, 10))
        return compare(groups, "a", TOKENS)

    assert study(10).chains == pytest.approx(3)
    # World 1 costs 40 tokens a question, 4 chains: that moves the number of the two others, each by half, not its own.
    moved = study(40 / 3)
    assert moved.chains == pytest.approx((3 + 3.5 + 3.5) / 3)
    assert moved.cost.value == pytest.approx((40 + 30 + 30) / 3)
    assert study(10).gain["single"].value == pytest.approx(2 / 3 - 3 / 5)
