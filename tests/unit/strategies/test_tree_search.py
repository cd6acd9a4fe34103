"""Tree search: what goes on after a turn, what is stopped, and how many rollouts that can make."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Say, Table, grow, looked_up, paths

from trunkline.errors import ConfigError, LLMError, StrategyError
from trunkline.scoring.rewards.base import best
from trunkline.strategies.tree_search import TreeSearch
from trunkline.tree.views import Trajectory, Tree
from trunkline.types import Termination


def digit(rollout: Trajectory) -> float:
    """The digit at the end of what was looked up last."""
    return float(looked_up(rollout.messages)[-1][-1])


def ends(tree: Tree) -> list[str]:
    """The path of lookups of each rollout, and how it ended."""
    word = {Termination.ANSWER: "!", Termination.CENSORED: "x"}
    return [
        "".join((*looked_up(rollout.messages), word.get(rollout.termination, str(rollout.termination))))
        for rollout in tree.rollouts
    ]


async def test_the_best_states_go_on_and_answers_keep_their_places():
    script = Table(
        {
            (): ["a3", "b9", "c5"],  # two of three go on: b9 and c5
            ("b9",): ["d1", "e7", "f2"],
            ("c5",): ["g8", "h0", "!yes"],  # one answered, so one of d1 e7 f2 g8 h0 goes on: g8
            ("c5", "g8"): ["!no", "i4", "j6"],  # a second answer: the search is over
        }
    )
    strategy = TreeSearch(width=3, keep=2, value=digit)
    tree, llm = await grow(strategy, script)
    assert ends(tree) == ["a3x", "b9d1x", "c5g8!", "b9e7x", "b9f2x", "c5h0x", "c5!", "c5g8i4x", "c5g8j6x"]
    # A rollout that goes on is draw 0 of its state; the others are forks there, under the path it came by.
    assert paths(tree) == [
        (0, 0),
        (0, 1),
        (0, 2),
        *((0, 1, 1, 1), (0, 1, 1, 2)),
        *((0, 2, 1, 1), (0, 2, 1, 2)),
        *((0, 2, 2, 1), (0, 2, 2, 2)),
    ]
    assert len(llm.asked) == 3 + 6 + 3
    reasons = [rollout.error.message for rollout in tree.rollouts if rollout.error]
    assert reasons == [
        "pruned after turn 1: value 3, kept 2",
        "pruned after turn 2: value 1, kept 1",
        "pruned after turn 2: value 7, kept 1",
        "pruned after turn 2: value 2, kept 1",
        "pruned after turn 2: value 0, kept 1",
        "pruned after turn 3: value 4, kept 0",
        "pruned after turn 3: value 6, kept 0",
    ]
    assert all(math.isnan(rollout.reward) for rollout in tree.rollouts if rollout.error), "never scored 0"


async def test_rollouts_at_one_state_are_one_candidate_and_count_among_its_draws():
    script = Table({(): ["a5", "a5", "b1"], ("a5",): ["!x", "!y", "!z"]})
    tree, _ = await grow(TreeSearch(width=3, keep=1, value=digit), script)
    # Two of three draws came to a5. Both go on, and one more makes its width.
    assert ends(tree) == ["a5!", "a5!", "b1x", "a5!"]
    assert paths(tree)[3] == (0, 0, 1, 1), "draw 0 is taken by whoever came first"


async def test_after_its_depth_nothing_is_widened():
    script = Table(
        {(): ["a3", "b9", "c5"], ("b9",): ["d1"], ("c5",): ["e2"], ("b9", "d1"): ["!x"], ("c5", "e2"): ["!y"]}
    )
    strategy = TreeSearch(width=3, keep=2, depth=1, value=digit)
    tree, _ = await grow(strategy, script)
    assert ends(tree) == ["a3x", "b9d1!", "c5e2!"]
    assert strategy.rollouts() == 3


async def test_ties_go_to_the_rollout_that_was_opened_first_and_what_cannot_be_said_ranks_last():
    script = Table({(): ["a1", "b4", "c4"], ("b4",): ["!x", "!y", "!z"]})
    tree, _ = await grow(TreeSearch(width=3, value=lambda r: digit(r) if digit(r) > 1 else None), script)
    assert ends(tree) == ["a1x", "b4!", "c4x", "b4!", "b4!"]
    assert tree.rollouts[0].error.message == "pruned after turn 1: value nan, kept 1"


async def test_any_other_end_frees_the_place():
    def script(conversation: list[dict], seed: int) -> Say:
        if looked_up(conversation) == ("b9",):
            raise LLMError("gone")
        return table(conversation, seed)

    table = Table({(): ["a3", "b9"], ("a3",): ["!x", "!y"]})
    tree, _ = await grow(TreeSearch(width=2, keep=2, value=digit), script)
    assert ends(tree) == ["a3!", "b9llm_error", "a3!", "b9llm_error"]


async def test_without_a_value_the_surest_turn_wins():
    half, nine = [math.log(0.5)] * 2, [math.log(0.9), math.log(0.1)]
    # Mean entropies: ln 2 = .693; (.693 + .325) / 2 = .509; .325 at both tokens.
    sure = {"a": [half, half], "b": [half, nine], "c": [nine, nine]}

    def script(conversation: list[dict], seed: int) -> Say:
        said = table(conversation, seed)
        return Say(said.text, said.final, sure.get(said.text, [half]))

    table = Table({(): ["a", "c", "b"], ("c",): ["!x", "!y", "!z"]})
    tree, _ = await grow(TreeSearch(width=3), script)
    assert ends(tree) == ["ax", "c!", "bx", "c!", "c!"]
    assert [rollout.error.message.split(",")[0] for rollout in tree.rollouts if rollout.error] == [
        "pruned after turn 1: value -0.693147",
        "pruned after turn 1: value -0.509115",
    ]


async def test_without_log_probabilities_or_a_value_it_says_what_is_missing():
    with pytest.raises(ExceptionGroup) as caught:
        await grow(TreeSearch(width=2), Table({(): ["a", "b"]}))
    (error,) = caught.value.exceptions if isinstance(caught.value, ExceptionGroup) else (caught.value,)
    assert isinstance(error, StrategyError)
    assert "Sampling(logprobs=True, top_logprobs=5)" in str(error)


@pytest.mark.parametrize("value", ["high", object(), 10**400])
async def test_a_value_that_is_no_number_is_an_error(value: object):
    with pytest.raises((StrategyError, ExceptionGroup)) as caught:
        await grow(TreeSearch(width=2, value=lambda _: value), Table({(): ["a", "b"]}))
    assert "value must return a number or None" in repr(caught.value)


async def no_function(_rollout: Trajectory) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"width": 1}, "width must be a whole number from 2 to 4096, not 1"),
        ({"keep": 0}, "keep must be a whole number from 1 to 4096, not 0"),
        ({"depth": 0}, "depth must be a whole number from 1 to 4096, not 0"),
        ({"value": 3}, "value must be a plain function"),
        ({"value": no_function}, "value must be a plain function"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict, says: str):
    with pytest.raises(ConfigError, match=says):
        TreeSearch(**options)


@pytest.mark.parametrize(
    ("options", "rollouts"),
    [
        ({"width": 3, "keep": 1, "depth": 8}, 17),  # 8 states, each adds 2
        ({"width": 2, "keep": 8, "depth": 5}, 24),  # 1 + 2 + 4 + 8 + 8 states, each adds 1
        ({"width": 4, "keep": 2, "depth": 1}, 4),
        ({"width": 3, "keep": 2, "depth": 3}, 11),  # 1 + 2 + 2 states, each adds 2
    ],
)
def test_the_bound_by_hand(options: dict, rollouts: int):
    assert TreeSearch(**options).rollouts() == rollouts


def test_the_formula_and_what_it_needs():
    assert TreeSearch().formula() == "1 + (width - 1) x states = 1 + 2 x 8 = 17 at most"
    assert TreeSearch().uncertain == "all"
    assert TreeSearch(value=digit).uncertain is None


@given(st.lists(st.one_of(st.floats(-3, 3), st.just(math.nan), st.just(-math.inf))), st.integers(-1, 9))
def test_best_is_what_a_stable_sort_gives(values: list[float], k: int):
    known = [place for place in range(len(values)) if not math.isnan(values[place])]
    naive: list[int] = []
    while known:
        naive.append(max(known, key=lambda place: (values[place], -place)))
        known.remove(naive[-1])
    naive += [place for place in range(len(values)) if math.isnan(values[place])]
    assert best(values, k) == naive[: max(k, 0)]


@given(st.integers(2, 4), st.integers(1, 4), st.integers(1, 4), st.integers(0, 999))
@settings(max_examples=40)
async def test_it_never_makes_more_than_it_says(width: int, keep: int, depth: int, luck: int):
    chance = random.Random(luck)

    def script(conversation: list[dict], seed: int) -> Say:
        # Few words, so that draws merge; an answer now and then.
        return Say(f"w{chance.randrange(4)}", final=chance.random() < 0.2)

    strategy = TreeSearch(width=width, keep=keep, depth=depth, value=digit)
    tree, _ = await grow(strategy, script, max_turns=5)
    assert len(tree.rollouts) <= strategy.rollouts()
    tree.core.check()
    for turn in range(1, 5):
        there = {rollout.path for rollout in tree.rollouts if rollout.turns > turn and rollout.point.turns <= turn}
        states = {rollout.nodes[_state(rollout, turn)].id for rollout in tree.rollouts if rollout.path in there}
        assert len(states) <= keep, "so many states go on after a turn"


def _state(rollout: Trajectory, turn: int) -> int:
    """The place on a path of the observation after a turn."""
    return next(place for place, node in enumerate(rollout.nodes) if node.turns == turn) + 1
