"""Messages in pieces through the bindings: prompts share their parts, and digests know only what was sent."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline._core import CoreTree
from trunkline.errors import TreeError

OPENING = b'\x02{"role":"user","content":"'
END = b'\x01"}'
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


def piece(text: str) -> bytes:
    """Text inside the content of a message."""
    return b"\x01" + json.dumps(text)[1:-1].encode()


def asked(fragments: list[bytes]) -> tuple[CoreTree, list[dict[str, str]]]:
    """A tree with a turn that was asked with these, and the messages that were sent."""
    tree = CoreTree()
    context = tree.context([tree.fragment(fragment) for fragment in fragments])
    rollout = tree.open(0, [0])
    tree.turn(rollout, b"{}", 0, 0, 0, 1, 0, 1, 0, 0, None, context)
    return tree, json.loads(tree.request_context(context, b"[", b"]"))


@given(st.lists(TEXTS, max_size=6))
def test_a_prompt_in_pieces_is_the_prompt(texts: list[str]) -> None:
    tree, sent = asked([OPENING, *map(piece, texts), END])
    prompt = {"role": "user", "content": "".join(texts)}
    assert sent == [prompt]
    whole, _ = asked([json.dumps(prompt, separators=(",", ":")).encode()])
    assert tree.digest() == whole.digest()
    tree.check()


def test_what_colleagues_said_is_stored_once() -> None:
    tree = CoreTree()
    said = [tree.fragment(piece(f"{turn} {'x' * 1000}")) for turn in range(20)]
    opening, end = tree.fragment(OPENING), tree.fragment(END)
    for turn in range(20):
        tree.context([opening, *said[:turn], end])
    assert len(tree.delta() or b"") < 22_000, "20 KB were said, and 190 KB sent"


@pytest.mark.parametrize(
    ("fragments", "text"),
    [
        ([b"\x02"], "it opens a message and does not start with {"),
        ([b"\x02[]"], "it opens a message and does not start with {"),
        ([b"\x01line\nline"], "it has a control character after its marker"),
        ([b"\x01\xff"], "it is not UTF-8"),
        ([b"\x03{}"], "it does not start with {"),
        ([END], "fragment 0 of a context goes on with a message that no piece before it opens"),
        ([b"{}", END], "fragment 1 of a context goes on with a message that no piece before it opens"),
        ([OPENING, b"{}"], "fragment 0 of a context ends a message in pieces that does not end with }"),
    ],
    ids=["nothing", "a list", "a line break", "no text", "another marker", "no opening", "whole before", "no end"],
)
def test_what_is_no_piece_or_makes_no_message_is_refused(fragments: list[bytes], text: str) -> None:
    with pytest.raises(TreeError, match=text.replace("{", r"\{") + "$"):
        asked(fragments)


def test_a_piece_is_no_message_of_its_own() -> None:
    tree = CoreTree()
    rollout = tree.open(0, [0])
    with pytest.raises(TreeError, match="it is only a piece of one"):
        tree.tell(rollout, b"\x02{}", 0)
    assert len(tree) == 1
