"""The prefix index from Python: a set of prefixes and a list of paths, columns in and out, refusals by name."""

from __future__ import annotations

import math
from array import array
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline._core import SAMPLED, Prefix, TokenBuffer, pack_tree
from trunkline.errors import ArgumentError, TreeError

RUNS = st.lists(st.integers(0, 2), max_size=8)
STEPS = st.lists(st.tuples(st.sampled_from(["insert", "append", "fork"]), st.integers(0, 1), RUNS), max_size=25)


def common(path: list[int], ids: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(path, ids, strict=False)) if a != b), min(len(path), len(ids)))


@given(STEPS, st.lists(st.tuples(st.integers(0, 1), RUNS), max_size=8))
def test_an_index_is_a_set_of_prefixes_and_a_list_of_paths(steps: list, queries: list) -> None:
    prefix = Prefix()
    spaces = [prefix.space("one"), prefix.space("two")]
    paths: list[tuple[int, list[int]]] = []
    ends: dict[int, tuple[int, list[int]]] = {}
    for verb, number, ids in steps:
        known = list(ends)[number * len(ends) // 2 :][:1]
        if verb == "insert":
            ends[prefix.insert(spaces[number], TokenBuffer(ids))] = (number, ids)
            paths.append((number, ids))
        elif verb == "fork" and known:
            prefix.fork(known[0])
            paths.append(ends[known[0]])
        elif known and ends[known[0]] in paths:
            space, before = ends[known[0]]
            ends[prefix.append(known[0], TokenBuffer(ids))] = (space, before + ids)
            paths[paths.index((space, before))] = (space, before + ids)
        elif known:
            with pytest.raises(ArgumentError, match="no path ends"):
                prefix.append(known[0], TokenBuffer(ids))
    prefix.check()
    for number, space in enumerate(spaces):
        own = [path for where, path in paths if where == number]
        reuse = prefix.reuse(space)
        assert (reuse.paths, reuse.flat, reuse.longest) == (len(own), sum(map(len, own)), max(map(len, own), default=0))
        assert reuse.unique == len({tuple(path[: n + 1]) for path in own for n in range(len(path))})
    assert prefix.reuse().flat == sum(len(path) for _, path in paths)
    for node, (number, path) in ends.items():
        assert list(prefix.path(node).ids) == path
        read = prefix.node(node)
        assert (read.space, read.depth, read.ends) == (spaces[number], len(path), paths.count((number, path)))
        assert read.passes == sum(where == number and full[: len(path)] == path for where, full in paths)
    for number, ids in queries:
        found = prefix.match(spaces[number], array("I", ids))
        assert found.matched == max((common(path, ids) for where, path in paths if where == number), default=0)
        assert list(prefix.path(found.node).ids)[: found.matched] == ids[: found.matched]
        node = prefix.node(found.node)
        assert node.depth - node.len + found.offset == found.matched


def test_all_four_columns_come_back_as_they_were_stored_first() -> None:
    prefix = Prefix()
    space = prefix.space("")
    first = TokenBuffer([1, 2, 3], [-0.5, math.nan, -math.inf], [7, 8, 9], [SAMPLED, 0, SAMPLED])
    end = prefix.insert(space, first)
    assert prefix.insert(space, TokenBuffer(array("I", [1, 2, 3]), [0.0, 0.0, 0.0])) == end
    middle = prefix.insert(space, TokenBuffer([1, 2]))
    for stored in (prefix.path(end), prefix.path(middle), prefix.span(end)):
        assert isinstance(stored, TokenBuffer)
    path, tail = prefix.path(end), prefix.span(end)
    assert (path.ids, path.versions, path.flags) == (first.ids, first.versions, first.flags)
    assert bytes(path.logprobs) == bytes(first.logprobs)
    assert (list(tail.ids), list(tail.logprobs), list(tail.versions), list(tail.flags)) == ([3], [-math.inf], [9], [1])
    node = prefix.node(end)
    assert (node.parent, node.len, node.generated, node.passes) == (middle, 1, 1, 2)
    assert prefix.node(middle).parent == prefix.root(space)


def test_a_tree_of_two_tries_saves_its_prompt() -> None:
    prefix = Prefix()
    space = prefix.space("model")
    prompt = prefix.insert(space, TokenBuffer(range(20)))
    prefix.fork(prompt)
    for draw in (1, 2):
        prefix.append(prompt, TokenBuffer([100 * draw] * 10, [-1.0] * 10))
    reuse = prefix.reuse(space)
    assert (reuse.paths, reuse.flat, reuse.unique, reuse.longest) == (2, 60, 40, 30)
    assert (reuse.flat_generated, reuse.unique_generated, reuse.ideal_generated) == (20, 20, 1.0)
    assert (reuse.ratio, reuse.ideal) == pytest.approx((1 / 3, 1.5), abs=1e-5)
    assert repr(prefix) == "<Prefix: 2 paths, 40 tokens, 1 spaces>"
    assert repr(reuse) == "<Reuse: 2 paths, 60 tokens stored as 40>"
    found = prefix.match(space, range(7))
    assert repr(found) == f"<PrefixMatch: 7 tokens, to token 7 of node {prompt}>"
    assert repr(prefix.node(prompt)) == "<PrefixNode: 20 tokens to depth 20, 2 paths>"


def test_a_fork_inside_a_turn_is_packed_with_each_shared_token_once() -> None:
    # A prompt of two tokens; a turn of four and what it observed, and a turn that left it after two.
    first = TokenBuffer(
        [1, 2, 3, 4, 5, 6, 8], [0, 0, -1, -2, -3, -4, 0], [-1, -1, 4, 4, 4, 4, -1], [0, 0, 1, 1, 1, 1, 0]
    )
    second = TokenBuffer([1, 2, 3, 4, 7], [0, 0, -1, -2, -5], [-1, -1, 4, 4, 4], [0, 0, 1, 1, 1])
    prefix = Prefix()
    space = prefix.space("task")
    ends = [prefix.insert(space, path) for path in (first, second)]
    columns = prefix.columns([*ends, ends[1]])
    assert (list(columns.parents), list(columns.leaves)) == ([0, 0, 1, 1], [2, 3, 3])
    assert (list(columns.offsets), list(columns.nodes)) == ([0, 0, 4, 7, 8], [0, prefix.node(ends[0]).parent, *ends])
    shape = (columns.parents, columns.leaves, columns.offsets)
    packed = pack_tree(*shape, columns.ids, columns.logprobs, columns.versions, columns.flags, values=[3.0, 0.0, 0.0])
    assert list(packed.ids) == [1, 2, 3, 4, 5, 6, 8, 7]
    assert list(packed.position_ids) == [0, 1, 2, 3, 4, 5, 6, 4]
    assert list(packed.loss_mask) == [0, 0, 1, 1, 1, 1, 0, 1]
    assert list(packed.advantages) == [0, 0, 1, 1, 3, 3, 0, 0]
    for rollout, path in enumerate([first, second, second]):
        found = packed.unpack(rollout)
        assert (found.ids, found.logprobs) == (path.ids, path.logprobs)
        assert (found.versions, found.flags) == (path.versions, path.flags)


def test_a_reset_index_is_a_new_one_in_the_memory_of_the_old() -> None:
    prefix = Prefix()
    space = prefix.space("a")
    prefix.insert(space, TokenBuffer(range(100_000)))
    held = prefix.memory
    assert held >= 1_300_000
    prefix.reset()
    assert (len(prefix), prefix.reuse().unique) == (0, 0)
    with pytest.raises(TreeError, match="space 0 does not exist; there are 0"):
        prefix.match(space, [0])
    assert prefix.space("b") == 0
    prefix.insert(0, TokenBuffer(range(100_000)))
    assert (prefix.memory, len(prefix)) == (held, 2)


def test_what_does_not_exist_or_fit_is_refused() -> None:
    prefix = Prefix()
    space = prefix.space("a")
    with pytest.raises(TreeError, match="node 5 does not exist; there are 1"):
        prefix.columns([0, 5])
    for call in (prefix.node, prefix.span, prefix.path, prefix.fork, lambda node: prefix.append(node, TokenBuffer([]))):
        with pytest.raises(TreeError, match="node 5 does not exist; there are 1"):
            call(5)
    for call in (prefix.root, prefix.reuse, lambda other: prefix.insert(other, TokenBuffer([]))):
        with pytest.raises(TreeError, match="space 1 does not exist; there are 1"):
            call(space + 1)
    with pytest.raises(ArgumentError, match="no path ends"):
        prefix.append(0, TokenBuffer([1]))
    with pytest.raises(ArgumentError, match="out of range"):
        prefix.node(-1)
    with pytest.raises(ArgumentError, match="out of range"):
        prefix.match(space, [2**32])
    with pytest.raises(ArgumentError, match="surrogates"):
        prefix.space("\ud800")
    for wrong in ([1, 2], b"", None):
        with pytest.raises(TypeError):
            prefix.insert(space, wrong)
    assert (len(prefix), prefix.reuse().paths) == (1, 0)


def test_many_threads_fill_one_index() -> None:
    prefix = Prefix()
    space = prefix.space("a")
    trunk = list(range(20_000))

    def fill(number: int) -> int:
        end = prefix.insert(space, TokenBuffer([*trunk, 10**6 + number]))
        for turn in range(20):
            end = prefix.append(end, TokenBuffer([turn] * 10))
            assert prefix.match(space, trunk).matched == len(trunk)
        return end

    with ThreadPoolExecutor(8) as pool:
        ends = list(pool.map(fill, range(16)))
    prefix.check()
    assert len(set(ends)) == 16
    reuse = prefix.reuse()
    assert (reuse.paths, reuse.unique, reuse.flat) == (16, 20_000 + 16 * 201, 16 * 20_201)
