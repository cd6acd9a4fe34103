"""Selection through its bindings: small models in Python, picks that are for good, and refusals by name."""

from __future__ import annotations

import math
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline import _core
from trunkline._core import OBSERVATION, PROMPT, ROOT, TURN, CoreTree, Search
from trunkline.errors import ArgumentError

SEEDS = st.integers(0, 2**64 - 1)
NAN = math.nan


@st.composite
def searches(draw: st.DrawFn) -> tuple[list[int], list[int], list[float], list[int]]:
    parents = [draw(st.integers(0, node)) for node in range(draw(st.integers(1, 20)))]
    n = len(parents)
    visits = draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    values = draw(st.lists(st.floats(0, 1), min_size=n, max_size=n))
    room = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    return parents, visits, values, room


@given(searches(), st.floats(0, 2))
@settings(max_examples=60)
def test_scores_are_the_formula(search: tuple, c: float) -> None:
    parents, visits, values, _ = search

    def uct(node: int) -> float:
        value = values[node] if visits[node] else 0.0
        return (value + 1 + 1e-8) / 2 + c * math.sqrt(math.log(visits[parents[node]] + 1) / (visits[node] + 1e-10))

    expected = [math.inf if node == parent else uct(node) for node, parent in enumerate(parents)]
    scores = Search(array("I", parents), array("I", visits), array("d", values), c=c).scores()
    assert scores.format == "d"
    assert list(scores) == pytest.approx(expected)


@given(searches(), st.integers(0, 6))
@settings(max_examples=60)
def test_equal_searches_pick_equal_nodes_that_have_room(search: tuple, k: int) -> None:
    parents, visits, values, room = search
    one, two = (Search(parents, visits, values, formula="ucb1", c=1.4) for _ in range(2))
    picks = list(one.descend(room, k))
    assert picks == [two.descend([r - picks[:i].count(n) for n, r in enumerate(room)], 1)[0] for i in range(len(picks))]
    assert list(one.in_flight) == list(two.in_flight)
    assert one.in_flight[0] == len(picks)


@given(st.lists(st.integers(0, 2**32 - 1), unique=True, max_size=30), st.integers(0, 40), SEEDS)
@settings(max_examples=60)
def test_a_seed_draws_the_same_points(points: list[int], k: int, seed: int) -> None:
    if k > len(points):
        with pytest.raises(ArgumentError, match=f"k is {k}, with {len(points)} points"):
            _core.draw_points(points, k, seed)
    else:
        drawn = list(_core.draw_points(points, k, seed))
        assert len(set(drawn)) == k
        assert set(drawn) <= set(points)
        assert drawn == list(_core.draw_points(array("I", points), k, seed))
        assert drawn[: k // 2] == list(_core.draw_points(points, k // 2, seed))
    if points:
        assert set(_core.draw_points(points, k, seed, replace=True)) <= set(points)


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), max_size=12), st.integers(0, 8), SEEDS, st.booleans())
@settings(max_examples=60)
def test_branches_keep_to_the_places_and_the_beam(rows: list, free: int, seed: int, aepo: bool) -> None:
    entropies, baselines = [row[0] for row in rows], [row[1] for row in rows]
    options = {"rule": "aepo" if aepo else "arpo", "beam": 3, "streak": 4}
    branches, streak = _core.branch_rows(entropies, baselines, free, seed, **options)
    assert sum(branches) <= free
    assert all(0 <= made <= 2 for made in branches)
    assert streak == (5 if sum(branches) else 0)
    again, _ = _core.branch_rows(array("d", entropies), array("d", baselines), free, seed, **options)
    assert list(again) == list(branches)


@given(st.lists(st.booleans(), max_size=20), st.integers(0, 20), SEEDS)
@settings(max_examples=60)
def test_balanced_leaves_are_half_and_half_where_they_can_be(correct: list[bool], k: int, seed: int) -> None:
    if k > len(correct):
        with pytest.raises(ArgumentError, match="leaves to choose from"):
            _core.choose_leaves(bytes(correct), k, seed)
        return
    for choice in ("random", "first_correct", "balanced"):
        picks = list(_core.choose_leaves(bytes(correct), k, seed, choice=choice))
        assert len(set(picks)) == k
        right = sum(correct[pick] for pick in picks)
        if choice == "first_correct":
            assert right >= min(k, 1, sum(correct))
        if choice == "balanced":
            assert right >= min(k // 2, sum(correct))
            assert k - right >= min(k // 2, len(correct) - sum(correct))


def test_these_picks_are_for_good() -> None:
    points = range(10, 20)
    assert list(_core.draw_points(points, 6, 42, replace=True)) == [12, 12, 17, 15, 19, 13]
    assert list(_core.draw_points(points, 6, 42)) == [12, 13, 18, 16, 19, 11]
    correct = [0, 1, 0, 0, 1, 0, 0, 1]
    chosen = {name: list(_core.choose_leaves(correct, 4, 11, choice=name)) for name in ("random", "first_correct")}
    assert chosen == {"random": [6, 2, 0, 4], "first_correct": [4, 6, 2, 0]}
    assert list(_core.choose_leaves(correct, 4, 11, choice="balanced")) == [6, 2, 4, 7]
    entropies = [number / 4 for number in range(12)]
    branches, streak = _core.branch_rows(entropies, [1.0] * 12, 99, 6, beam=3, streak=4)
    assert (list(branches), streak) == ([0, 1, 0, 0, 2, 2, 2, 1, 1, 1, 2, 2], 5)


def test_the_worked_numbers_of_the_papers_come_out() -> None:
    near = pytest.approx

    def score(value: float, n: int, **options: float | str) -> float:
        return Search([0, 0], [6, n], [0, value], **options).scores()[1]

    assert score(0.5, 3) == near(1.555380, abs=1e-6)
    assert score(1, 2, c=0.5) == near(1.493192, abs=1e-6)
    assert score(0.5, 3, formula="ucb1", c=math.sqrt(2)) == near(1.592935, abs=1e-6)
    assert _core.branch_probability(0.3) == near(0.56)
    aepo = [_core.branch_probability(0.3, rule="aepo", streak=streak) for streak in (0, 2, 10, 20)]
    assert aepo == near([0.56, 0.504444, 0.06, 0], abs=1e-6)
    assert _core.initial_chains(16, 1.0, [3.0]) == 5
    turns = [1.5, 1.1, 1.3, 1.2, 2.0, 1.4, 3.0, 1.9, 2.2, 1.0, 1.0, 1.0, NAN, NAN, NAN]
    picks = {
        name: [2 * turn + 2 for turn in _core.top_turns(turns, 2, region=name)] for name in ("tool", "think", "all")
    }
    assert picks == {"tool": [4, 6], "think": [6, 2], "all": [6, 4]}
    assert list(_core.top_turns(turns, 3, region="mixed", duplicates=True)) == [1, 2, 2]
    assert list(_core.top_turns(turns, 3, region="mixed")) == [1, 2, 0]
    assert list(_core.split_evenly(8, 3)) == [2, 2, 4]
    assert (_core.tree_leaves(2, 2, 1), _core.tree_leaves(6, 2, 1, 2), _core.tree_leaves(8, 4, 2, 2)) == (6, 30, 136)
    assert [_core.tree_steps(2, 2, steps) for steps in (2, 3, 4, 10)] == [(10, 12), (14, 18), (18, 24), (42, 60)]
    assert _core.tree_ratio(2, 1) == 1.5
    assert list(_core.partial_top_up(8, [2], 2, 1, 3)) == [1]
    assert list(_core.partial_top_up(34, [4, 3, 0], 2, 2, 2)) == [2, 4, 10]


def test_fork_points_of_a_subgroup_are_those_of_its_own_path() -> None:
    kinds = bytes([ROOT, PROMPT, TURN, OBSERVATION, OBSERVATION, TURN, TURN, OBSERVATION])
    parents = [0, 0, 1, 2, 3, 4, 4, 6]
    assert list(_core.fork_points(parents, kinds, [5, 7])) == [1, 4]
    assert list(_core.fork_points(parents, kinds, [2])) == [1]
    assert list(_core.fork_points(parents, kinds, [])) == []


def test_surprising_tokens_spread_if_asked_to() -> None:
    """A prompt of four tokens, then a turn of seven and beside it one of three."""
    logprobs = [0.0] * 4 + [0.0, -9.0, -8.9, -8.8, -1.0, -1.1, -1.2, -9.5, -0.1, -8.7]
    flags = bytes(4) + bytes([1]) * 10

    def picks(k: int, leaves: tuple[int, ...] = (1, 2), flags: bytes = flags, **options: object) -> list:
        nodes, tokens = _core.surprising_tokens([0, 0, 0], leaves, [0, 4, 11, 14], logprobs, flags, k, **options)
        return list(zip(nodes, tokens, strict=True))

    assert picks(3) == [(1, 1), (1, 2), (1, 3)]
    assert picks(3, diverse=True) == [(1, 1), (2, 2), (1, 6)]
    assert picks(3, leaves=(2,)) == [(2, 2), (2, 1)]
    assert picks(9, limit=8) == [(1, 1), (1, 2), (1, 3), (2, 2), (2, 1)]
    assert picks(9, limit=7, cuts=[9, 9, 2]) == [(1, 1), (1, 2), (2, 1)]
    assert picks(2, flags=bytes([0, 0, 0, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1])) == [(1, 2), (1, 3)]
    assert picks(0) == []
    assert picks(9, leaves=()) == []


def grown(first: int) -> tuple[CoreTree, list[int]]:
    """Two rollouts of two turns each, side by side; that of number ``first`` is the faster one. And their turns."""
    tree = CoreTree()
    prompt = tree.append(0, PROMPT, b'{"role":"user","content":"?"}')
    for rollout in (0, 1):
        tree.open(prompt, [0, rollout], rollout)
    turns: dict[int, list[int]] = {0: [], 1: []}
    for turn in (0, 1):
        for rollout in (first, 1 - first):
            said = b'{"role":"assistant","content":"%d %d"}' % (rollout, turn)
            turns[rollout].append(tree.turn(rollout, said, 0, 0, 0, -1, -1, -1, 0, 0))
            if turn == 0:
                tree.observe(rollout, b'{"role":"tool","content":"seen"}', 0, 0)
    return tree, turns[0] + turns[1]


def test_no_pick_depends_on_which_rollout_was_faster() -> None:
    picks = []
    for first in (0, 1):
        tree, turns = grown(first)
        parents, kinds, leaves = tree.shape()
        assert (parents.format, kinds.format, leaves.format) == ("I", "B", "I")
        assert list(kinds) == [tree.node(node).kind for node in range(len(tree))]
        assert list(parents) == [tree.node(node).parent for node in range(len(tree))]
        assert list(leaves) == [tree.rollout(rollout).leaf for rollout in (0, 1)]
        texts = {node: tree.message(node) for node in range(len(tree))}
        points = _core.fork_points(*tree.shape())
        assert len(points) == 3
        drawn = _core.draw_points(points, 20, 3, replace=True)
        _, visits, values = tree.values()
        search = Search(parents, visits, values, leaves=leaves)
        below = search.descend([int(node in turns) for node in range(len(tree))], 4)
        picks.append([[tree.path(node) and texts[tree.path(node)[-1]] for node in each] for each in (below,)])
        picks[-1].append([b"".join(texts[node] for node in tree.path(point)) for point in drawn])
    assert picks[0] == picks[1]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: _core.fork_points([0, 5], b"\0\2", [1]), "the parent of node 1 is 5"),
        (lambda: _core.fork_points([0, 0], b"\0", [1]), "1 kinds where 2 are needed"),
        (lambda: _core.fork_points([0, 0], b"\0\2", [2]), "the leaf of rollout 0 is 2"),
        (lambda: _core.draw_points([], 1, 0, replace=True), "with 0 points to choose from"),
        (lambda: _core.draw_points([1], 1, -1), "a seed is out of range"),
        (lambda: _core.draw_points([1], 1, 2**64), "a seed is out of range"),
        (lambda: _core.draw_points([1], -1, 0), "out of range"),
        (lambda: _core.top_turns([1.0] * 4, 1), "three a turn"),
        (lambda: _core.top_turns([1.0, -1.0, 1.0], 1), "the tool perplexity of turn 0 is -1"),
        (lambda: _core.top_turns([], 1, region="tools"), 'the region is "tools"'),
        (lambda: _core.top_turns([], 1, region="\ud800"), "lone surrogates"),
        (lambda: _core.draw_points([1], 2**24 + 1, 0, replace=True), "k is 16777217; it must be 16777216 or less"),
        (lambda: _core.draw_points([1], 2**40, 0, replace=True), "out of range"),
        (lambda: _core.top_turns([1.0] * 3, 1, duplicates=True), "duplicates are asked for in one region"),
        (lambda: _core.surprising_tokens([0], [0], [0, 2], [0.0, 0.5], b"\1\1", 1), "token 1 of node 0 is 0.5"),
        (lambda: _core.surprising_tokens([0], [0], [0, 2], [0.0] * 2, b"\1\1", 1, cuts=[2, 2]), "2 cuts where 1 are"),
        (lambda: _core.surprising_tokens([0], [0], [0, 3], [0.0] * 2, b"\1\1", 1), "offset 1 of the runs is 3"),
        (lambda: _core.surprising_tokens([0], [1], [0, 2], [0.0] * 2, b"\1\1", 1), "the leaf of rollout 0 is 1"),
        (lambda: _core.surprising_tokens([0], [0], [0, 0], [], b"", 4097, diverse=True), "k is 4097"),
        (lambda: _core.branch_probability(NAN), "the change of entropy is NaN"),
        (lambda: _core.branch_probability(0.0, probability=1.5), "the branch probability is 1.5"),
        (lambda: _core.branch_probability(10**400), "too large for a float"),
        (lambda: _core.branch_probability(0.0, rule="apro"), '"arpo" or "aepo"'),
        (lambda: _core.branch_rows([1.0], [], 1, 0), "0 baselines where 1 are needed"),
        (lambda: _core.branch_rows([math.inf], [1.0], 1, 0), "the entropy of row 0 is inf"),
        (lambda: _core.branch_rows([], [], 1, 0, beam=0), "the beam is 0"),
        (lambda: _core.branch_rows([], [], 1, 0, beam=4097), "the beam is 4097"),
        (lambda: _core.branch_rows([1e101], [1.0], 1, 0), "the entropy of row 0 is 1"),
        (lambda: _core.initial_chains(4, 0.0, []), "no entropies after tool calls"),
        (lambda: _core.initial_chains(0, 0.0, [0.0]), "the number of rollouts is 0"),
        (lambda: _core.choose_leaves([1], 1, 0, choice="balanced", ratio=0.7), "the ratio is 0.7"),
        (lambda: _core.choose_leaves([1], 1, 0, choice="best"), 'the choice is "best"'),
        (lambda: _core.choose_leaves([1], 1, 0, ratio=0.5), "a ratio of 0.5 is given"),
        (lambda: _core.split_evenly(2**32 - 1, 2**32 - 1), "the number of paths is 4294967295"),
        (lambda: _core.split_evenly(1, 2), "a total of 1 is split over 2 paths"),
        (lambda: _core.tree_leaves(*[2**32 - 1] * 4), "the number of leaves is too large"),
        (lambda: _core.partial_top_up(6, [2], 2, 1, 3), "the budget is 6 rollouts"),
        (lambda: Search([0, 2], [0, 0], [0.0, 0.0]), "the parent of node 1 is 2"),
        (lambda: Search([0], [0], [0.0], leaves=[1]), "the leaf of rollout 0 is 1"),
        (lambda: Search([0], [1], [1e101]), "it must be a number from -1e100 to 1e100"),
        (lambda: Search([0], [0], [0.0]).descend([2**32 - 1], 4097), "k is 4097"),
        (lambda: Search([0], [0, 0], [0.0]), "2 visits where 1 are needed"),
        (lambda: Search([0], [1], [NAN]), "the value of node 0 is NaN"),
        (lambda: Search([0], [0], [0.0], in_flight=[]), "0 picks in flight where 1 are needed"),
        (lambda: Search([0], [0], [0.0], c=-1), "c is -1"),
        (lambda: Search([0], [0], [0.0], formula="puct"), 'the formula is "puct"'),
        (lambda: Search([0], [0], [0.0]).descend([1], 1, start=1), "the start of the search is 1 of 1 nodes"),
        (lambda: Search([0], [0], [0.0]).descend([], 1), "0 numbers of children to come where 1 are needed"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(call, text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        call()
    assert text in str(caught.value)


def test_a_search_without_nodes_or_room_picks_nothing() -> None:
    bare = Search([0], [0], [NAN])
    assert (len(bare), repr(bare)) == (1, "<Search: 1 nodes>")
    assert list(bare.descend([0], 5)) == []
    assert list(bare.descend([2], 5)) == [0, 0]
    assert len(Search([], [], []).scores()) == 0
