"""Messages and request bodies: canonical, valid JSON whatever a model or a user put in."""

import json
import re
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_reply import assistant

from trunkline._internal.text import excerpt, printable, scrub
from trunkline.errors import ConfigError
from trunkline.llm import messages
from trunkline.llm.request import Sampling, constant, draws, head, namespace
from trunkline.llm.types import ToolCall

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=60)
CALLS = st.lists(st.builds(ToolCall, id=ANY_TEXT, name=ANY_TEXT, arguments=ANY_TEXT), max_size=4)


def test_the_order_of_fields_is_fixed():
    assert messages.system("a") == b'{"role":"system","content":"a"}'
    assert messages.encode({"content": 'say "hi"\n', "role": "user"}) == b'{"role":"user","content":"say \\"hi\\"\\n"}'
    assert messages.tool("t0000c000", "out") == b'{"role":"tool","tool_call_id":"t0000c000","content":"out"}'
    assert assistant("done") == b'{"role":"assistant","content":"done"}'
    call = ToolCall("server-id", "search", '{"query": ["a"]}')
    assert json.loads(assistant("", [call, call], 3)) == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "t0003c000",
                "type": "function",
                "function": {"name": "search", "arguments": '{"query": ["a"]}'},
            },
            {
                "id": "t0003c001",
                "type": "function",
                "function": {"name": "search", "arguments": '{"query": ["a"]}'},
            },
        ],
    }


def test_the_servers_ids_never_matter():
    one = assistant("x", [ToolCall("call_1", "f", "{}"), ToolCall("call_1", "f", "{}")], 1)
    two = assistant("x", [ToolCall("", "f", "{}"), ToolCall("\x1b", "f", "{}")], 1)
    assert one == two


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ("", "{}"),
        ("  ", "{}"),
        ('{"x": 1, ', '{"malformed":"{\\"x\\": 1, "}'),
        ("[1]", '{"malformed":"[1]"}'),
        ('{"a": NaN}', '{"malformed":"{\\"a\\": NaN}"}'),
    ],
)
def test_arguments_in_a_history_are_always_a_json_object(sent, kept):
    message = json.loads(assistant("", [ToolCall("", "f", sent)]))
    assert message["tool_calls"][0]["function"]["arguments"] == kept


@given(ANY_TEXT, CALLS, st.integers(0, 5000))
@settings(max_examples=150)
def test_any_turn_becomes_a_message_a_server_accepts(content, calls, turn):
    data = assistant(content, calls, turn)
    message = json.loads(data.decode("utf-8"))
    if content or not calls:
        assert message["content"] == scrub(content)
    for index, call in enumerate(message.get("tool_calls", [])):
        assert call["id"] == messages.call_id(turn, index)
        assert re.fullmatch(r"[a-zA-Z0-9]{9}", call["id"])
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", call["function"]["name"])
        assert isinstance(json.loads(call["function"]["arguments"]), dict)
    assert assistant(content, calls, turn) == data


@given(ANY_TEXT)
@settings(max_examples=100)
def test_any_text_round_trips_but_for_lone_surrogates(text):
    user = messages.encode({"role": "user", "content": text})
    for data in (user, messages.system(text), messages.tool("t", text)):
        assert json.loads(data.decode("utf-8"))["content"] == scrub(text)


def test_call_ids_are_distinct_and_bounded():
    ids = {messages.call_id(turn, index) for turn in range(200) for index in range(50)}
    assert len(ids) == 10_000
    assert messages.call_id(36**4 - 1, 36**3 - 1) == "tzzzzczzz"
    with pytest.raises(ConfigError):
        messages.call_id(36**4, 0)
    with pytest.raises(ConfigError):
        messages.call_id(0, -1)


def test_a_users_own_messages():
    call = {"id": "abc", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history = [
        {"content": "be brief", "role": "developer"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": "x"}}],
        },
        {"tool_calls": [call], "role": "assistant"},
        {"tool_call_id": "abc", "content": "out", "role": "tool", "zeta": 1, "alpha": {"b": 1, "a": 2}},
    ]
    encoded = [messages.encode(message) for message in history]
    assert encoded[0] == b'{"role":"developer","content":"be brief"}'
    assert json.loads(encoded[1]) == history[1]
    assert json.loads(encoded[2]) == {**history[2], "content": None}
    assert list(json.loads(encoded[2])) == ["role", "tool_calls", "content"] or b'"content":null' in encoded[2]
    assert encoded[3].endswith(b'"tool_call_id":"abc","alpha":{"a":2,"b":1},"zeta":1}')
    assert messages.encode({"role": "user", "content": "\ud800"}) == b'{"role":"user","content":"\xef\xbf\xbd"}'


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("hi", "must be an object"),
        ({}, "'role'"),
        ({"role": "robot", "content": "x"}, "'role'"),
        ({"role": "user"}, "'content' is missing"),
        ({"role": "assistant", "content": None}, "'content' is null"),
        ({"role": "assistant", "tool_calls": []}, "'content' is missing"),
        ({"role": "user", "content": None}, "'content' is null"),
        ({"role": "user", "content": 5}, "'content' must be a string"),
        ({"role": "user", "content": []}, "empty list"),
        ({"role": "user", "content": ["x"]}, r"'content\[0\]'"),
        ({"role": "user", "content": [{"type": "text"}]}, r"'content\[0\]\.text'"),
        ({"role": "tool", "content": "x"}, "'tool_call_id'"),
        ({"role": "user", "content": "x", "tool_calls": [{}]}, "assistant messages only"),
        ({"role": "assistant", "content": "x", "tool_calls": {}}, "must be a list"),
        ({"role": "assistant", "content": "x", "tool_calls": [{}]}, r"'tool_calls\[0\]\.function'"),
        ({"role": "assistant", "tool_calls": [{"id": 1, "function": {}}]}, r"'tool_calls\[0\]\.id'"),
        (
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {}}}]},
            r"'tool_calls\[0\]\.function\.arguments'",
        ),
        ({"role": "user", "content": "x", "extra": object()}, "'extra' is not JSON"),
        ({"role": "user", "content": "x", 5: 1}, "not a string: 5"),
        (MappingProxyType({"role": "user", "content": "x"}), "must be an object"),
    ],
)
def test_a_message_that_cannot_be_sent_names_its_field(message, words):
    with pytest.raises(ConfigError, match=words):
        messages.encode(message)


def test_a_conversation_is_checked_as_a_whole(monkeypatch):
    messages.check([{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "refusal": "no"}])
    with pytest.raises(ConfigError, match=r"^prompt\[1\]: message field 'role' must be one of .*, not 'robot'"):
        messages.check([{"role": "user", "content": "x"}, {"role": "robot", "content": "x"}], "prompt")
    monkeypatch.setattr(messages, "LONGEST", 1_000)
    with pytest.raises(ConfigError, match=r"^messages is 1,0\d\d bytes long, at most 1,000 can be sent"):
        messages.check([{"role": "user", "content": "x" * 500}] * 2)


def test_a_body_is_head_messages_and_tail():
    sampling = Sampling(temperature=0.5, max_tokens=64, stop=("</s>",), extra={"top_k": 5, "a": 1})
    tools = b'[{"type":"function"}]'
    said = messages.system("hi") + b"," + assistant("x")
    body = head("my/model") + said + constant(sampling, tools) + draws(7, 4)
    assert json.loads(body) == {
        "model": "my/model",
        "messages": [{"role": "system", "content": "hi"}, {"role": "assistant", "content": "x"}],
        "tools": [{"type": "function"}],
        "temperature": 0.5,
        "max_tokens": 64,
        "stop": ["</s>"],
        "top_k": 5,
        "a": 1,
        "n": 4,
        "seed": 7,
    }
    assert constant(Sampling()) + draws(None) == b"]}"
    assert constant(Sampling(), b"[]") + draws(0) == b'],"seed":0}'
    assert constant(Sampling()) + draws(None, 2) == b'],"n":2}'
    assert b"logprobs" in constant(Sampling(logprobs=True, top_logprobs=5))


def test_tails_are_not_confused_when_memory_is_reused():
    for step in range(2000):
        assert b'"temperature":%d.0' % step in constant(Sampling(temperature=float(step)))


def test_a_namespace_says_what_makes_draws_comparable():
    base = Sampling(temperature=1.0, extra={"b": 1, "a": 2})
    assert namespace("m", base, b"[1]") == namespace("m", Sampling(temperature=1.0, extra={"a": 2, "b": 1}), b"[1]")
    others = [
        namespace("m2", base, b"[1]"),
        namespace("m", Sampling(temperature=0.9), b"[1]"),
        namespace("m", base, b"[2]"),
        namespace("m", base),
    ]
    assert len({namespace("m", base, b"[1]"), *others}) == 5


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stop": "x"}, "stop"),
        ({"stop": ("",)}, "stop"),
        ({"stop": ()}, "stop"),
        ({"stop": ("x", "\ud800")}, "stop[1] holds a lone surrogate"),
        ({"top_p": 10**400}, "top_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"extra": {"n": 3}}, "'n'"),
        ({"extra": {"seed": 3}}, "'seed'"),
        ({"extra": {"temperature": 3}}, "sampling.temperature"),
        ({"extra": {"x": object()}}, "extra is not JSON"),
        ({"extra": {1: 2}}, "not a string"),
        ({"extra": []}, "extra must be a dict"),
    ],
)
def test_sampling_out_of_range_names_its_field(options, field):
    with pytest.raises(ConfigError, match=re.escape(field)):
        Sampling(**options)


@pytest.mark.parametrize("model", ["", "  ", None, "\ud800"])
def test_a_model_must_have_a_name(model):
    with pytest.raises(ConfigError, match="model"):
        head(model)


@given(ANY_TEXT)
@settings(max_examples=150)
def test_what_is_shown_of_foreign_text_cannot_steer_a_terminal(text):
    shown = excerpt(text, 40)
    assert "\n" not in shown
    for character in printable(text) + shown:
        assert character == "\n" or ord(character) >= 0x20
        assert not 0x7F <= ord(character) <= 0x9F
        assert character not in "\u202e\u2066\u2028\u200b\ufeff"
    shown.encode()


def test_an_excerpt_hides_the_key_even_across_its_cut():
    assert "sekret-key" not in excerpt("a" * 195 + "sekret-key" + "b", 200, "sekret-key")
    assert excerpt("NO EMPTY words", 200, "EMPTY") == "NO EMPTY words"
    assert excerpt(b"\xff\x00ok") == "\ufffd\\x00ok"
