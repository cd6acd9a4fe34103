"""ARPO and AEPO: who branches, after which turns, what is started afresh, and what is never done.

Entropies are scripted in units of one: with a vocabulary of four, a token whose four likeliest have 1/4 each adds
4 x (1/4) ln 4 / ln 4 = 1 to its turn's figure, and a token that was certain adds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Say, grow, paths

from trunkline._core import base_seed, branch_probability, branch_rows
from trunkline.errors import ConfigError
from trunkline.strategies import adaptive
from trunkline.strategies.adaptive import Adaptive
from trunkline.strategies.base import Fork, View

UNIT = [math.log(0.25)] * 4
SURE = [0.0]
BASE = base_seed(7, "q", (), 0)

Ask = tuple[Sequence[float], Sequence[float], int, int]


def figure(units: int) -> list[list[float]]:
    """Tokens of a turn whose figure is so many units."""
    return [SURE, *[UNIT] * units]


def story(units: Callable[[int, int], int], turns: int) -> Callable[[list[dict], int], Say]:
    """A model whose turn ``t`` in chain ``c`` has ``units(c, t)``; the last of its turns is the answer."""

    def say(conversation: list[dict], seed: int) -> Say:
        own = [message for message in conversation if message["role"] == "assistant"]
        first = own[0]["tool_calls"][0]["function"]["arguments"] if own else f'"{seed}"'
        chain = int(first.split('"')[-2]) - BASE
        return Say(f"{seed}", final=len(own) == turns - 1, logprobs=figure(units(chain, len(own))))

    return say


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Ask]:
    """What the core is asked in each round: entropies, baselines, places left, streak."""
    rounds: list[Ask] = []

    def noted(now: Sequence[float], first: Sequence[float], free: int, seed: int, **rule: Any) -> object:
        rounds.append((pytest.approx(now), pytest.approx(first), free, rule["streak"]))
        return branch_rows(now, first, free, seed, **rule)

    monkeypatch.setattr(adaptive, "branch_rows", noted)
    return rounds


class Noting:
    """A strategy that is another one, and remembers what that one yields."""

    def __init__(self, inner: Adaptive) -> None:
        self.inner = inner
        self.rounds: list[list[Fork]] = []
        self.rollouts = inner.rollouts

    def _note(self, hook: str, view: View) -> Iterable[Fork]:
        forks = list(getattr(self.inner, hook)(view))
        if forks:
            self.rounds.append(forks)
        return forks

    def start(self, view: View) -> Iterable[Fork]:
        return self._note("start", view)

    def stepped(self, view: View) -> Iterable[Fork]:
        return self._note("stepped", view)

    def ended(self, view: View) -> Iterable[Fork]:
        return self._note("ended", view)


def test_the_probabilities_of_the_paper_and_of_its_successor():
    arpo = branch_probability(0.3, rule="arpo", probability=0.5, weight=0.2)
    assert arpo == pytest.approx(0.56), ".5 + .2 x .3"
    aepo = [branch_probability(0.3, rule="aepo", probability=0.5, weight=0.2, streak=streak) for streak in (0, 2, 10)]
    # f = 1 - .05 l = 1, .9, .5: 1 - .5 / f + .06.
    assert aepo == pytest.approx([0.56, 0.5044444, 0.06])
    defaults = Adaptive()
    assert (defaults.total, defaults.initial, defaults.beam) == (16, 8, 2)
    assert (defaults.probability, defaults.weight) == (0.5, 0.2)


async def test_who_is_less_sure_branches_behind_the_tool_and_the_places_left_start_afresh(asked: list[Ask]):
    # Turn 1 of the first chain: 2 units after 1, P = 0 + 10 x 1, cut to 1. Of the others: 0 after 1, P = 0.
    tree, llm = await grow(
        Adaptive(total=5, initial=2, probability=0, weight=10, vocabulary=4),
        story(lambda chain, turn: 1 if turn != 1 else 2 * (chain == 0), turns=3),
    )
    assert paths(tree) == [(0, 0), (0, 1), (0, 0, 2, 1), (0, 2), (0, 3)]
    assert [rollout.subgroup for rollout in tree.rollouts] == [0, 1, 0, 2, 3]
    chain, branch = tree.rollouts[0], tree.rollouts[2]
    assert branch.point.message["content"] == chain.nodes[4].message["content"], "behind what the tool said"
    assert branch.nodes[:5] == chain.nodes[:5]
    assert branch.nodes[5] != chain.nodes[5]
    assert asked == [
        ([1, 1], [1, 1], 3, 0),
        ([2, 0], [1, 1], 3, 0),
        ([1], [1], 1, 0),
        ([0], [1], 1, 0),
    ], "two rounds of both chains, none of the branch's only turn, two of the first fresh one; the last fills the task"
    assert len(llm.asked) == 3 + 3 + 1 + 3 + 3


async def test_a_branch_belongs_to_its_chain_and_nobody_starts_afresh_while_one_goes_on():
    def say(conversation: list[dict], seed: int) -> Say:
        own = [message for message in conversation if message["role"] == "assistant"]
        first = own[0]["tool_calls"][0]["function"]["arguments"] if own else f'"{seed}"'
        chain = int(first.split('"')[-2]) - BASE
        # The second chain is less sure in its second turn, and the only one that has a third.
        return Say(f"{seed}", final=len(own) == 1 + chain, logprobs=figure(1 + len(own)))

    tree, llm = await grow(Adaptive(total=4, initial=2, probability=0, weight=10, vocabulary=4), say)
    assert paths(tree) == [(0, 0), (0, 1), (0, 1, 2, 1), (0, 2)]
    assert [rollout.subgroup for rollout in tree.rollouts] == [0, 1, 1, 2]
    # Messages of each request: both chains twice, the second and its branch once more, then the fresh one.
    assert [len(asked) for asked in llm.asked] == [1, 1, 3, 3, 5, 5, 1, 3, 5, 7]


async def test_entropy_is_a_sum_over_the_first_twenty_places(asked: list[Ask]):
    await grow(
        Adaptive(total=2, initial=1, probability=0, weight=0, vocabulary=4),
        story(lambda chain, turn: 40 if turn == 0 else 3, turns=3),
    )
    # The first of the twenty places is the certain token.
    assert asked[:2] == [([19], [19], 1, 0), ([3], [19], 1, 0)]


async def test_a_row_is_compared_with_the_first_turn_whose_entropy_is_known(asked: list[Ask]):
    def say(conversation: list[dict], seed: int) -> Say:
        turn = sum(message["role"] == "assistant" for message in conversation)
        return Say(f"{seed}", final=turn == 3, logprobs=figure(turn) if turn else ())

    await grow(Adaptive(total=2, initial=1, probability=0, weight=-1, vocabulary=4), say)
    assert [first for _, first, _, _ in asked[1:3]] == [[1], [1]]


async def test_a_streak_is_read_off_the_tree_and_ends_with_the_last_row(asked: list[Ask]):
    # AEPO with p = 0: P = 1 - 0 / f + w (H - H0) is 1 where nothing changed. The third turn is surer: P = 0.
    strategy = Adaptive(total=9, initial=1, rule="aepo", probability=0, weight=10, vocabulary=4)
    tree, _ = await grow(strategy, story(lambda chain, turn: 0 if turn == 2 else 1, turns=5))
    assert [(free, streak) for _, _, free, streak in asked] == [(8, 0), (7, 1), (5, 2), (5, 0)]
    lengths = [len(path) for path in paths(tree)]
    assert lengths == [2, 4, 4, 6, 4, 6, 6, 8, 2], "1, 2, 4, 4 and 8 rows, and one afresh"
    assert {path[-2] for path in paths(tree)} == {0, 1, 2, 4}


async def test_what_has_no_entropy_does_not_branch_and_every_place_is_filled_by_a_rollout_of_its_own():
    def mute(conversation: list[dict], seed: int) -> Say:
        return Say(f"{seed}", final=len(conversation) > 2)

    tree, _ = await grow(Adaptive(total=4, initial=1, probability=1), mute)
    assert paths(tree) == [(0, 0), (0, 1), (0, 2), (0, 3)]


async def test_a_first_chain_alone_decides_how_many_there_are():
    strategy = Noting(Adaptive(total=8, initial=5, monitor=True, probability=0, weight=0, vocabulary=4))
    # Surer at first: 8 sigmoid((1 - 3) / 2) = 8 x .268941 = 2.15, and one more: 3 chains.
    tree, _ = await grow(strategy, story(lambda chain, turn: 1 if turn == 0 else 3, turns=3))
    assert [[fork.n for fork in forks] for forks in strategy.rounds] == [[1], [2], [1], [1], [1], [1], [1]]
    assert len(tree.rollouts) == 8


async def test_a_first_chain_that_calls_no_tool_decides_nothing():
    strategy = Noting(Adaptive(total=8, initial=5, monitor=True, vocabulary=4))
    await grow(strategy, story(lambda chain, turn: 1, turns=1))
    assert [[fork.n for fork in forks] for forks in strategy.rounds] == [[1], [4], [1], [1], [1]]


@given(
    total=st.integers(1, 9),
    initial=st.integers(1, 9),
    beam=st.integers(1, 3),
    probability=st.floats(0, 1),
    rule=st.sampled_from(("arpo", "aepo")),
    monitor=st.booleans(),
    units=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=40)
async def test_a_task_gets_its_total_and_no_rollout_twice(
    total: int, initial: int, beam: int, probability: float, rule: str, monitor: bool, units: list[int], seed: int
):
    strategy = Adaptive(
        total=total,
        initial=min(initial, total),
        beam=beam,
        probability=probability,
        rule=rule,
        monitor=monitor,
        vocabulary=4,
    )

    def say(conversation: list[dict], draw: int) -> Say:
        turn = sum(message["role"] == "assistant" for message in conversation)
        return Say(f"{draw}", final=turn == len(units) - 1, logprobs=figure(units[turn]))

    noting = Noting(strategy)
    tree, _ = await grow(noting, say, seed=seed)
    found = paths(tree)
    assert len(found) == len(set(found)) == total
    assert all(rollout.turns == len(units) for rollout in tree.rollouts), "none is a copy that was cut short"
    grown = 0
    for forks in noting.rounds:
        rows = sum(fork.n for fork in forks)
        assert rows <= total - grown
        assert all(fork.point is None or fork.n < beam for fork in forks)
        grown += rows
    again, _ = await grow(strategy, say, seed=seed)
    assert again.digest() == tree.digest()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("total", 0),
        ("initial", 17),
        ("initial", 0),
        ("rule", "aeppo"),
        ("probability", 1.5),
        ("weight", math.nan),
        ("beam", 0),
        ("monitor", "yes"),
        ("vocabulary", 1),
        ("likeliest", 21),
    ],
)
def test_an_option_out_of_range_is_named(field: str, value: object):
    with pytest.raises(ConfigError, match=f"Adaptive: {field}"):
        Adaptive(**{field: value})


def test_the_plan_is_the_total():
    assert Adaptive().rollouts() == 16
    assert Adaptive().formula() == "n = 16: 8 chains, then branches after tool calls and fresh ones"
