"""The form by which requests are compared."""

from __future__ import annotations

import copy
import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline._core import ConversationKeys, CoreTree, call_ids, parts_digest
from trunkline.errors import ConfigError
from trunkline.gateway.canonical import RequestMasks, forms
from trunkline.gateway.formats.chat import ChatFormat
from trunkline.gateway.requests import AgentRequests
from trunkline.rollout.external.conversations import Conversations

MASKS = RequestMasks(["[ab]"])
SECRET = b"S3cretS3cret"
TEXT = st.text(max_size=8)
ARGUMENTS = st.dictionaries(TEXT, st.integers() | TEXT | st.none() | st.lists(st.booleans(), max_size=2), max_size=3)


@st.composite
def conversations(draw):
    """Chat messages, whose calls have ids of their own."""
    messages, calls = [], []
    for _ in range(draw(st.integers(0, 6))):
        role = draw(st.sampled_from(["system", "user", "assistant", "tool"]))
        parts = [{"type": "x", "v": draw(st.sampled_from([1, True, 1.0]))}]
        message = {"role": role, "content": draw(TEXT | st.just(parts))}
        if role == "assistant" and draw(st.booleans()):
            made = [(f"call-{len(calls) + place}", draw(ARGUMENTS)) for place in range(draw(st.integers(1, 2)))]
            calls += made
            message["tool_calls"] = [
                {"id": name, "type": "function", "function": {"name": draw(TEXT), "arguments": json.dumps(given)}}
                for name, given in made
            ]
        if role == "tool":
            message["tool_call_id"] = draw(st.sampled_from([name for name, _ in calls] or ["none"]))
        messages.append(message)
    return messages


def renamed(messages, prefix):
    changed = copy.deepcopy(messages)
    for message in changed:
        for call in message.get("tool_calls", ()):
            call["id"] = prefix + call["id"]
        if "tool_call_id" in message and message["tool_call_id"] != "none":
            message["tool_call_id"] = prefix + message["tool_call_id"]
    return changed


@given(conversations())
def test_ids_and_the_order_of_arguments_do_not_count(messages):
    other = renamed(messages, "x")
    for message in other:
        for call in message.get("tool_calls", ()):
            given = json.loads(call["function"]["arguments"])
            call["function"]["arguments"] = json.dumps(dict(reversed(given.items())), indent=1)
        if not message["content"] and message["role"] == "assistant":
            message["content"] = None
    assert forms(messages) == forms(other)


@given(conversations(), st.data())
def test_any_other_text_counts(messages, data):
    if not messages:
        return
    place = data.draw(st.integers(0, len(messages) - 1))
    other = copy.deepcopy(messages)
    other[place]["content"] += "!" if isinstance(other[place]["content"], str) else [{"type": "y"}]
    before, after = forms(messages), forms(other)
    assert [place] == [number for number, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]


@given(conversations())
def test_the_forms_of_the_first_messages_do_not_depend_on_the_others(messages):
    whole = forms(messages)
    assert [forms(messages[:end]) for end in range(len(messages) + 1)] == [
        whole[:end] for end in range(len(messages) + 1)
    ]


@settings(max_examples=40)
@given(st.lists(conversations(), min_size=1, max_size=3), st.data())
def test_what_is_read_of_a_request_does_not_depend_on_earlier_ones(listed, data):
    together, seen, form = Conversations(CoreTree(), MASKS), AgentRequests(SECRET), ChatFormat()
    for _ in range(5):
        messages = copy.deepcopy(data.draw(st.sampled_from(listed)))
        messages = messages[: data.draw(st.integers(0, len(messages)))] + data.draw(conversations())
        if data.draw(st.booleans()):
            listed.append(messages)
        body = {"model": "m", "messages": [{"role": "user", "content": "a"}, *messages], "stop": "]"}
        body = dict(data.draw(st.permutations(list(body.items()))))
        sent = json.dumps(body, indent=data.draw(st.sampled_from([None, 1]))).encode()
        read = AgentRequests(SECRET).read(form, sent).messages
        here, alone = together.read(seen.read(form, sent).messages), Conversations(CoreTree(), MASKS).read(read)
        assert here.messages == alone.messages == read
        assert (here.key, here.raw, here.encoded) == (alone.key, alone.raw, alone.encoded)
        assert here.read.forms[: here.size] == forms(read, MASKS)
        assert here.raw == parts_digest(forms(read))


def test_a_message_that_was_read_behind_others_is_read_anew():
    """Behind a response, an agent may give other instructions with the same message."""
    said = {"role": "user", "content": "go"}
    here = Conversations(CoreTree(), MASKS)
    for text in ("Be short.", "Be long."):
        messages = [{"role": "system", "content": text}, said]
        read, alone = here.read(messages), Conversations(CoreTree(), MASKS).read(messages)
        assert (read.key, read.raw, read.messages, read.encoded) == (alone.key, alone.raw, messages, alone.encoded)


def test_which_call_is_answered_counts():
    calls = [{"id": name, "function": {"name": "f", "arguments": "{}"}} for name in "ab"]
    said = {"role": "assistant", "content": "", "tool_calls": calls}
    first, second = ([said, {"role": "tool", "content": "x", "tool_call_id": name}] for name in "ab")
    assert forms(first) != forms(second)


def test_parts_that_are_no_text_are_hashed():
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    (form,) = forms([{"role": "user", "content": [{"type": "text", "text": "what?"}, picture]}])
    assert b"what?" in form
    assert b"AAAA" not in form
    other = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAB"}}
    assert [form] != forms([{"role": "user", "content": [{"type": "text", "text": "what?"}, other]}])


def test_masks_cover_texts_and_arguments():
    masks = RequestMasks([r"\d{4}-\d\d-\d\d", r"(?i)pid \d+"], ["/tmp/a", "/tmp/a/b"])

    def said(day, pid, folder):
        arguments = json.dumps({"folder": folder})
        calls = [{"id": "1", "function": {"name": "f", "arguments": arguments}}]
        return [{"role": "assistant", "content": f"on {day}, PID {pid} in {folder}", "tool_calls": calls}]

    one = forms(said("2026-01-02", 17, "/tmp/a/b"), masks)
    assert one == forms(said("1999-12-31", 4, "/tmp/a"), masks)
    assert one != forms(said("1999-12-31", 4, "/tmp/c"), masks)


@given(conversations(), st.lists(st.text('ab"\\/\n\x00é\ud800', min_size=1, max_size=2), max_size=3), st.data())
def test_texts_are_covered_as_by_expressions(messages, texts, data):
    for message in messages:
        if isinstance(message["content"], str):
            message["content"] += data.draw(st.sampled_from(["", *texts]))
    never = RequestMasks([r"(?!)x"], texts)
    assert forms(messages, RequestMasks([], texts)) == forms(messages, never)


def digest(*parts, size=16):
    found = hashlib.blake2b(digest_size=size)
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.digest()


@given(st.lists(st.tuples(st.binary(max_size=200), st.binary(max_size=200), st.booleans()), max_size=5), st.binary())
def test_keys_are_hashes_of_what_comes_before(pairs, key):
    keys, expected = ConversationKeys(), [b""]
    for form, raw, known in pairs:
        expected.append(digest(expected[-1], form))
        keys.add(form, raw, expected[-1] if known else None)
    assert [keys.key(count) for count in range(len(pairs) + 2)] == [*expected, b""]
    assert keys.raw() == digest(*(raw for _, raw, _ in pairs)) == parts_digest([raw for _, raw, _ in pairs])
    turn = int.from_bytes(digest(key, bytes([3, 0, 0, 0]), size=8), "little") % 2**20
    assert call_ids(key, 3) == (key.hex(), turn, digest(key.hex().encode(), bytes([3, 0, 0, 0])).hex())
    with pytest.raises(ValueError, match="16 bytes"):
        keys.add(b"", b"", b"short")


@pytest.mark.parametrize("pattern", ["(", "x*", "", 3])
def test_masks_that_cannot_be(pattern):
    with pytest.raises(ConfigError, match="mask"):
        RequestMasks([pattern])


def test_a_message_of_calls_alone_is_read_whole():
    calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    body = {"model": "m", "messages": [{"role": "assistant", "tool_calls": calls}]}
    read = AgentRequests(SECRET).read(ChatFormat(), json.dumps(body).encode())
    assert read.messages == [{"role": "assistant", "content": "", "tool_calls": calls}]
