"""The transcript of a team's members, and replies that land on a tree later."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline._core import PROMPT, ROOT, CoreTree, ReplyOptions, Transcript, parse_reply
from trunkline.errors import ArgumentError, ReplyError, TreeError
from trunkline.llm.messages import CLOSES, OPENS, piece
from trunkline.tree.records import Record, Records

BODY = b'{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7}}'


def planted(rollouts: int = 1) -> CoreTree:
    tree = CoreTree()
    point = tree.append(ROOT, PROMPT, b'{"role":"user","content":"q"}')
    for draw in range(rollouts):
        tree.open(point, [0, draw])
    return tree


@given(st.lists(st.tuples(st.integers(0, 2), st.text(st.characters(exclude_categories=["Cs"])))))
def test_a_prompt_is_its_frame_around_all_that_its_member_sees(said: list[tuple[int, str]]):
    tree = CoreTree()
    transcript = Transcript(tree)
    for member, sees in enumerate([None, [0, 2], []]):
        transcript.frame(member, [[OPENS], [CLOSES]], sees)
    for member, text in said:
        assert transcript.add(member, b"<", text, b">") == tree.fragment(piece(f"<{text}>"))
    for member, sees in enumerate([range(3), (0, 2), ()]):
        (message,) = msgspec.json.decode(tree.request_context(transcript.prompt(member), b"[", b"]"))
        assert message["content"] == "".join(f"<{text}>" for who, text in said if who in sees)
    transcript.clear()
    assert transcript.prompt(0) == transcript.prompt(2)
    tree.check()


def test_a_transcript_refuses_what_no_prompt_can_hold():
    tree = CoreTree()
    transcript = Transcript(tree)
    with pytest.raises(ArgumentError, match="lone surrogates"):
        transcript.add(0, b"", "\ud800", b"")
    with pytest.raises(TreeError, match="control character"):
        transcript.add(0, b"\n", "text", b"")
    with pytest.raises(ArgumentError, match="member 0 has no frame"):
        transcript.prompt(0)
    with pytest.raises(TreeError, match="a message must be"):
        transcript.frame(0, [[b"\n"]], None)


def test_a_reply_lands_on_a_tree_with_the_record_that_readers_read():
    tree = planted(2)
    parsed, (choices, prompt, _, generated, served, estimated) = parse_reply(ReplyOptions(), BODY, 0)
    assert (choices, prompt, generated, served, estimated) == ([("a", None, [], "stop", 0, 34, "")], 7, -1, "", 0)
    assert parsed.append_turn(tree, 0, 'so"l', "m", None, 0, 5, 1, 2, 1, None, 0, b"[true]", True) == (
        2,
        34,
        1,
        True,
        7,
        None,
    )
    assert parsed.append_turn(tree, 1, 'so"l', "m", None, 0, 5, 0, 0, 1, None, 0, None, False) == (
        2,
        34,
        1,
        False,
        7,
        None,
    )
    records = Records(tree)
    assert records.of(0) == [Record(0, "ask", 'so"l', 1, [[2, 1, None, 0], None, [True]], [2], "alone")]
    assert records.of(1) == [Record(1, "ask", 'so"l', 0, [[0, 1, None, 0], None], [2], "")]
    tree.check()


def test_a_reply_that_cannot_be_a_turn_says_why_and_lands_nowhere():
    calls = ",".join(['{"function":{"name":"f","arguments":"{}"}}'] * 1001)
    parsed, (choices, *_) = parse_reply(
        ReplyOptions(), f'{{"choices":[{{"message":{{"tool_calls":[{calls}]}}}}]}}'.encode(), 0
    )
    assert choices[0][-1] == "the reply asks for 1001 tool calls; a turn may make 1000"
    tree = planted()
    for reply in (parsed, parse_reply(ReplyOptions(), b'{"choices":[]}', 0)[0]):
        with pytest.raises(ArgumentError):
            reply.append_turn(tree, 0, "s", "m", None, 0, 5, 0, 0, 1, None, 0, None, True)
    assert (len(tree), tree.marks()) == (2, [])
    with pytest.raises(ReplyError):
        parse_reply(ReplyOptions(), b"{", 0)
