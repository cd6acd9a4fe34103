"""MCTS: which states get a turn, in which order, and what backs up."""

from __future__ import annotations

import asyncio
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Say, grow, paths
from worlds import Model, World, grow_in, grow_with

from trunkline._core import base_seed
from trunkline.errors import ConfigError, LLMError
from trunkline.strategies.mcts import MCTS
from trunkline.tree.views import Trajectory, Tree

SEED = 7


def tables(rewards: list[list[float | None]]):
    """A problem of two levels: the first turn of draw i of the prompt looks up "i"; draw j behind it answers
    ``rewards[i][j]``, and breaks where that is None.
    """
    prompt = base_seed(SEED, "q", (), 0)
    behind = [base_seed(SEED, "q", (0, first), 1) for first in range(len(rewards))]

    def script(conversation: list[dict], seed: int) -> Say:
        calls = [message["tool_calls"] for message in conversation if message["role"] == "assistant"]
        if not calls:
            return Say(str(seed - prompt))
        first = int(calls[0][0]["function"]["arguments"].split('"')[3])
        reward = rewards[first][seed - behind[first]]
        if reward is None:
            raise LLMError("broken", retryable=False)
        return Say(str(reward), final=True)

    return script


def said(rollout: Trajectory) -> float:
    return float(rollout.answer or "nan")


async def order(strategy: MCTS, rewards: list[list[float | None]]) -> str:
    """The state each rollout was opened at: "." for the prompt, else the letter of the first turn."""
    tree, _ = await grow(strategy, tables(rewards), reward=said, seed=SEED)
    return "".join("." if len(path) == 2 else "ABCDEFGH"[path[1]] for path in paths(tree))


# Rewards behind A, B and C, draw by draw.
THREE: list[list[float | None]] = [[0, 1, 1], [1, 0, 0], [0.5, 1, 0]]


async def test_without_exploration_the_best_mean_is_followed_until_it_is_full():
    # V = 0, 1, .5 after the prompt has its three. B: 1, then (1 + 0)/2 = .5, a tie with C that the earlier one wins,
    # then 1/3 and full. C: .5, (.5 + 1)/2 = .75, .5 and full. A takes the rest. A turn below these ends the rollout.
    assert await order(MCTS(20, 0, children=3, bound="ucb1"), THREE) == "..." + "BBCCAA"
    assert await order(MCTS(20, 0, children=3), THREE) == "..." + "BBCCAA", "(V + 1) / 2 has the order of V"


async def test_with_much_exploration_the_least_visited_goes_first():
    # All have one visit: by V, B C A. Then all have two, V = .5 (A), .5 (B), .75 (C): C, and of equals A first.
    assert await order(MCTS(20, 1000, children=3, bound="ucb1"), THREE) == "..." + "BCA" + "CAB"


async def test_the_bound_is_that_of_the_formula():
    # V = .8, .1, 0, 0 after the prompt's four: A, whose second is .8 again. With Np = 5, ln 6 = 1.7918, and c = .5:
    # A .9 + .5 sqrt(1.7918 / 2) = 1.3733, B .55 + .5 sqrt(1.7918) = 1.2193: A. With c = 1.5: A 2.3198, B 2.5579: B.
    rewards: list[list[float | None]] = [[0.8, 0.8, 0, 0], [0.1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert (await order(MCTS(6, 0.5), rewards))[4:] == "AA"
    assert (await order(MCTS(6, 1.5), rewards))[4:] == "AB"


async def test_virtual_loss_spreads_what_is_chosen_together():
    # V = .6, .5, 0, 0. The first pick is A; in flight it counts as (.6 + 0)/2 = .3 < .5, so the second is B.
    rewards: list[list[float | None]] = [[0.6, 1, 1, 1], [0.5, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert (await order(MCTS(6, 0, parallel=2), rewards))[4:] == "AB"
    # A visit in flight that counts as 1 is no loss: (.6 + 1)/2 = .8 > .5.
    assert (await order(MCTS(6, 0, parallel=2, loss=1), rewards))[4:] == "AA"
    # One after the other: A brings 1, V = .8: A again.
    assert (await order(MCTS(6, 0), rewards))[4:] == "AA"


async def test_a_round_goes_on_below_while_the_prompt_still_waits_for_its_last_turn():
    # Rounds of two: the prompt twice; once more, and B, V = 1, which may get 2 - 1; V = 0, .5, .5 then: B, full with 3,
    # and C; C, .75, full, and in flight A; A.
    assert await order(MCTS(20, 0, children=3, parallel=2, bound="ucb1"), THREE) == ".." + ".B" + "BC" + "CA" + "A"


async def test_what_broke_is_a_simulation_and_the_search_goes_elsewhere():
    # V = 1 (A), .6 (B). A breaks: it counts as (1 + 0)/2 = .5 < .6: B, 0, V = .3; A breaks, 1/3 > .3, and again, 1/4.
    # Nothing of that takes a place: no turn was drawn. Then B, V = .2; A 1/4, 1/5; of equals A, 1/6; at last B is full.
    broken: list[list[float | None]] = [[1, *[None] * 20], [0.6, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert (await order(MCTS(12, 0, bound="ucb1"), broken))[4:] == "ABAABAAB"


async def test_a_search_in_which_everything_breaks_ends():
    def script(conversation: list[dict], seed: int) -> Say:
        raise LLMError("down", retryable=False)

    tree, _ = await grow(MCTS(5, parallel=2, children=2), script, reward=said)
    assert [rollout.termination for rollout in tree.rollouts] == ["llm_error"] * 5
    assert math.isnan(tree.reward)


async def test_a_value_function_backs_up_after_one_turn_and_is_no_reward():
    # Three steps of "0", "1" ...: the function likes B. Rollouts are cut after their turn, except the third in a row.
    prompt = base_seed(SEED, "q", (), 0)

    def script(conversation: list[dict], seed: int) -> Say:
        turn = sum(message["role"] == "assistant" for message in conversation)
        return Say(str((seed - prompt) if not turn else seed), final=turn == 2)

    def value(rollout: Trajectory) -> float:
        return 0.25 if rollout.path[1] == 0 else 0.75

    tree, llm = await grow(MCTS(7, 0, value, children=2), script, reward=lambda rollout: 1.0, seed=SEED)
    # 1, 2: the prompt, V = .25, .75. 3: behind B, where the first stopped: draw 1 of turn 1, draw 0 being that of the
    # rollout that came there. 4: B again. 5: below the first of the two, of equals: turn 2 ends it, reward 1; 6: that
    # one again, since its V is now the higher one; 7: the other.
    above = [(0, 0), (0, 1), (0, 1, 1, 1), (0, 1, 1, 2)]
    assert paths(tree) == [*above, (0, 1, 1, 1, 2, 1), (0, 1, 1, 1, 2, 2), (0, 1, 1, 2, 2, 1)]
    assert [rollout.reward for rollout in tree.rollouts] == [0.25, 0.75, 0.75, 0.75, 1, 1, 1]
    assert tree.reward == 1, "the mean of the three that ended by themselves"
    assert len(llm.asked) == 7, "one turn each"
    first = tree.rollouts[1].leaf
    assert first.value == pytest.approx((3 * 0.75 + 3 * 1) / 6)


async def test_a_value_function_that_cannot_say_costs_simulations_and_stalls_nothing():
    def script(conversation: list[dict], seed: int) -> Say:
        return Say(str(seed))

    def value(rollout: Trajectory) -> None:
        return None

    tree, _ = await grow(MCTS(9, value=value, parallel=2, children=2), script, reward=said)
    assert [rollout.termination for rollout in tree.rollouts] == ["censored"] * 9
    assert max(drawn(tree).values()) == 2
    assert len({rollout.point.id for rollout in tree.rollouts}) >= 5, "it goes down all the same"


def drawn(tree: Tree) -> Counter[int]:
    """Turns that rollouts drew themselves, by the state they were drawn at."""
    found: Counter[int] = Counter()
    for rollout in tree.rollouts:
        own = rollout.nodes[rollout.point.depth :]
        found.update(node.parent.id for node in own if node.parent is not None and node.kind.name == "TURN")
    return found


WORLDS = st.builds(
    World,
    st.integers(0, 10**6),
    words=st.integers(1, 4),
    depth=st.integers(1, 5),
    stop=st.sampled_from([0.0, 0.3]),
    fail=st.sampled_from([0.0, 0.2]),
)
SEARCHES = st.builds(
    MCTS,
    st.integers(1, 14),
    st.sampled_from([0, 0.5, 100]),
    st.sampled_from([None, lambda rollout: rollout.turns / 10]),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from(["uct", "ucb1"]),
)


@settings(max_examples=60)
@given(WORLDS, SEARCHES)
def test_no_search_takes_more_than_its_simulations_or_its_children(world: World, search: MCTS):
    tree = asyncio.run(grow_in(search, world))
    assert 1 <= len(tree.rollouts) <= search.rollouts()
    assert max(drawn(tree).values(), default=0) <= search.children
    short = len(tree.rollouts) < search.simulations
    if short and not any(rollout.termination == "llm_error" for rollout in tree.rollouts):
        full = {node for node, count in drawn(tree).items() if count == search.children}
        assert 1 in full, "it ends early only where there is nothing to draw: the prompt is full"


@settings(max_examples=30)
@given(WORLDS, SEARCHES, st.integers(0, 10**6))
def test_the_tree_is_the_same_whoever_answers_first(world: World, search: MCTS, arrival: int):
    digest = asyncio.run(grow_in(search, world)).digest()
    assert asyncio.run(grow_in(search, world, arrival)).digest() == digest


async def test_of_equals_the_earlier_rollout_wins_whoever_answered_first():
    world = World(3, words=9, depth=4, stop=0.0)
    trees = [await grow_with(MCTS(9, 0, parallel=3, children=3), Model(world, order), ones) for order in range(12)]
    assert len({tuple(map(tuple, tree.core.shape()[:2])) for tree in trees}) > 1, "nodes came in another order"
    assert len({tree.digest() for tree in trees}) == 1


def ones(rollout: Trajectory) -> float:
    return 1.0


async def test_a_place_is_kept_for_what_may_still_merge():
    # All say the same first: after two, A has two draws of three; the prompt has one place left, whose draw may lead to
    # A again. So the second pick of that round, which could only be A, is not made; then both are full.
    def script(conversation: list[dict], seed: int) -> Say:
        first = len(conversation) == 1
        return Say("a" if first else str(seed), final=not first)

    tree, _ = await grow(MCTS(20, 0, parallel=2, children=3), script, reward=said)
    assert paths(tree) == [(0, 0), (0, 1), (0, 2)]
    assert sorted(drawn(tree).values()) == [3, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"simulations": 0}, "MCTS: simulations must be a whole number from 1 to 1048576, not 0"),
        ({"c": -1}, "MCTS: c must be a number from 0"),
        ({"c": math.nan}, "MCTS: c must be a number from 0"),
        ({"value": 3}, "MCTS: value must be a function of a trajectory, not 3"),
        ({"parallel": 0}, "MCTS: parallel must be a whole number from 1 to 4096"),
        ({"children": 0}, "MCTS: children must be a whole number"),
        ({"bound": "puct"}, "MCTS: bound must be uct or ucb1, not 'puct'"),
        ({"loss": math.inf}, "MCTS: loss must be a number"),
    ],
)
def test_an_option_that_cannot_be_is_named(options: dict, message: str):
    with pytest.raises(ConfigError) as caught:
        MCTS(**options)
    assert str(caught.value).startswith(message)


def test_the_plan_is_said():
    assert (MCTS(9, parallel=4).rollouts(), MCTS(9, parallel=4).at_once(), MCTS(2, parallel=4).at_once()) == (9, 4, 2)
    assert MCTS(9).formula() == "simulations = 9"
