"""A conversation in pieces is the conversation in one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline._core import MESSAGE, ROOT, CoreTree
from trunkline.errors import ArgumentError, CoreError
from trunkline.rollout.sampling.prompt import PromptBuilder


def said(number: int) -> bytes:
    return b'{"role":"user","content":"%d"}' % number


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.data())
@settings(max_examples=100)
def test_pieces_are_the_body_at_every_node_and_in_every_fork(parents: list[int], data: st.DataObject):
    tree = CoreTree()
    nodes = [ROOT]
    builders = [PromptBuilder(tree)]
    for number, parent in enumerate(parents):
        above = nodes[parent % len(nodes)]
        nodes.append(tree.append(above, MESSAGE, said(number)))
        builders.append(PromptBuilder(tree))
    for node in nodes:
        path = [ROOT, *tree.path(node)]
        stop = path[data.draw(st.integers(0, len(path) - 1))]
        trunk = PromptBuilder(tree)
        trunk.to(stop)
        branch = trunk.fork()
        assert b"".join([b"<", *branch.to(node), b">"]) == tree.request(node, b"<", b">")
        assert b"".join([b"<", *trunk.to(stop), b">"]) == tree.request(stop, b"<", b">"), "a fork is on its own"


def test_a_conversation_is_few_pieces_and_each_byte_is_copied_as_often_as_it_doubles():
    tree, node = CoreTree(), ROOT
    builder = PromptBuilder(tree)
    before: dict[int, bytes] = {}
    copied = 0
    for number in range(1500):
        node = tree.append(node, MESSAGE, said(number))
        pieces = builder.to(node)
        assert pieces is builder.to(node), "what is asked for twice is there already"
        copied += sum(len(piece) for piece in pieces if id(piece) not in before)
        before = {id(piece): piece for piece in pieces}
        assert len(pieces) <= 12
    size = sum(map(len, pieces))
    assert copied <= size * 12
    assert [int(one["content"]) for one in json.loads(b"[" + b"".join(builder.to(node)) + b"]")] == list(range(1500))


def test_forks_share_what_was_said_before_them_and_stay_few_pieces():
    tree, node = CoreTree(), ROOT
    builder = PromptBuilder(tree)
    for number in range(700):
        node = tree.append(node, MESSAGE, said(number))
        trunk = list(builder.to(node))
        branch = builder.fork()
        leaf = tree.append(node, MESSAGE, said(-1))
        found = branch.to(leaf)
        if len(trunk) < 256:
            assert [id(piece) for piece in found[: len(trunk)]] == [id(piece) for piece in trunk]
        assert len(builder.to(node)) <= 256
        assert b"".join(branch.to(leaf)) == tree.request(leaf, b"", b"")


def test_what_is_not_on_the_path_is_refused():
    tree = CoreTree()
    left, right = (tree.append(ROOT, MESSAGE, said(number)) for number in (1, 2))
    with pytest.raises(ArgumentError, match="node 2 is not on the path to node 1; it must be a node at or above it"):
        tree.continuation(right, left)
    assert tree.continuation(left, left) == b""
    for pair in ((9, 1), (0, 9)):
        with pytest.raises(CoreError, match="node 9 does not exist"):
            tree.continuation(*pair)
