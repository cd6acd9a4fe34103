"""Reading replies through the bindings, against a second reader and against a few lines of Python."""

from __future__ import annotations

import copy
import json
import math
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_reply import assistant, decode

from trunkline._core import SAMPLED, TRUNCATED, ParsedChoice, ParsedReply, read_reply
from trunkline.errors import ArgumentError, CoreError, LLMError, ReplyError

TEXT = st.text(max_size=20) | st.sampled_from(
    ["", "a\ud800b", "\0\n\x1f\x7f\u2028", '{"a": 1}', " \x1c\u3000", "{", "[1]"]
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text('ab"\\é\n', max_size=3), JSON_VALUES, max_size=3).map(json.dumps)
FUNCTIONS = st.fixed_dictionaries(
    {},
    optional={"name": st.none() | TEXT, "arguments": TEXT | OBJECTS | st.none() | st.lists(st.integers(), max_size=1)},
)
CALLS = st.fixed_dictionaries({}, optional={"id": st.none() | st.integers() | TEXT, "function": st.none() | FUNCTIONS})
PARTS = st.fixed_dictionaries({}, optional={"text": st.none() | TEXT, "thinking": st.none() | TEXT})
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "role": st.just("assistant"),
        "content": st.none() | TEXT | st.lists(PARTS | TEXT, max_size=3),
        "refusal": st.none() | TEXT,
        "reasoning": st.none() | TEXT,
        "reasoning_content": st.none() | TEXT,
        "tool_calls": st.none() | st.lists(CALLS, max_size=3),
        "annotations": JSON_VALUES,
    },
)
CHOICES = st.fixed_dictionaries(
    {"message": MESSAGES}, optional={"finish_reason": st.none() | st.integers() | TEXT, "logprobs": st.none()}
)
COUNTS = st.none() | st.integers(-3, 2**31 + 3)
USAGE = st.fixed_dictionaries(
    {"prompt_tokens": COUNTS, "completion_tokens": COUNTS},
    optional={"prompt_tokens_details": st.none() | st.fixed_dictionaries({"cached_tokens": COUNTS})},
)
REPLIES = st.fixed_dictionaries(
    {"choices": st.lists(CHOICES, min_size=1, max_size=3)},
    optional={"usage": st.none() | USAGE, "model": JSON_VALUES, "system_fingerprint": JSON_VALUES, "x": JSON_VALUES},
)


def agree(reply: ParsedReply, body: bytes) -> None:
    """What the native reader says is what the client's own says."""
    decoded = decode(body)
    assert len(reply.choices) == len(decoded.choices)
    for turn, (found, expected) in enumerate(zip(reply.choices, decoded.choices, strict=True)):
        assert (found.content, found.reasoning, found.finish) == (expected.content, expected.reasoning, expected.finish)
        calls = [(call.id, call.name, call.arguments) for call in expected.tool_calls]
        assert found.tool_calls == calls
        assert found.message(turn) == assistant(expected.content, expected.tool_calls, turn)
    assert reply.served == decoded.served


@given(REPLIES, st.booleans(), st.randoms())
@settings(max_examples=300)
def test_a_reply_reads_as_the_client_reads_it(value: dict, ascii_only: bool, random) -> None:
    if random.random() < 0.5:
        for index, choice in enumerate(value["choices"]):
            choice["index"] = index
        random.shuffle(value["choices"])
    body = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "replace")
    reply = read_reply(body)
    agree(reply, body)
    decoded = decode(body)
    if None in (reply.prompt, reply.generated):
        # The client takes a usage for all or nothing.
        assert (decoded.prompt, decoded.generated) == (-1, -1)
    else:
        # What other choices have is estimated by the core where usage is that of the first alone.
        figures = (reply.prompt, reply.cached, reply.generated - reply.estimated)
        assert tuple(-1 if figure is None else figure for figure in figures) == decoded[1:4]


PLACES = ["choices", "usage", "message", "content", "tool_calls", "function", "arguments", "finish_reason", "reasoning"]


# The client writes a value anew where it finds half a surrogate pair, and here it keeps its own text.
@given(st.sampled_from(PLACES), JSON_VALUES.filter(lambda value: "ud800" not in json.dumps(value)))
@settings(max_examples=300)
def test_what_the_client_refuses_is_refused(place: str, value: object) -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
    message = {"content": "x", "tool_calls": [call], "reasoning": None}
    reply = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}

    def put(node):
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            if key == place:
                node[key] = copy.copy(value)
            elif isinstance(node[key], dict | list):
                put(node[key])

    put(reply)
    body = json.dumps(reply).encode()
    try:
        found = read_reply(body)
    except ReplyError:
        with pytest.raises(LLMError):
            decode(body)
        return
    if found.choices:
        agree(found, body)


def test_numbers_beyond_a_reader_do_not_make_a_difference() -> None:
    body = b'\xef\xbb\xbf{"choices":[{"message":{"content":"a"},"x":1e999}],"y":' + b"9" * 400 + b"}"
    assert read_reply(body).choices[0].content == "a"


def entry(token: str, logprob: float | None, top: list | None = None) -> dict:
    listed = None if top is None else [{"token": "?", "logprob": number, "bytes": [63]} for number in top]
    return {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": listed}


def body(entries: list[dict] | None, **more: object) -> bytes:
    logprobs = None if entries is None else {"content": entries}
    choice = {"index": 0, "message": {"content": "x"}, "finish_reason": "length", "logprobs": logprobs, **more}
    return json.dumps({"choices": [choice]}).encode()


def test_three_tokens_that_lack_mass_tell_the_definitions_apart() -> None:
    data = body([entry("a", math.log(0.2), [math.log(p) for p in (0.5, 0.2, 0.1)])])
    expected = {"consistent": 0.900256, "parallelmuse": 1.123400, "surprisal": 1.609438}
    for name, entropy in expected.items():
        choice = read_reply(data, entropy=name).choices[0]
        assert choice.entropies.tolist() == [pytest.approx(entropy, abs=1e-5)]
        assert choice.tokens.entropy[2] == pytest.approx(entropy, abs=1e-5)
        assert choice.tokens.perplexity[2] == pytest.approx(math.exp(entropy), abs=1e-5)
    two = read_reply(data, top=2).choices[0]
    assert two.entropies[0] == pytest.approx(-(5 / 7 * math.log(5 / 7) + 2 / 7 * math.log(2 / 7)), abs=1e-5)
    mass = -sum(p * math.log(p) for p in (0.5, 0.2, 0.1))
    assert two.arpo(1000) == pytest.approx(mass / math.log(1000), abs=1e-9)


PIECES = st.sampled_from(["<think>", "</think>", "<tool_call>", "</tool_call>", "a", " b", "\u00e9"])
LOGPROBS = st.floats(-10, 0)


@given(st.lists(st.tuples(PIECES, st.none() | LOGPROBS, st.none() | st.lists(LOGPROBS, max_size=4)), max_size=30))
@settings(max_examples=200)
def test_perplexities_are_those_of_a_few_lines_of_python(tokens: list[tuple]) -> None:
    entropies, regions, inside, seen = [], [], "", set()
    for piece, _, top in tokens:
        weights = [math.exp(number) for number in top or []]
        entropies.append(-sum(w / sum(weights) * math.log(w / sum(weights)) for w in weights) if weights else math.nan)
        kind, closing = piece.strip("</>"), piece.startswith("</")
        tag = len(piece) > 3 and inside in ("", kind) and (closing or not inside)
        if tag and closing and not inside and kind not in seen:
            # The prompt opened it: all since the beginning, or for a call since the thinking, is inside.
            start = (
                0 if kind == "think" else max((i + 1 for i, region in enumerate(regions) if region == "tag"), default=0)
            )
            regions[start:] = [kind] * (len(regions) - start)
            seen = set() if kind == "think" else seen
        if tag:
            seen.add(kind)
            inside = "" if closing else kind
        regions.append("tag" if tag else inside)
    choice = read_reply(body([entry(*token) for token in tokens])).choices[0]
    assert choice.entropies.tolist() == pytest.approx(entropies, abs=1e-5, nan_ok=True)
    expected = []
    for kind in ("think", "tool_call", None):
        known = [h for h, region in zip(entropies, regions, strict=True) if kind in (None, region) and h == h]
        expected.append(math.exp(math.fsum(known) / len(known)) if known else math.nan)
    assert choice.tokens.perplexity == pytest.approx(expected, rel=1e-5, nan_ok=True)
    assert choice.logprobs.tolist() == pytest.approx(
        [math.nan if logprob is None else logprob for _, logprob, _ in tokens], nan_ok=True
    )


def test_columns_of_tokens() -> None:
    choice = read_reply(body([entry("a", -0.5), entry("b", None)], token_ids=[7, 8]), version=3).choices[0]
    tokens = choice.tokens
    assert (list(tokens.ids), list(tokens.versions), list(tokens.flags)) == (
        [7, 8],
        [3, 3],
        [SAMPLED, SAMPLED | TRUNCATED],
    )
    assert tokens.logprobs[0] == -0.5
    assert math.isnan(tokens.logprobs[1])
    bare = read_reply(body(None, token_ids=[7])).choices[0]
    assert (bare.has_ids, bare.logprobs, bare.entropies, len(bare.tokens)) == (True, None, None, 1)
    assert math.isnan(bare.tokens.logprobs[0])
    assert all(map(math.isnan, bare.tokens.entropy + bare.tokens.perplexity))
    unnamed = read_reply(body([entry("a", -0.5, [-0.1, -3.0])])).choices[0]
    assert (unnamed.has_ids, len(unnamed.tokens), len(unnamed.logprobs)) == (False, 0, 1)
    assert unnamed.tokens.entropy[2] == unnamed.entropies[0] > 0
    assert math.isnan(bare.arpo(1000))
    assert (choice.aligned, bare.aligned, unnamed.aligned) == (True, False, False)
    assert choice.tokens is tokens


def test_a_server_that_lists_no_token_of_a_call_costs_no_reply() -> None:
    listed = [entry(text, -0.5, [math.log(0.5)] * 2) for text in ("<think>", "hm", "</think>")]
    choice = read_reply(body(listed, token_ids=[1, 2, 3, 4, 5, 6])).choices[0]
    assert (choice.has_ids, choice.aligned) == (True, False)
    assert list(choice.tokens.ids) == [1, 2, 3, 4, 5, 6]
    assert all(map(math.isnan, choice.tokens.logprobs))
    assert choice.logprobs.tolist() == [-0.5] * 3
    think, tool, both = choice.tokens.perplexity
    assert (think, both) == (pytest.approx(2), pytest.approx(2))
    assert math.isnan(tool)


def test_log_probabilities_in_lists_and_ids_in_names() -> None:
    lists = {"tokens": ["a", "b"], "token_logprobs": [None, -1.5], "top_logprobs": [None, {"b": -1.5, "c": -1.5}]}
    value = {"choices": [{"message": {"content": "ab"}, "logprobs": lists | {"token_ids": [7, 8]}}]}
    choice = read_reply(json.dumps(value).encode()).choices[0]
    assert (list(choice.tokens.ids), choice.aligned) == ([7, 8], True)
    assert choice.logprobs.tolist() == pytest.approx([math.nan, -1.5], nan_ok=True)
    assert choice.entropies.tolist() == pytest.approx([math.nan, math.log(2)], nan_ok=True)
    named = read_reply(body([entry("token_id:11", -1), entry("token_id:0", -2)])).choices[0]
    assert (list(named.tokens.ids), list(named.tokens.logprobs), named.aligned) == ([11, 0], [-1, -2], True)


def test_prompt_ids_reasoning_tokens_and_other_tags() -> None:
    value = json.loads(body([entry("[", -1, [0]), entry("a", -1, [-1, -1]), entry("]", -1, [0])]))
    value |= {"prompt_token_ids": [1, 2**32 - 1], "usage": {"completion_tokens_details": {"reasoning_tokens": 4}}}
    reply = read_reply(memoryview(json.dumps(value).encode()), think=("[", "]"), tool=("(", ")"))
    assert (reply.prompt_ids.tolist(), reply.prompt_ids.format) == ([1, 2**32 - 1], "I")
    assert (reply.reasoning, reply.prompt) == (4, None)
    assert reply.choices[0].tokens.perplexity[0] == pytest.approx(2)
    assert (repr(reply), repr(reply.choices[0])) == (
        "<ParsedReply: 1 choices>",
        '<ParsedChoice 0: "length", 1 characters, 0 tool calls>',
    )
    assert read_reply(b'{"choices":[]}').choices == ()
    assert isinstance(reply.choices[0], ParsedChoice)


@given(st.binary(max_size=60) | st.binary(max_size=20).map(lambda data: b'{"choices":[{"message":{"content":"' + data))
@settings(max_examples=200)
def test_any_bytes_give_a_reply_or_an_error_with_its_byte(data: bytes) -> None:
    with pytest.raises(ReplyError) as caught:
        read_reply(data)
    assert 0 <= caught.value.offset <= len(data)
    assert str(caught.value).endswith(f"(byte {caught.value.offset})")


def test_errors_name_the_place_and_the_byte() -> None:
    data = b'{"choices":[{"message":{"content":"a"},"token_ids":[1,"2"]}]}'
    with pytest.raises(ReplyError) as caught:
        read_reply(data)
    assert str(caught.value) == "choices[0].token_ids[1]: a number is needed, not a string (byte 54)"
    assert isinstance(caught.value, CoreError)
    assert isinstance(caught.value, ValueError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.offset) == (str(caught.value), 54)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"entropy": "arpo"}, 'the entropy is "arpo"; it must be consistent, parallelmuse or surprisal'),
        ({"top": 0}, "top is 0; it must be at least 1"),
        ({"top": -1}, "out of range"),
        ({"version": -2}, "version is -2"),
        ({"version": 2**31}, "out of range"),
        ({"think": ("", "x")}, "1 to 64 bytes"),
        ({"tool": ("x", "x")}, "two different strings"),
        ({"tool": ("x", "\ud800")}, "lone surrogates"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict, text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        read_reply(b'{"choices":[]}', **options)
    assert text in str(caught.value)


def test_a_message_needs_a_turn_that_has_ids() -> None:
    call = {"function": {"name": "f", "arguments": "{}"}}
    choice = read_reply(json.dumps({"choices": [{"message": {"tool_calls": [call]}}]}).encode()).choices[0]
    assert b'"id":"tzzzzc000"' in choice.message(36**4 - 1)
    for turn in (36**4, -1, 2**32):
        with pytest.raises(ArgumentError):
            choice.message(turn)
    for wrong in ("1", None, 1.5):
        with pytest.raises(TypeError):
            choice.message(wrong)
    for wrong in ("text", None, 3):
        with pytest.raises(TypeError):
            read_reply(wrong)
