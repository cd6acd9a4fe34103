"""EPTree: which tokens of which turns are drawn again, over hand-made trees; endpoints are in test_within.py."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline._core import PROMPT, ROOT, TURN, CoreTree, TokenBuffer
from trunkline.errors import ConfigError, StrategyError
from trunkline.rollout.moves import open_fork
from trunkline.strategies.base import Fork, View, prompt
from trunkline.strategies.entropy_tree import EntropyTree
from trunkline.tree.views import Tree
from trunkline.types import Task

Sampled = list[tuple[int, float]]
"""Ids with their log-probabilities."""


class Hand:
    """A tree whose rollouts are one turn each, sampled by hand."""

    def __init__(self, strategy: EntropyTree) -> None:
        self.tree = Tree(Task.ask("q", id="q"))
        self.core: CoreTree = self.tree.core
        self.core.append(ROOT, PROMPT, b'{"role":"user","content":"q"}', 0, TokenBuffer([1, 2, 3]))
        self.strategy = strategy
        self.taken: list[tuple[int, int]] = []

    def play(self, forks: Sequence[Fork], sample: Callable[[int], Sampled]) -> list[int]:
        """Let rollouts grow and end; the sample is asked for by rollout. Nothing sampled is a failure."""
        opened = []
        for fork in forks:
            first = open_fork(self.core, fork, prompt(self.core))
            opened += [(number, fork) for number in range(first, first + fork.n)]
        for number, fork in opened:
            kept = self.said(fork.point)[: fork.at] if fork.point is not None else []
            new = sample(number)
            if new:
                self.turn(number, [*kept, *new])
            self.core.close(number, "answer" if new else "llm_error")
        return [number for number, _ in opened]

    def said(self, node: int) -> Sampled:
        tokens = self.core.tokens_of(node)
        return list(zip(tokens.ids, tokens.logprobs, strict=True))

    def turn(self, number: int, tokens: Sampled) -> int:
        ids, logprobs = zip(*tokens, strict=True)
        message = json.dumps({"role": "assistant", "content": str(ids)}).encode()
        return self.core.turn(number, message, 0, 0, 0, 3, 0, len(ids), 0, 0, None, None, TokenBuffer(ids, logprobs))

    def round(self, ended: Sequence[int]) -> list[Fork]:
        forks = list(self.strategy.ended(View(self.tree, ended, 7)))
        self.taken += [(fork.point, fork.at) for fork in forks]
        return forks


def chains(*said: Sequence[float]) -> Callable[[int], Sampled]:
    """Samples of the initial chains, by log-probabilities; ids tell chain and place."""
    return lambda number: [(100 * (number + 1) + place, value) for place, value in enumerate(said[number])]


def test_the_most_surprising_tokens_of_each_tree_are_drawn_again():
    hand = Hand(EntropyTree(chains=2, points=2, samples=2))
    first = hand.play(list(hand.strategy.start(View(hand.tree, [], 7))), chains([-9, -1, -3, -0.5, -2], [-0.1, -4, -4]))
    assert prompt(hand.core) == 1
    turns = [node for node in range(len(hand.core)) if hand.core.node(node).kind == TURN]
    forks = hand.round(first)
    # The first token of a turn is none, however surprising; of equal ones the earlier comes first.
    assert [(fork.point, fork.at) for fork in forks] == [
        (turns[0], 2),
        (turns[0], 4),
        (turns[1], 1),
        (turns[1], 2),
    ]
    assert [(fork.n, fork.subgroup) for fork in forks] == [(2, 0), (2, 0), (2, 1), (2, 1)]
    ended = hand.play(forks, lambda number: [(1000 + number, -5.0)])
    paths = [hand.core.rollout(number).path for number in range(hand.core.rollouts)]
    assert paths == [(0, draw) for draw in range(10)], "draws of the state before the turn"
    assert hand.core.rollouts == hand.strategy.rollouts() == 2 * (1 + 2 * 1 * 2)
    assert hand.round(ended) == []


def test_later_rounds_look_at_what_branches_said_but_not_at_what_they_kept():
    hand = Hand(EntropyTree(chains=1, points=1, rounds=3, samples=1))
    ended = hand.play([Fork()], chains([-1, -1, -7, -1, -1]))
    (fork,) = hand.round(ended)
    assert fork.at == 2
    # Its first token, the most surprising of all, is not chosen; nor are its first two, which are the chain's.
    ended = hand.play([fork], lambda number: [(900, -9.0), (901, -8.0), (902, -1.0)])
    (fork,) = hand.round(ended)
    branch = hand.core.rollout(1).leaf
    assert (fork.point, fork.at) == (branch, 3)
    ended = hand.play([fork], lambda number: [(910, -1.0)])
    (fork,) = hand.round(ended)
    assert (fork.point, fork.at) == (branch, 3), "the same token again: there is nothing more surprising"
    ended = hand.play([fork], lambda number: [(920, -1.0)])
    assert hand.round(ended) == []


def test_behind_a_token_that_announces_the_answer_nothing_is_chosen():
    said = chains([-1, -2, -1, -6, -8])
    hand = Hand(EntropyTree(chains=1, points=3, cuts=(102, 103)))
    (first, second) = hand.round(hand.play([Fork()], said))
    # Token 102 stands at place 2; it may itself be drawn again.
    assert (first.at, second.at) == (1, 2)


def test_beyond_the_limit_nothing_is_chosen():
    hand = Hand(EntropyTree(chains=1, points=3, limit=3 + 3))
    assert [fork.at for fork in hand.round(hand.play([Fork()], chains([-1, -2, -1, -6, -8])))] == [1, 2]


def test_tokens_can_be_spread_over_a_turn():
    said = chains([-1, -9, -8, -7, -2, -3, -4])
    for diverse, places in ((False, [1, 2, 3]), (True, [1, 6, 3])):
        # Of the six most surprising the first, at 1; then 6, the farthest from it; then 3, two from 1 and three from 6.
        hand = Hand(EntropyTree(chains=1, points=3, diverse=diverse))
        assert [fork.at for fork in hand.round(hand.play([Fork()], said))] == places


def test_chains_that_failed_are_no_trees_and_few_tokens_make_few_rollouts():
    hand = Hand(EntropyTree(chains=3, points=2, rounds=2, samples=2))
    ended = hand.play([Fork(n=3)], chains([], [-1], [-1, -2]))
    (fork,) = hand.round(ended)
    assert (fork.subgroup, fork.at) == (2, 1), "neither nothing nor a first token alone is drawn again"
    ended = hand.play([fork], lambda number: [])
    (fork,) = hand.round(ended)
    assert (fork.subgroup, fork.at) == (2, 1), "the second round, though the first brought nothing"
    assert hand.round(hand.play([fork], lambda number: [(7, -1.0), (8, -1.0)])) == []


def test_a_branch_that_says_the_same_is_the_turn_itself_and_hides_nothing():
    hand = Hand(EntropyTree(chains=1, points=1, rounds=2, samples=1))
    ended = hand.play([Fork()], chains([-1, -2, -7]))
    (fork,) = hand.round(ended)
    ended = hand.play([fork], lambda number: [(102, -7.0)])
    assert hand.core.rollout(0).leaf == hand.core.rollout(1).leaf
    assert [(again.point, again.at) for again in hand.round(ended)] == [(fork.point, 2)]


@given(
    options=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2)),
    diverse=st.booleans(),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=60)
def test_no_round_chooses_twice_and_none_pads(options: tuple[int, int, int, int], diverse: bool, seed: int):
    trees, points, rounds, samples = options
    luck = random.Random(seed)
    hand = Hand(EntropyTree(chains=trees, points=points, rounds=rounds, samples=samples, diverse=diverse))

    def sample(number: int) -> Sampled:
        return [(luck.randrange(10_000), -luck.random()) for _ in range(luck.randrange(5))]

    ended = hand.play([Fork(n=trees)], sample)
    count = 0
    while forks := hand.round(ended):
        count += 1
        picks = [(fork.subgroup, fork.point, fork.at) for fork in forks]
        assert len(picks) == len(set(picks))
        for tree in range(trees):
            assert sum(subgroup == tree for subgroup, _, _ in picks) <= points
        for fork in forks:
            assert 1 <= fork.at < len(hand.core.tokens_of(fork.point))
        ended = hand.play(forks, sample)
    assert count <= rounds
    assert hand.core.rollouts <= hand.strategy.rollouts()
    hand.core.check()


def test_nothing_but_a_token_of_a_model_turn_can_be_drawn_again():
    hand = Hand(EntropyTree())
    hand.play([Fork()], chains([-1, -2]))
    (turn,) = [node for node in range(len(hand.core)) if hand.core.node(node).kind == TURN]
    for point, at, what in ((1, 1, "is no model turn"), (99, 1, "is no model turn"), (turn, 2, "it has 2 tokens")):
        with pytest.raises(StrategyError, match=what):
            open_fork(hand.core, Fork(point, at=at), prompt(hand.core))
    assert open_fork(hand.core, Fork(turn, at=1), prompt(hand.core)) == 1
    assert hand.core.rollout(1).subgroup == 0, "of the chain whose turn it is"


def test_the_defaults_are_those_of_the_paper_and_make_thirty_leaves():
    strategy = EntropyTree()
    assert strategy.rollouts() == 30
    assert strategy.formula() == "M (1 + N L T) = 6 (1 + 2 x 1 x 2) = 30"
    assert EntropyTree(chains=8, points=4, rounds=2, samples=2).rollouts() == 136


@pytest.mark.parametrize(
    ("field", "value"),
    [("chains", 0), ("points", 0), ("rounds", 0), ("samples", True), ("limit", 0), ("diverse", 1), ("cuts", "answer")],
)
def test_an_option_out_of_range_is_named(field: str, value: object):
    with pytest.raises(ConfigError, match=f"EntropyTree: {field}"):
        EntropyTree(**{field: value})
