"""What holds for every strategy in every world."""

from __future__ import annotations

import asyncio
import math

import pytest
from every_strategy import STRATEGIES
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import Model, World, grow_in, grow_with

from trunkline.strategies.base import Strategy, at_once, stepwise
from trunkline.strategies.chain import Chain
from trunkline.tree.views import Kind, Trajectory
from trunkline.types import FAILED, Termination

WORLDS = st.builds(
    World,
    st.integers(0, 10**6),
    words=st.integers(1, 5),
    depth=st.integers(1, 6),
    stop=st.sampled_from([0.0, 0.2, 0.5]),
    fail=st.sampled_from([0.0, 0.0, 0.15, 1.0]),
)

each = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)


@each
@settings(max_examples=30)
@given(world=WORLDS)
def test_every_tree_is_whole_and_within_its_budget(strategy: Strategy, world: World):
    tree = asyncio.run(grow_in(strategy, world))
    rollouts = tree.rollouts
    assert 1 <= len(rollouts) <= strategy.rollouts()
    assert 1 <= at_once(strategy) <= strategy.rollouts()
    assert all(rollout.termination is not None for rollout in rollouts), "all have ended"
    assert all(math.isnan(rollout.reward) for rollout in rollouts if rollout.termination in FAILED)
    tokens = tree.tokens
    assert tokens.flat >= tokens.tree >= tokens.longest
    assert tokens.flat_generated >= tokens.tree_generated
    assert tokens.tree_generated == 3 * sum(node.kind is Kind.TURN for node in tree.nodes), "merged turns count once"
    reached = {node for rollout in rollouts for node in rollout.nodes}
    assert reached == set(tree.nodes[1:]), "every node is on the path of a rollout"
    assert sum(rollout.turns for rollout in rollouts) >= tree.usage.calls, "as chains they would have asked as often"


@each
@settings(max_examples=30)
@given(world=WORLDS)
def test_nothing_forks_after_what_ended_a_rollout(strategy: Strategy, world: World):
    tree = asyncio.run(grow_in(strategy, world))
    for rollout in tree.rollouts:
        point = rollout.point
        assert point.kind is not Kind.TURN
        earlier = tree.rollouts[: rollout.id]
        goers = (went_on(other, point.id, waits=stepwise(strategy)) for other in earlier)
        assert point.turns == 0 or any(goers), "a state was one before"


def went_on(rollout: Trajectory, node: int, *, waits: bool) -> bool:
    """Whether a rollout took a turn after a node, or was cut off there, or waited there before its next turn broke."""
    path = [passed.id for passed in rollout.nodes]
    ends = {Termination.CENSORED, *([Termination.LLM_ERROR] if waits else [])}
    return node in path[:-1] or (path[-1] == node and rollout.termination in ends)


@each
@settings(max_examples=25)
@given(world=WORLDS, order=st.integers(0, 10**6))
def test_the_tree_does_not_depend_on_who_answers_first(strategy: Strategy, world: World, order: int):
    digest = asyncio.run(grow_in(strategy, world)).digest()
    assert asyncio.run(grow_in(strategy, world, order)).digest() == digest
    assert asyncio.run(grow_in(strategy, world, order + 1)).digest() == digest


@each
@settings(max_examples=25)
@given(world=WORLDS, order=st.integers(0, 10**6))
def test_the_tree_does_not_depend_on_draws_being_asked_for_together(strategy: Strategy, world: World, order: int):
    world = world._replace(fail=0.0)  # a request of several draws fails as a whole
    one_by_one, together = Model(world), Model(world, order, together=True)
    tree = asyncio.run(grow_with(strategy, one_by_one))
    assert asyncio.run(grow_with(strategy, together)).digest() == tree.digest()
    assert one_by_one.requests == tree.usage.calls >= together.requests
    assert together.requests < one_by_one.requests or not isinstance(strategy, Chain) or strategy.avoid


@each
def test_another_world_makes_another_tree(strategy: Strategy):
    digests = {asyncio.run(grow_in(strategy, World(seed, words=5, stop=0.2))).digest() for seed in range(3)}
    assert len(digests) == 3
