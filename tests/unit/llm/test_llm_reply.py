"""Reading replies: legal but unusual ones pass, usage that cannot be true counts as missing."""

import contextlib
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.errors import ConfigError, ReplyError
from trunkline.llm.http.outcome import Backoff, RequestContext, classify, retry_after
from trunkline.llm.response import read, unusable
from trunkline.llm.types import ToolCall


def body(message=None, finish="stop", **more):
    choice = {
        "index": 0,
        "message": message or {"role": "assistant", "content": "x"},
        "finish_reason": finish,
    }
    return json.dumps({"choices": [choice]} | more).encode()


def call(arguments, name="f", **more):
    return {"type": "function", "function": {"name": name, "arguments": arguments}} | more


def test_null_content_beside_tool_calls():
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [call('{"a": 1}', id="c1"), call('{"b": ')],
    }
    choice = read(body(message, "tool_calls")).choices[0]
    assert choice.content == ""
    assert choice.finish == "tool_calls"
    assert choice.tool_calls == [ToolCall("c1", "f", '{"a": 1}'), ToolCall("", "f", '{"b": ')]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"q": ["a", 1]}, '{"q": ["a", 1]}'),
        (None, ""),
        ("", ""),
        ("not json", "not json"),
        ("caf\u00e9 \U0001f600", "caf\u00e9 \U0001f600"),
        ([1], "[1]"),
    ],
)
def test_arguments_of_every_shape(arguments, text):
    message = {"content": None, "tool_calls": [call(arguments, id=7)]}
    found = read(body(message)).choices[0].tool_calls[0]
    assert (found.id, found.arguments) == ("7", text)


def test_calls_without_a_function_stay_calls():
    message = {"content": "", "tool_calls": [{"id": "a", "type": "custom"}, {"function": {}}]}
    assert read(body(message)).choices[0].tool_calls == [ToolCall("a", "", ""), ToolCall("", "", "")]


def test_content_as_parts_and_thinking():
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "an"},
        {"type": "text", "text": "swer"},
    ]
    choice = read(body({"content": parts})).choices[0]
    assert (choice.content, choice.reasoning) == ("answer", "hm")
    assert read(body({"content": "a", "reasoning_content": "b"})).choices[0].reasoning == "b"
    assert read(body({"content": "a", "reasoning": "b"})).choices[0].reasoning == "b"
    assert read(body({"content": "a", "reasoning": {"odd": 1}})).choices[0].reasoning is None
    assert read(body({"content": None, "refusal": "I cannot"})).choices[0].content == "I cannot"


@pytest.mark.parametrize("finish", [None, "length", "eos", "content_filter", 3])
def test_any_finish_reason_is_kept(finish):
    assert read(body(finish=finish)).choices[0].finish == ("" if finish is None else str(finish))


def test_choices_come_in_draw_order():
    choices = [{"index": i, "message": {"content": str(i)}} for i in (2, 0, 1)]
    assert [c.content for c in read(json.dumps({"choices": choices}).encode()).choices] == ["0", "1", "2"]
    for choice in choices:
        del choice["index"]
    assert [c.content for c in read(json.dumps({"choices": choices}).encode()).choices] == ["2", "0", "1"]


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 2}, (5, -1, 2)),
        ({"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": None}, (5, -1, 2)),
        (
            {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
            (5, 4, 2),
        ),
        (
            {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 9}},
            (5, 5, 2),
        ),
        ({"prompt_tokens": 5, "completion_tokens": 2, "prompt_cache_hit_tokens": 3}, (5, 3, 2)),
        ({"prompt_tokens": -5, "completion_tokens": 2}, (-1, -1, 2)),
        ({"prompt_tokens": 5, "completion_tokens": 10**15}, (5, -1, -1)),
        ({"prompt_tokens": 10**30, "completion_tokens": 1}, (-1, -1, 1)),
        ({"prompt_tokens": "many", "completion_tokens": 2}, (-1, -1, 2)),
        ({"prompt_tokens": 5}, (5, -1, -1)),
        ({}, (-1, -1, -1)),
        ([], (-1, -1, -1)),
        (None, (-1, -1, -1)),
    ],
)
def test_usage_is_believed_only_when_it_can_be_true(usage, expected):
    decoded = read(body(usage=usage))
    assert (decoded.prompt, decoded.cached, decoded.generated) == expected


def test_missing_usage_and_extra_fields():
    decoded = read(body(object="x", service_tier={"a": [1]}, choices_extra=None, created=1.5, model=["odd"]))
    assert (decoded.prompt, decoded.cached, decoded.generated) == (-1, -1, -1)
    assert decoded.served == ""
    assert read(body(model="m", system_fingerprint="fp")).served == "m fp"


def test_lone_surrogates_nul_and_a_byte_order_mark_are_saved():
    raw = b'\xef\xbb\xbf{"choices":[{"message":{"content":"a\\ud800b\\u0000c\\u2028","extra":"\\udfff"}}]}'
    assert read(raw).choices[0].content == "a\ufffdb\x00c\u2028"
    calls = rb'[{"function":{"name":"f","arguments":"\ud800"}}]'
    spoilt = b'{"choices":[{"message":{"content":null,"tool_calls":' + calls + b"}}]}"
    assert read(spoilt).choices[0].tool_calls[0].arguments == "\ufffd"


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_any_bytes_give_a_reply_or_the_one_error(data):
    with pytest.raises(ReplyError) as caught:
        read(data)
    assert str(caught.value).isprintable()


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.sampled_from(["choices", "usage", "message", "content", "tool_calls", "function", "arguments", "finish_reason"]),
    JSON_VALUES,
)
@settings(max_examples=300)
def test_any_value_in_any_place_gives_a_reply_or_the_one_error(place, value):
    reply = json.loads(body({"content": "x", "tool_calls": [call("{}")]}, usage={"prompt_tokens": 1}))

    def put(node):
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            if key == place:
                node[key] = value
            elif isinstance(node[key], dict | list):
                put(node[key])

    put(reply)
    with contextlib.suppress(ReplyError):
        decoded = read(json.dumps(reply).encode())
        assert decoded.choices
        assert isinstance(decoded.choices[0].content, str)
        assert all(isinstance(found.arguments, str) for found in decoded.choices[0].tool_calls)


def test_the_key_is_taken_out_of_what_is_shown():
    echo = b'{"echo": "Bearer sk-secret"'
    with pytest.raises(ReplyError) as caught:
        read(echo)
    said = unusable(caught.value, echo, "sk-secret")
    assert "Bearer" in said
    assert "sk-secret" not in said
    verdict = classify(
        401, {}, b'{"error": {"message": "bad key sk-secret"}}', RequestContext("http://h/v1", "K", "sk-secret")
    )
    assert "sk-secret" not in verdict.message


def test_backoff_doubles_up_to_its_cap():
    backoff = Backoff()
    assert [backoff.delay(n, draw=lambda: 1.0) for n in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert backoff.delay(10**6, draw=lambda: 1.0) == 30
    generator = random.Random(1)
    assert all(0 <= backoff.delay(4, draw=generator.random) <= 4 for _ in range(100))
    assert backoff.delay(1, 5.0, lambda: 0.0) == 5.0
    assert backoff.delay(1, 5.0, lambda: 1.0) == 5.5
    for options in ({"attempts": 0}, {"base": -1}, {"cap": float("inf")}, {"deadline": float("nan")}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            Backoff(**options)


@given(st.text(max_size=30))
@settings(max_examples=150)
def test_any_retry_after_is_seconds_or_nothing(text):
    for headers in ({"Retry-After": text}, {"retry-after-ms": text}):
        value = retry_after(headers, lambda: 1e9)
        assert value is None or value >= 0
        assert 0 <= Backoff().delay(1, value) <= 132


def test_a_date_is_seconds_from_now():
    assert retry_after({"Retry-After": "Sun, 09 Sep 2001 01:46:50 GMT"}, lambda: 1e9) == 10
    assert retry_after({"Retry-After": "Sun, 09 Sep 2001 01:46:50"}, lambda: 1e9) == 10
    assert retry_after({"Retry-After": "Sun, 09 Sep 2001 01:46:30 GMT"}, lambda: 1e9) is None
