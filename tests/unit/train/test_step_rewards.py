"""Estimators with steps take what environments gave for each turn, and the rest of the reward with the last."""

from __future__ import annotations

import json
import math
from array import array

import pytest
from groves import Try, grove, said
from hypothesis import given
from hypothesis import strategies as st

import trunkline as tl
from trunkline._core import estimate
from trunkline.scoring.rewards.base import step_sum
from trunkline.tree.views import Tree

STEP = st.none() | st.floats(-10, 10)
ROLLOUTS = st.lists(st.tuples(st.lists(STEP, min_size=1, max_size=4), st.floats(-5, 5)), min_size=2, max_size=5)


def mark(tree: Tree, rollout: int, turn: int, reward: float | None, ended: str = "") -> None:
    tree.core.mark(json.dumps({"step": [rollout, turn], "reward": reward, "ended": ended}))


def walked(rollouts: list[tuple[list[float | None], float]]) -> Tree:
    """Chains that share no turn, with the step rewards and the rewards that these have."""
    tries = [
        Try([f"{number}.{turn}" for turn in range(len(steps))], own) for number, (steps, own) in enumerate(rollouts)
    ]
    tree = grove(tries)
    for number, (steps, _) in enumerate(rollouts):
        for turn, reward in enumerate(steps):
            if reward is not None:
                mark(tree, number, turn, reward)
    return tree


@given(ROLLOUTS, st.sampled_from([1.0, 0.9, 0.5]), st.booleans())
def test_gigpo_returns_come_from_step_rewards(rollouts, gamma, by_call):
    tree = walked(rollouts)
    rewards, steps = array("d"), array("d")
    groups, trajectories, anchors = array("I"), array("I"), array("I")
    for number, (given_steps, own) in enumerate(rollouts):
        found = [reward or 0.0 for reward in given_steps]
        found[-1] += own - math.fsum(found)
        assert math.fsum(found) == pytest.approx(own)
        for turn, reward in enumerate(found):
            rewards.append(own)
            steps.append(reward)
            groups.append(0)
            trajectories.append(number)
            anchors.append(0 if not turn else 1 + 10 * number + turn)
    expected, _ = estimate(
        "gigpo_mean", rewards, group=groups, trajectory=trajectories, anchor=anchors, step_rewards=steps, gamma=gamma
    )
    if by_call:
        values = tl.train.rows([tree], estimator="gigpo_mean", shared="repeat", gamma=gamma)["advantage"]
    else:
        values = [s.advantage for s in tl.train.turns([tree], estimator="gigpo_mean", shared="repeat", gamma=gamma)]
    assert list(values) == pytest.approx([0.0 if math.isnan(value) else value for value in expected])


@given(ROLLOUTS)
def test_a_sample_has_the_reward_of_its_step(rollouts):
    tree = walked(rollouts)
    expected = [math.nan if reward is None else reward for steps, _ in rollouts for reward in steps]
    samples = list(tl.train.turns([tree], estimator="dr_grpo", shared="once"))
    assert [s.step_reward for s in samples] == pytest.approx(expected, nan_ok=True)
    for rollout, (steps, _) in zip(tree.rollouts, rollouts, strict=True):
        given = [reward for reward in steps if reward is not None]
        assert step_sum(rollout) == (math.fsum(given) if given else None)


def test_a_turn_before_a_fork_has_the_reward_of_the_rollout_that_took_it():
    tree = grove([Try(["A", "B", "C"], 1.0)])
    core = tree.core
    mark(tree, 0, 0, 0.25)
    mark(tree, 0, 1, 0.5)
    point = tree.rollouts[0].nodes[4].id  # what was observed after B
    forked = core.fork(point, 1)
    core.turn(forked, said("assistant", "D"), core.name("agent"), core.name("m 0"), core.name("stop"), 10, 0, 5, 0, 1)
    core.close(forked, "answer", "D")
    mark(tree, forked, 2, 2.0)
    assert tree.rollouts[0].step_rewards == pytest.approx([0.25, 0.5, math.nan], nan_ok=True)
    assert tree.rollouts[forked].step_rewards == [0.25, 0.5, 2.0]


def test_a_tree_without_marks_has_no_step_rewards_and_no_facts():
    (rollout,) = grove([Try(["A", "B"], 1.0)]).rollouts
    assert all(map(math.isnan, rollout.step_rewards))
    assert len(rollout.step_rewards) == 2
    assert rollout.final_info is None


def test_a_damaged_mark_is_an_error_of_the_tree():
    tree = grove([Try(["A"], 1.0)])
    tree.core.mark('{"step":[0,"x"]}')
    with pytest.raises(tl.errors.TrunklineError, match="mark 0 of an environment is damaged"):
        _ = tree.rollouts[0].step_rewards
