"""The native tree through its bindings: what goes in comes out, and what is wrong is a CoreError."""

from __future__ import annotations

import json
import math
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline import _core
from trunkline._core import MESSAGE, OBSERVATION, PROMPT, ROOT, TURN, CoreTree
from trunkline.errors import ArgumentError, CoreError, TreeError
from trunkline.types import Termination, Usage

USER = b'{"role":"user","content":"1+1?"}'
REPLY = b'{"role":"assistant","content":"2"}'


NODE = ("parent", "kind", "depth", "turns", "agent", "namespace", "finish", "prompt", "generated", "context")
ROLLOUT = (
    *("point", "leaf", "path", "subgroup", "termination", "answer", "error"),
    *("reward", "usage", "turns", "llm_micros", "tool_micros"),
)


def facts(read: _core.NodeView | _core.RolloutView) -> tuple[object, ...]:
    """All that a node or a rollout says; a missing reward as text, because it equals nothing."""
    values = [getattr(read, name) for name in (NODE if isinstance(read, _core.NodeView) else ROLLOUT)]
    return tuple("nan" if value != value else value for value in values)


def grown() -> tuple[CoreTree, int, int]:
    """A tree with a prompt and a rollout that has said one thing."""
    tree = CoreTree()
    prompt = tree.append(0, PROMPT, USER)
    rollout = tree.open(prompt, [0, 0], 3)
    leaf = tree.turn(rollout, REPLY, tree.name("solver"), tree.name("m"), tree.name("stop"), 9, 4, 1, 2, 50)
    return tree, rollout, leaf


def test_module_says_what_it_is() -> None:
    assert _core.__version__.count(".") == 2
    assert isinstance(_core.DEBUG, bool)
    assert (ROOT, PROMPT, TURN, OBSERVATION, MESSAGE) == (0, 1, 2, 3, 4)
    assert (_core.FORMAT, _core.DIGEST_VERSION) == (8, 2)
    for kind in (_core.NodeView, _core.RolloutView):
        with pytest.raises(TypeError, match="cannot create"):
            kind()
    assert CoreTree.__module__ == "trunkline._core"
    assert CoreTree.turn.__text_signature__.endswith("aside=None, context=None, tokens=None, /)")


def test_a_report_is_read_back_replaced_and_taken_away() -> None:
    tree, _, leaf = grown()
    digest = tree.digest()
    assert tree.report_of(leaf) is None
    for text, kept in [("counted ✓", "counted ✓"), ("counted again", "counted again"), ("", None)]:
        tree.report(leaf, text)
        assert tree.report_of(leaf) == kept
        assert tree.digest() == digest
    tree.report(1, "asked")
    delta = tree.delta()
    assert delta is not None
    copy = CoreTree()
    copy.apply(delta)
    assert (copy.report_of(1), copy.report_of(leaf), copy.digest()) == ("asked", None, digest)
    copy.check()
    with pytest.raises(ArgumentError, match="node 0 is the root"):
        tree.report(0, "x")
    with pytest.raises(TreeError, match="node 9 does not exist"):
        tree.report(9, "x")
    with pytest.raises(TreeError, match="node 9 does not exist"):
        tree.report_of(9)


def test_a_turn_is_read_back() -> None:
    tree, rollout, leaf = grown()
    assert leaf == 2
    assert len(tree) == 3
    assert facts(tree.node(leaf)) == (1, TURN, 2, 1, "solver", "m", "stop", 9, 1, None)
    assert facts(tree.node(0)) == (0, ROOT, 0, 0, "", "", "", None, None, None)
    assert repr(tree.node(leaf)) == "<NodeView: kind 2, depth 2, parent 1>"
    assert tree.message(leaf) == REPLY
    assert tree.message(0) == b""
    assert tree.path(leaf) == [1, 2]
    assert tree.path(0) == []
    assert tree.children(1) == [2]
    assert tree.aside(leaf) is None
    assert json.loads(tree.messages(leaf)) == [json.loads(USER), json.loads(REPLY)]
    assert tree.messages(0) == b"[]"
    assert tree.request(leaf, b"<", b">") == b"<" + USER + b"," + REPLY + b">"
    assert tree.growing == [rollout]
    assert tree.rollouts == 1
    assert repr(tree) == "<CoreTree: 3 nodes, 1 rollouts, 1 growing>"


def test_a_rollout_is_read_back() -> None:
    tree, rollout, leaf = grown()
    node = tree.observe(rollout, b'{"role":"tool"}', tree.name("search"), 70, True)
    again = tree.observe(rollout, b'{"role":"tool"}', tree.name("search"), 5)
    assert facts(tree.node(node))[:5] == (leaf, OBSERVATION, 3, 1, "search")
    assert facts(tree.node(again))[:4] == (node, OBSERVATION, 4, 1)
    before = tree.rollout(rollout)
    assert (before.point, before.leaf, before.path, before.subgroup, before.turns) == (1, again, (0, 0), 3, 1)
    assert (before.termination, before.answer, before.error) == (None, None, None)
    assert math.isnan(before.reward)
    assert Usage(*before.usage) == Usage(calls=1, prompt=9, cached=4, generated=1, retries=2, tools=2, tool_errors=1)
    assert (before.llm_micros, before.tool_micros) == (50, 75)
    assert repr(before) == f"<RolloutView: growing, point 1, leaf {again}, 1 turns>"
    tree.close(rollout, Termination.LLM_ERROR, None, "no reply")
    after = tree.rollout(rollout)
    assert (after.termination, after.answer, after.error) == ("llm_error", None, "no reply")
    assert before.termination is None, "what was read stays as it was"
    with pytest.raises(AttributeError):
        after.reward = 1.0
    assert tree.growing == []
    tree.score(rollout, 1)
    assert tree.rollout(rollout).reward == 1.0
    tree.check()


def test_contexts_asides_and_missing_usage() -> None:
    tree, rollout, _ = grown()
    context = tree.context((tree.fragment(REPLY), tree.fragment(USER)))
    assert tree.request_context(context, b"", b"!") == REPLY + b"," + USER + b"!"
    assert tree.context([]) == context + 1
    assert tree.request_context(context + 1, b"a", b"b") == b"ab"
    leaf = tree.turn(rollout, b"{}", 0, 0, 0, -1, -1, -1, 0, 0, "hm, ärger".encode(), context)
    assert tree.aside(leaf) == "hm, ärger"
    assert facts(tree.node(leaf))[-3:] == (None, None, context)
    assert tree.rollout(rollout).usage == (2, 9, 4, 1, 1, 2, 0, 0, 0, 0, 0)
    assert tree.rollout(rollout).turns == tree.node(leaf).turns == 2
    assert tree.tokens() == (10, 10, 1, 1, 10, 1, False)


def test_values_are_columns() -> None:
    tree, rollout, _ = grown()
    for draw, reward in [(1, 0.0), (2, 1.0)]:
        other = tree.open(1, [0, draw])
        tree.close(other, "answer", "2")
        tree.score(other, reward)
    tree.close(rollout, "censored")
    visits, scored, mean = tree.values()
    assert [column.format for column in (visits, scored, mean)] == ["I", "I", "d"]
    assert not any(column.readonly for column in (visits, scored, mean))
    assert list(visits) == [3, 3, 1]
    assert list(scored) == [2, 2, 0]
    assert list(mean[:2]) == [0.5, 0.5]
    assert math.isnan(mean[2])


def test_every_termination_of_python_is_known() -> None:
    tree = CoreTree()
    for draw, termination in enumerate(Termination):
        rollout = tree.open(0, [draw])
        if termination == Termination.RETRIED:
            with pytest.raises(TreeError, match="still growing; close it first"):
                tree.close(rollout, termination)
            tree.close(rollout, Termination.LLM_ERROR, None, "why")
        tree.close(rollout, termination)
        facts = tree.rollout(rollout)
        assert (facts.termination, facts.error) == (termination.value, "why" if termination == "retried" else None)
    for what in ((rollout, "retried"), (0, "retried", "another answer")):
        with pytest.raises(CoreError, match=r"cannot be retried again|those that it had"):
            tree.close(*what)


def test_deltas_rebuild_the_tree() -> None:
    tree, rollout, _ = grown()
    assert CoreTree().delta() is None
    first = tree.delta()
    assert first is not None
    assert tree.delta() is None
    tree.close(rollout, "answer", "2")
    second = tree.delta()
    assert second is not None
    copy = CoreTree()
    assert copy.apply(first) is True
    assert copy.apply(memoryview(first)) is False
    assert copy.apply(bytearray(second)) is True
    assert copy.digest() == tree.digest()
    assert len(copy.digest()) == 32
    assert facts(copy.rollout(rollout)) == facts(tree.rollout(rollout))
    copy.check()
    other, _, _ = grown()
    other.open(1, [7, 7])
    with pytest.raises(TreeError, match="number 0 does not continue this tree: it belongs to another tree"):
        copy.apply(other.delta() or b"")
    with pytest.raises(CoreError, match="checksum"):
        CoreTree().apply(first[:-1] + bytes([first[-1] ^ 1]))
    with pytest.raises(CoreError, match="truncated"):
        CoreTree().apply(first[:-1])
    with pytest.raises(CoreError, match="number 0 comes next"):
        CoreTree().apply(second)


BUFFERS = [
    bytes,
    bytearray,
    memoryview,
    lambda data: memoryview(bytearray(data)),
    lambda data: memoryview(b"x" + data + b"x")[1:-1],
    lambda data: memoryview(data[::-1])[::-1],
]


@pytest.mark.parametrize("buffer", BUFFERS)
def test_buffers_of_bytes_are_accepted(buffer) -> None:
    tree = CoreTree()
    rollout = tree.open(tree.append(0, PROMPT, buffer(USER)), [])
    leaf = tree.turn(rollout, buffer(REPLY), 0, 0, 0, 1, 0, 1, 0, 0, buffer(b"so"))
    assert tree.request(leaf, buffer(b"["), buffer(b"]")) == tree.messages(leaf)
    assert (tree.message(leaf), tree.aside(leaf)) == (REPLY, "so")
    assert tree.fragment(buffer(REPLY)) == tree.fragment(REPLY)


def test_a_buffer_is_copied() -> None:
    data = bytearray(USER)
    tree = CoreTree()
    node = tree.append(0, PROMPT, data)
    data[:] = b"-" * len(data)
    assert tree.message(node) == USER


REFUSALS = {
    "unknown parent": (lambda t: t.append(9, PROMPT, USER), "node 9 does not exist; there are 3"),
    "turn as a prompt": (lambda t: t.append(0, TURN, USER), "kind 2 cannot be appended"),
    "unknown kind": (lambda t: t.append(0, 77, USER), "kind 77"),
    "unknown agent": (lambda t: t.append(0, PROMPT, USER, 99), "name 99 does not exist"),
    "empty message": (lambda t: t.append(0, PROMPT, b""), "one JSON object in UTF-8: it is empty"),
    "array message": (lambda t: t.fragment(b"[]"), "does not start with {"),
    "latin-1 message": (lambda t: t.fragment('{"é"}'.encode("latin-1")), "not UTF-8"),
    "buffer of words": (lambda t: t.fragment(memoryview(b"{  }").cast("I")), "plain bytes"),
    "negative node": (lambda t: t.node(-1), "out of range"),
    "huge node": (lambda t: t.node(10**30), "out of range"),
    "duplicate path": (lambda t: t.open(0, [0, 0]), r"fork path \[0, 0\] is open already"),
    "negative path": (lambda t: t.open(0, [0, -1]), "out of range"),
    "unknown point": (lambda t: t.open(9, [1]), "node 9"),
    "unknown rollout": (lambda t: t.observe(5, USER, 0, 0), "rollout 5 does not exist; there are 1"),
    "negative tokens": (lambda t: t.turn(0, USER, 0, 0, 0, -2, 0, 1, 0, 0), "prompt is -2"),
    "huge tokens": (lambda t: t.turn(0, USER, 0, 0, 0, 1, 0, 2**32, 0, 0), "generated is 4294967296"),
    "negative time": (lambda t: t.observe(0, USER, 0, -1), "out of range"),
    "aside not text": (
        lambda t: t.turn(0, USER, 0, 0, 0, 1, 0, 1, 0, 0, b"\xff"),
        "aside is not valid UTF-8",
    ),
    "unknown context": (lambda t: t.turn(0, USER, 0, 0, 0, 1, 0, 1, 0, 0, None, 4), "context 4"),
    "unknown ending": (lambda t: t.close(0, "bored"), '"bored" is not a termination'),
    "surrogate answer": (lambda t: t.close(0, "answer", "\ud800"), "lone surrogates"),
    "score too early": (lambda t: t.score(0, 1.0), "still growing"),
    "unknown fragment": (lambda t: t.context([99]), "fragment 99"),
    "unknown request context": (lambda t: t.request_context(0, b"", b""), "context 0 does not exist"),
    "unknown request": (lambda t: t.request(9, b"", b""), "node 9"),
    "no delta": (
        lambda t: t.apply(b"nonsense, and enough of it for a header"),
        "does not start like a delta",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_are_tree_errors_and_change_nothing(case: str) -> None:
    tree, _, _ = grown()
    before = (tree.digest(), len(tree), facts(tree.rollout(0)), tree.delta())
    attempt, message = REFUSALS[case]
    with pytest.raises(CoreError, match=message):
        attempt(tree)
    assert (tree.digest(), len(tree), facts(tree.rollout(0))) == before[:3]
    assert tree.delta() is None
    tree.check()


def test_an_ended_rollout_is_over() -> None:
    tree, rollout, _ = grown()
    tree.close(rollout, "answer", "2")
    with pytest.raises(CoreError, match=r"has ended \(answer\) and cannot be closed"):
        tree.close(rollout, "lost")
    with pytest.raises(CoreError, match="cannot be continued"):
        tree.observe(rollout, b"{}", 0, 0)
    for reward in (math.inf, -math.inf):
        with pytest.raises(CoreError, match="finite"):
            tree.score(rollout, reward)
    with pytest.raises(CoreError):
        tree.score(rollout, 10**400)


@pytest.mark.parametrize(
    "misuse",
    [
        lambda t: t.name(b"bytes"),
        lambda t: t.observe(0, USER, 0, 0, 1),
        lambda t: t.append(0, PROMPT, "text"),
        lambda t: t.node("1"),
        lambda t: t.node(1.5),
        lambda t: t.open(0, 5),
        lambda t: t.score(0, "1"),
        lambda t: t.append(parent=0, kind=1, message=USER),
        lambda t: CoreTree(1),
    ],
)
def test_wrong_types_are_type_errors(misuse) -> None:
    tree, _, _ = grown()
    with pytest.raises(TypeError):
        misuse(tree)


def test_errors_of_the_core_are_trunklines_own() -> None:
    with pytest.raises(CoreError) as caught:
        CoreTree().node(1)
    assert type(caught.value) is TreeError
    assert str(caught.value) == "node 1 does not exist; there are 1"


STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(-1, 50), st.integers(-1, 9)), max_size=6)


def test_a_failed_call_is_counted_and_in_no_digest() -> None:
    well, ill = CoreTree(), CoreTree()
    for tree, failed in ((well, False), (ill, True)):
        rollout = tree.open(0, [0])
        for said in (b'{"n":1}', b'{"n":2}'):
            tree.observe(rollout, said, 0, 3, failed)
    assert (well.rollout(0).usage[6:8], ill.rollout(0).usage[6:8]) == ((2, 0), (2, 2))
    assert well.digest() == ill.digest()
    assert well.delta() != ill.delta()
    # Whether a call failed is no part of what makes two nodes one.
    ill.observe(ill.open(0, [1]), b'{"n":1}', 0, 0)
    assert (len(ill), ill.rollout(1).usage[6:8]) == (3, (1, 0))
    ill.check()


def build(
    rollouts: list[list[tuple[bool, int, int, int]]], *, backward: bool, cut: bool
) -> tuple[CoreTree, list[bytes]]:
    """Grow the rollouts one after the other or turn by turn from the last, with or without deltas between."""
    tree = CoreTree()
    deltas: list[bytes | None] = []
    order = list(enumerate(rollouts))
    ids = {}
    for draw, _ in reversed(order) if backward else order:
        ids[draw] = tree.open(0, [0, draw])
    for round_ in range(6):
        for draw, steps in reversed(order) if backward else order:
            for turn, number, prompt, generated in steps[round_ : round_ + 1]:
                message = b'{"n":%d}' % number
                if turn:
                    tree.turn(ids[draw], message, 0, 0, 0, prompt, 0, generated, 0, 0)
                else:
                    tree.observe(ids[draw], message, 0, 0)
            deltas.append(tree.delta() if cut else None)
    for draw, steps in order:
        tree.close(ids[draw], "answer", str(len(steps)))
        tree.score(ids[draw], len(steps) / 8)
    deltas.append(tree.delta())
    return tree, [delta for delta in deltas if delta is not None]


@given(rollouts=st.lists(STEPS, min_size=1, max_size=5), cut=st.booleans())
@settings(max_examples=60)
def test_order_splits_and_replay_give_one_digest(rollouts, cut: bool) -> None:
    tree, deltas = build(rollouts, backward=False, cut=cut)
    other, _ = build(rollouts, backward=True, cut=not cut)
    copy = CoreTree()
    for delta in deltas:
        assert copy.apply(delta)
    assert tree.digest() == other.digest() == copy.digest()
    assert [tree.messages(node) for node in range(len(tree))] == [copy.messages(node) for node in range(len(copy))]
    flat, shared, flat_generated, tree_generated, longest, *_ = tree.tokens()
    assert flat >= shared >= longest
    assert flat_generated >= tree_generated
    assert tree.tokens() == copy.tokens()
    copy.check()


@given(data=st.binary(max_size=120))
@settings(max_examples=100)
def test_noise_is_never_a_delta(data: bytes) -> None:
    tree, _, _ = grown()
    tree.delta()
    before = tree.digest()
    with pytest.raises(CoreError):
        tree.apply(data)
    assert tree.digest() == before


@given(text=st.text(max_size=40), number=st.integers(0, 2**32 - 2))
@settings(max_examples=60)
def test_text_and_numbers_come_back_as_they_went_in(text: str, number: int) -> None:
    tree = CoreTree()
    rollout = tree.open(0, [number], number)
    name = tree.name(text)
    message = json.dumps({"content": text}).encode()
    leaf = tree.turn(rollout, message, name, name, name, number, number, number, number, 2 * number, text.encode())
    tree.close(rollout, "answer", text, text)
    copy = CoreTree()
    copy.apply(tree.delta() or b"")
    for one in (tree, copy):
        assert facts(one.node(leaf)) == (0, TURN, 1, 1, text, text, text, number, number, None)
        assert one.aside(leaf) == text
        usage = (1, number, number, number, 0, number, 0, 0, 0, 0, 0)
        read = facts(one.rollout(rollout))
        assert read == (0, leaf, (number,), number, "answer", text, text, "nan", usage, 1, 2 * number, 0)


def test_what_is_known_of_a_merged_turn_is_what_the_rollout_opened_first_was_told():
    def merged(order: tuple[int, ...]) -> tuple[object, ...]:
        core = CoreTree()
        point = core.append(ROOT, PROMPT, b'{"role":"user","content":"?"}')
        model = core.name("m")
        rollouts = [core.open(point, (0, draw)) for draw in range(3)]
        for place in order:
            finish, aside = core.name(f"end {place}"), f"thought {place}".encode()
            said = b'{"role":"assistant","content":"yes"}'
            node = core.turn(rollouts[place], said, model, model, finish, 10 + place, 0, 20 + place, 0, 5, aside)
        core.check()
        again = CoreTree()
        again.apply(core.delta())
        assert again.digest() == core.digest()
        return tuple((one.node(node).prompt, one.node(node).generated, one.node(node).finish, one.aside(node))
                     for one in (core, again))  # fmt: skip

    known = (10, 20, "end 0", "thought 0")
    assert {merged(order) for order in permutations(range(3))} == {(known, known)}
