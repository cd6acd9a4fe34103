"""The plain search node: what counting and choosing come to, against naive models."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.compat import Node
from trunkline.errors import ConfigError, UsageError


def chain(length: int) -> Node:
    node = Node()
    for _ in range(length - 1):
        child = Node(parent=node)
        node.children.append(child)
        node = child
    return node


def test_it_is_used_as_the_examples_use_it():
    root = Node()
    assert (root.parent, root.children, root.state, root.visits, root.value) == (None, [], None, 0, 0.0)
    assert root.compressed_reasoning == ""
    child = Node(parent=root)
    assert root.children == [], "a node does not put itself among the children of its parent"
    root.children.append(child)
    child.state = {"messages": []}
    child.compressed_reasoning = "searched, then read"
    child.visits, child.value = 3, 0.5
    assert child.parent is root
    assert root.children == [child]
    assert (child.state, child.compressed_reasoning) == ({"messages": []}, "searched, then read")
    assert (root.best_child(1.4).visits, root.best_child(c=0).value) == (3, 0.5)


@given(
    st.lists(st.integers(0, 30), max_size=12),
    st.lists(st.tuples(st.integers(0, 12), st.integers(-8, 8)), max_size=30),
)
def test_values_are_the_means_of_the_rewards_below(shape: list[int], rewards: list[tuple[int, int]]):
    nodes, parents = [Node()], [None]
    for pick in shape:
        parent = pick % len(nodes)
        nodes.append(Node(nodes[parent]))
        nodes[parent].children.append(nodes[-1])
        parents.append(parent)
    below: list[list[int]] = [[] for _ in nodes]
    for pick, reward in rewards:
        at: int | None = pick % len(nodes)
        nodes[at].backpropagate(reward / 8)
        while at is not None:
            below[at].append(reward)
            at = parents[at]
    for node, seen in zip(nodes, below, strict=True):
        assert node.visits == len(seen)
        mean = Fraction(sum(seen), 8 * len(seen)) if seen else 0
        assert node.value == pytest.approx(float(mean), abs=1e-12)


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(-2, 2)), min_size=1, max_size=8), st.floats(0, 10))
def test_the_best_child_is_that_of_the_highest_bound(children: list[tuple[int, float]], c: float):
    root = Node()
    for visits, value in children:
        child = Node(root)
        child.visits, child.value = visits, value
        root.children.append(child)
    root.visits = sum(visits for visits, _ in children)
    chosen = root.children.index(root.best_child(c))
    unvisited = [place for place, (visits, _) in enumerate(children) if not visits]
    if unvisited:
        assert chosen == unvisited[0]
        return
    bounds = [value + c * math.sqrt(math.log(root.visits) / visits) for visits, value in children]
    assert chosen == bounds.index(max(bounds))


def test_the_bound_is_the_textbooks():
    root = Node()
    for visits, value in ((3, 0.5), (3, 0.4999)):
        child = Node(root)
        child.visits, child.value = visits, value
        root.children.append(child)
    root.visits = 6
    # 0.5 + sqrt(2 ln 6 / 3) = 1.592935; a child that is seen once less often needs 0.0855 less at c = sqrt 2.
    root.children[1].visits, root.children[1].value = 2, 1.592936 - math.sqrt(2 * math.log(6) / 2)
    assert root.best_child(math.sqrt(2)) is root.children[1]
    root.children[1].value -= 2e-6
    assert root.best_child(math.sqrt(2)) is root.children[0]


def test_equal_children_give_the_first():
    root = Node()
    for _ in range(3):
        root.children.append(Node(root))
    assert root.best_child(1) is root.children[0]
    for child in root.children:
        child.backpropagate(0.25)
    assert root.best_child(1) is root.children[0]


def test_visits_that_were_counted_by_hand_will_do():
    root = Node()
    child = Node(root)
    child.visits = 2
    root.children.append(child)
    assert root.best_child(1.0) is child
    other = Node(root)
    other.visits, other.value, child.value = 1, 0.5, 0.6
    root.children.append(other)
    for root.visits in (0, 1):
        assert root.best_child(1.0) is child, "after one visit nothing is in doubt"
    root.visits = 2
    assert root.best_child(1.0) is other


@pytest.mark.parametrize("reward", [None, math.nan], ids=["none", "nan"])
def test_an_unscored_rollout_changes_nothing(reward: float | None):
    leaf = chain(3)
    leaf.backpropagate(0.5)
    leaf.backpropagate(reward)
    assert [(node.visits, node.value) for node in (leaf, leaf.parent, leaf.parent.parent)] == [(1, 0.5)] * 3


@pytest.mark.parametrize(
    "reward",
    [math.inf, -math.inf, "1", True, [], 10**400],
    ids=["inf", "-inf", "text", "bool", "list", "beyond"],
)
def test_what_is_no_reward_is_refused(reward: object):
    leaf = chain(2)
    with pytest.raises(ConfigError, match="reward must be a finite number, not"):
        leaf.backpropagate(reward)
    assert (leaf.visits, leaf.parent.visits) == (0, 0)


def test_huge_rewards_have_a_mean():
    node = Node()
    for reward in (1.6e308, -1.6e308, 1.6e308):
        node.backpropagate(reward)
    assert node.value == pytest.approx(1.6e308 / 3)


def test_a_child_whose_value_nobody_knows_comes_last():
    root = Node()
    for visits, value in ((1, math.nan), (2, -5.0), (1, math.nan)):
        child = Node(root)
        child.visits, child.value = visits, value
        root.children.append(child)
    assert root.best_child(1) is root.children[1]
    root.children[1].value = math.nan
    assert root.best_child(1) is root.children[0]


def test_mistakes_are_said():
    with pytest.raises(UsageError, match="this node has no children"):
        Node().best_child(1.0)
    root = Node()
    root.children.append(Node(root))
    for c in (-1, math.nan, math.inf, "1", None):
        with pytest.raises(ConfigError, match="best_child: c must be a number"):
            root.best_child(c)
    with pytest.raises(ConfigError, match="parent must be a Node or None, not 'root'"):
        Node(parent="root")
    loop = Node()
    loop.parent = Node(loop)
    with pytest.raises(UsageError, match="leads back to where it began"):
        loop.backpropagate(1.0)
    assert loop.visits == 0
    assert repr(loop) == "<Node 0 children, 0 visits, value 0>"


def test_deep_chains_need_no_recursion():
    leaf = chain(100_000)
    leaf.backpropagate(1.0)
    leaf.backpropagate(0.0)
    root = leaf
    while root.parent is not None:
        root = root.parent
    assert (root.visits, root.value, leaf.value) == (2, 0.5, 0.5)
    assert json.dumps(repr(root)) == '"<Node 1 children, 2 visits, value 0.5>"'
    # Taken apart from above, since nobody promises that an interpreter frees a long chain at once.
    while root.children:
        root = root.children.pop()
        root.parent = None
