"""Segments against the paths they are cut from, and which of them are reported against every way to choose."""

from __future__ import annotations

import itertools

import pytest
from groves import D6, E6, Try, grove
from hypothesis import example, given
from hypothesis import strategies as st

from trunkline.scoring.reports.segments import GENERATED, Segment, Sizes, choose, reported_leaves, segments
from trunkline.tree.views import Kind
from trunkline.types import UNSCORED, Termination

TRIES = st.lists(
    st.builds(
        lambda turns, ended: Try(turns, ended=ended.value),
        st.lists(st.sampled_from("ABC"), max_size=5),
        st.sampled_from([Termination.ANSWER] * 4 + [Termination.MAX_TURNS, *sorted(UNSCORED)]),
    ),
    max_size=9,
)


def whole_path(tree, node):
    return [at for at in tree.core.path(node) if tree.core.node(at).kind != Kind.PROMPT]


def joined(found, at):
    one = found[at]
    return [*([] if one.parent is None else joined(found, one.parent)), *one.nodes]


@given(TRIES)
def test_segments_are_the_paths_of_what_is_reported_cut_where_they_part(tries):
    tree = grove(tries)
    wanted = {
        rollout.leaf.id: whole_path(tree, rollout.leaf.id)
        for rollout in tree.rollouts
        if rollout.termination not in UNSCORED and rollout.turns
    }
    found = segments(tree)
    assert set(reported_leaves(tree)) == set(wanted)
    assert {one.node: joined(found, at) for at, one in enumerate(found) if one.leaf} == wanted
    # Every node of a path is in one segment, and a segment ends where it must and nowhere else.
    nodes = [node for one in found for node in one.nodes]
    assert sorted(nodes) == sorted({node for path in wanted.values() for node in path})
    follows = {node: {path[path.index(node) + 1] for path in wanted.values() if node in path[:-1]} for node in nodes}
    for one in found:
        assert one.nodes[-1] == one.node
        assert one.leaf == (one.node in wanted)
        assert one.branches == len(follows[one.node])
        assert all(len(follows[node]) == 1 and node not in wanted for node in one.nodes[:-1])
        assert one.leaf or one.branches > 1


def test_an_uneven_tree_is_cut_at_its_forks_and_a_flat_group_is_not_cut():
    tree = grove(D6)
    found = segments(tree)
    said = [[tree.node(node).text for node in one.nodes] for one in found]
    # A turn and what came back are one node each; rollouts part after what came back.
    assert said == [
        ["A", "seen A"], ["A1"], ["A2"], ["A3"],
        ["B", "seen B"], ["B1", "seen B1"], ["B1a"], ["B1b"], ["B2"],
    ]  # fmt: skip
    assert [one.leaf for one in segments(grove(E6))] == [True] * 6
    assert segments(grove([])) == []


def test_a_leaf_of_two_rollouts_has_the_answer_that_one_of_them_gave():
    tree = grove([Try(["A"], 1.0), Try(["A"], 0.0, ended="max_turns")])
    assert tree.rollouts[0].leaf.id == tree.rollouts[1].leaf.id
    assert list(reported_leaves(tree).values()) == ["A"]


@st.composite
def woods(draw):
    """Segments with their sizes, at most nine, parents first."""
    count = draw(st.integers(1, 9))
    parents = [None, *(draw(st.none() | st.integers(0, at - 1)) for at in range(1, count))]
    below = [parents.count(at) for at in range(count)]
    leaves = [below[at] == 0 or draw(st.integers(0, 4)) == 0 for at in range(count)]
    found = [Segment(at + 1, parents[at], (at + 1,), leaves[at], below[at]) for at in range(count)]
    sizes = [float(draw(st.integers(1, 2000))) for _ in range(count)]
    known = draw(st.sets(st.integers(0, count - 1), max_size=2))
    return found, Sizes(draw(st.sampled_from([1.0, 300.0])), draw(st.sampled_from([1.0, 200.0])), sizes), known


def cost(found, sizes, chosen, known, cached):
    """What the requests of a choice hold, block by block, at a server that has read the beginnings of those before."""
    total = 0.0
    seen = set()
    for at, one in enumerate(found):
        if not chosen[at]:
            continue
        steps, above = [at], one.parent
        while above is not None and not chosen[above] and above not in known:
            steps.append(above)
            above = found[above].parent
        blocks = [("frame", sizes.frame), *([] if above is None else [(f"report {above}", sizes.report)])]
        blocks += [(f"steps {step}", sizes.steps[step]) for step in reversed(steps)]
        begun = ()
        for name, size in blocks:
            begun = (*begun, name)
            total += size * (cached if begun in seen else 1)
            seen.add(begun)
        total += GENERATED * sizes.report
    return total


FORKED = [Segment(1, None, (1,), False, 2), Segment(2, 0, (2,), True, 0), Segment(3, 0, (3,), True, 0)]


@given(woods(), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
# It would pay if the first request below a report did not read that in full.
@example((FORKED, Sizes(1.0, 100.0, [1050.0, 1.0, 1.0]), set()), 0.5)
def test_no_other_choice_is_estimated_to_cost_less(wood, cached):
    found, sizes, known = wood
    free = [at for at, one in enumerate(found) if not one.leaf and at not in known]
    costs = []
    for some in itertools.product([False, True], repeat=len(free)):
        taken = dict(zip(free, some, strict=True))
        costs.append(cost(found, sizes, [taken.get(at, at not in known) for at in range(len(found))], known, cached))
    chosen = choose(found, sizes, "auto", known, cached)
    assert [one for at, one in enumerate(chosen) if found[at].leaf or at in known] == [
        at not in known for at, one in enumerate(found) if one.leaf or at in known
    ]
    assert cost(found, sizes, chosen, known, cached) == pytest.approx(min(costs))


@given(woods())
def test_always_and_never_look_at_no_sizes(wood):
    found, sizes, known = wood
    assert choose(found, sizes, "always", known) == [at not in known for at in range(len(found))]
    assert choose(found, sizes, "never", known) == [one.leaf and at not in known for at, one in enumerate(found)]
