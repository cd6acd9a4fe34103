"""Tokens, statistics and harvests of the native tree through their bindings, against a few lines of Python."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline._core import GROWING, PROMPT, SAMPLED, CoreTree, Harvest, TokenBuffer, harvest
from trunkline.errors import ArgumentError, CoreError, TreeError
from trunkline.types import Termination

USER = b'{"role":"user","content":"1+1?"}'


def columns(tokens: TokenBuffer | None) -> tuple[list, ...] | None:
    """All that a run of tokens says."""
    return tokens and (list(tokens.ids), list(tokens.logprobs), list(tokens.versions), list(tokens.flags))


def turn(tree: CoreTree, rollout: int, message: bytes, tokens: TokenBuffer | None) -> int:
    return tree.turn(rollout, message, 0, 0, 0, 9, 4, 1, 2, 50, None, None, tokens)


def test_tokens_come_back_as_they_went_in() -> None:
    tree = CoreTree()
    prompt = tree.append(0, PROMPT, USER, 0, TokenBuffer([1, 2, 3]))
    rollout = tree.open(prompt, [0])
    sampled = TokenBuffer([4, 5], [-0.5, -1.5], [3, 3], [SAMPLED, SAMPLED])
    leaf = turn(tree, rollout, b'{"n":1}', sampled)
    seen = tree.observe(rollout, b'{"n":2}', 0, 5, False, TokenBuffer([6]))
    copy = CoreTree()
    copy.apply(tree.delta() or b"")
    for one in (tree, copy):
        assert one.tokens_of(0) is None
        assert columns(one.tokens_of(prompt)) == ([1, 2, 3], [0.0] * 3, [-1] * 3, [0] * 3)
        assert columns(one.tokens_of(leaf)) == ([4, 5], [-0.5, -1.5], [3, 3], [1, 1])
        assert columns(one.tokens_of(seen)) == ([6], [0.0], [-1], [0])
        assert one.tokens() == (6, 6, 2, 2, 6, 0, True)
        assert all(math.isnan(figure) for figure in (*one.node(leaf).entropy, *one.node(leaf).perplexity))
        one.check()


def test_equal_ids_are_one_turn_whatever_the_bytes() -> None:
    tree = CoreTree()
    for draw in range(4):
        tree.open(0, [draw])
    first = turn(tree, 0, b'{"n":1}', TokenBuffer([4, 5], [-0.5, -1.5]))
    assert turn(tree, 1, b'{"n":2}', TokenBuffer([4, 5], [-0.7, -1.1])) == first
    assert columns(tree.tokens_of(first)) == ([4, 5], [-0.5, -1.5], [-1, -1], [1, 1])
    assert tree.message(first) == b'{"n":1}'
    bare = turn(tree, 2, b'{"n":1}', None)
    assert bare != first
    assert turn(tree, 3, b'{"n":1}', TokenBuffer([])) == bare, "no tokens are none"
    assert tree.tokens_of(bare) is None
    tree.check()


def test_tokens_are_given_once() -> None:
    tree = CoreTree()
    prompt = tree.append(0, PROMPT, USER)
    rollout = tree.open(prompt, [0])
    leaf = turn(tree, rollout, b'{"n":1}', TokenBuffer([4], [-0.5]))
    assert tree.tokens()[-1] is False
    before = tree.digest()
    tree.tokenise(prompt, TokenBuffer([1, 2]))
    tree.tokenise(prompt, TokenBuffer([1, 2]))
    assert tree.digest() != before
    assert tree.append(0, PROMPT, USER) == prompt, "the key of a node does not change"
    assert tree.tokens() == (3, 3, 1, 1, 3, 0, True)
    assert tree.delta() is not None
    for node, tokens, text in (
        (prompt, TokenBuffer([1, 3]), "node 1 has other tokens already"),
        (leaf, TokenBuffer([4]), "node 2 is a model turn"),
        (0, TokenBuffer([4]), "node 0 is the root"),
    ):
        with pytest.raises(ArgumentError, match=text):
            tree.tokenise(node, tokens)
    with pytest.raises(TreeError, match="node 9 does not exist"):
        tree.tokenise(9, TokenBuffer([4]))
    assert tree.delta() is None
    tree.check()


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (TokenBuffer([1], [-math.inf]), "log-probability of token 0 is -inf"),
        (TokenBuffer([1, 1], [0.0, 0.0], [0, -2]), "weight version of token 1 is -2"),
        (TokenBuffer([1], flags=[8]), "flags of token 0 are 8"),
    ],
)
def test_tokens_that_hold_what_they_may_not_are_refused(tokens: TokenBuffer, text: str) -> None:
    tree = CoreTree()
    rollout = tree.open(0, [0])
    tree.delta()
    for attempt in (
        lambda: tree.append(0, PROMPT, USER, 0, tokens),
        lambda: turn(tree, rollout, USER, tokens),
        lambda: tree.observe(rollout, USER, 0, 0, False, tokens),
    ):
        with pytest.raises(ArgumentError, match=text):
            attempt()
    assert (len(tree), tree.delta()) == (1, None)


def test_what_merges_by_its_ids_is_refused_like_what_does_not() -> None:
    tree = CoreTree()
    for draw in range(2):
        tree.open(0, [draw])
    turn(tree, 0, USER, TokenBuffer([1], [-0.5]))
    with pytest.raises(ArgumentError, match="log-probability of token 0 is inf"):
        turn(tree, 1, USER, TokenBuffer([1], [math.inf]))
    with pytest.raises(CoreError, match=r"does not start with \{"):
        turn(tree, 1, b"[]", TokenBuffer([1], [-0.5]))


STEPS = st.lists(st.lists(st.integers(0, 2), max_size=4), min_size=1, max_size=5)
REWARD = st.one_of(st.just(math.nan), st.floats(-5, 5))


@given(rollouts=STEPS, data=st.data())
@settings(max_examples=60)
def test_statistics_and_totals_are_those_of_the_paths(rollouts: list[list[int]], data: st.DataObject) -> None:
    tree = CoreTree()
    for draw, steps in enumerate(rollouts):
        rollout = tree.open(0, [draw])
        assert tree.rollout(rollout).lane == rollout
        for number in steps:
            turn(tree, rollout, b"{}", TokenBuffer([number] * (number + 1), [-0.5] * (number + 1)))
    rewards = [math.nan] * len(rollouts)
    for rollout in range(len(rollouts)):
        tree.close(rollout, "answer")
        for reward in data.draw(st.lists(REWARD, max_size=2)):
            tree.score(rollout, reward)
            rewards[rollout] = reward
    paths = [{0, *tree.path(tree.rollout(rollout).leaf)} for rollout in range(len(rollouts))]
    visits, value, passes = tree.statistics()
    assert [column.format for column in (visits, value, passes)] == ["I", "d", "I"]
    for node in range(len(tree)):
        through = [reward for path, reward in zip(paths, rewards, strict=True) if node in path]
        scored = [reward for reward in through if not math.isnan(reward)]
        assert (passes[node], visits[node]) == (len(through), len(scored))
        assert value[node] == pytest.approx(math.fsum(scored), abs=1e-9)
        read = tree.node(node)
        assert (read.passes, read.visits, read.value) == (passes[node], visits[node], value[node])
    lengths = [sum(number + 1 for number in steps) for steps in rollouts]
    shared = sum(len(tree.tokens_of(node) or ()) for node in range(1, len(tree)))
    assert tree.tokens() == (sum(lengths), shared, sum(lengths), shared, max(lengths), 0, True)
    assert [tree.rollout(number).lane for number in range(len(rollouts))] == [None] * len(rollouts)
    tree.check()


def test_a_reset_tree_is_a_new_one_that_keeps_its_memory() -> None:
    tree, new = CoreTree(), CoreTree()
    rollout = tree.open(tree.append(0, PROMPT, USER), [0])
    turn(tree, rollout, USER, TokenBuffer(range(5000), [-0.5] * 5000))
    tree.delta()
    held = tree.memory()
    assert held > 65_000 > new.memory()
    tree.reset()
    assert tree.memory() == held
    assert (len(tree), tree.rollouts, tree.delta(), tree.digest()) == (1, 0, None, new.digest())
    for one in (tree, new):
        one.append(0, PROMPT, USER)
    assert tree.delta() == new.delta()


def grown(agent: str, tokens: int, rollouts: int) -> CoreTree:
    tree = CoreTree()
    prompt = tree.append(0, PROMPT, USER, tree.name(agent), TokenBuffer(range(tokens)))
    for draw in range(rollouts):
        turn(tree, tree.open(prompt, [0, draw], 5), USER, TokenBuffer([50 + draw], [-0.5], [3]))
    return tree


def test_trees_stand_side_by_side() -> None:
    one, other = grown("solver", 2, 2), grown("critic", 1, 1)
    one.close(1, "max_turns")
    one.score(1, 0.25)
    all_ = harvest([one, CoreTree(), other])
    assert isinstance(all_, Harvest)
    assert list(all_.parents) == [0, 0, 1, 1, 4, 5, 5, 6]
    assert list(all_.kinds) == [0, 1, 2, 2, 0, 0, 1, 2]
    assert [all_.names[agent] for agent in all_.agents] == ["", "solver", "", "", "", "", "critic", ""]
    assert list(all_.offsets) == [0, 0, 2, 3, 4, 4, 4, 5, 6]
    assert (list(all_.ids), list(all_.flags)) == ([0, 1, 50, 51, 0, 50], [0, 0, 1, 1, 0, 1])
    assert (list(all_.logprobs), list(all_.versions)) == ([0, 0, -0.5, -0.5, 0, -0.5], [-1, -1, 3, 3, -1, 3])
    assert list(all_.leaves) == [2, 3, 7]
    assert (list(all_.groups), list(all_.subgroups), list(all_.draws)) == ([0, 0, 2], [5, 5, 5], [0, 1, 0])
    assert list(all_.terminations) == [GROWING, list(Termination).index(Termination.MAX_TURNS), GROWING]
    assert math.isnan(all_.rewards[0])
    assert all_.rewards[1] == 0.25
    assert [all_.offsets.format, all_.rewards.format, all_.kinds.format] == ["Q", "d", "B"]
    nothing = harvest([])
    assert (len(nothing.parents), list(nothing.offsets), len(nothing.leaves), nothing.names) == (0, [0], 0, [""])
    with pytest.raises(TypeError):
        harvest([1])
