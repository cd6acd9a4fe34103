"""Any JSON object is a request that can be sent, or a refusal; a reply is the same whole and as events."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trunkline.gateway.formats import FORMATS
from trunkline.gateway.requests import AgentRequests
from trunkline.gateway.types import AgentReply, AgentRequest, RequestRefused
from trunkline.llm.messages import check
from trunkline.llm.request import Sampling, constant
from trunkline.llm.types import ReplyChoice, ToolCall

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "description": "The weather.", "parameters": SCHEMA, "strict": True}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}
SAMPLED = {"model": "m", "temperature": 0.5, "top_p": 1, "stream": True}
OPENAI = SAMPLED | {
    "n": 2,
    "stop": ["x"],
    "stream_options": {"include_usage": True},
    "top_k": 3,
    "seed": 4,
    "max_tokens": 9,
}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
BASE64 = {"type": "base64", "media_type": "image/png", "data": "AA=="}

FULL = {
    "/v1/chat/completions": OPENAI
    | {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Be short."}]},
            {"role": "user", "name": "u", "content": [{"type": "text", "text": "Weather?"}, PICTURE]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "response_format": {"type": "json_object"},
        "parallel_tool_calls": False,
        "modalities": ["text"],
    },
    "/v1/completions": OPENAI | {"prompt": ["Rain?"], "best_of": 1, "logit_bias": {"5": 1}, "echo": False, "user": "u"},
    "/v1/responses": SAMPLED
    | {
        "instructions": "Be short.",
        "input": [
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "?"}, {"type": "input_image", "image_url": "u"}],
            },
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "rain"}]},
        ],
        "tools": [{"type": "function", **FUNCTION}],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]},
        "text": {"format": {"type": "json_schema", "name": "f", "schema": SCHEMA}, "verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "previous_response_id": "resp_0f",
        "include": ["reasoning.encrypted_content"],
        "truncation": "auto",
        "max_output_tokens": 9,
    },
    "/v1/messages": SAMPLED
    | {
        "max_tokens": 9,
        "system": [{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "?"}, {"type": "image", "source": BASE64}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "Let me see."},
                    {"type": "tool_use", "id": "c1", "name": "weather", "input": {"INVALID_JSON": '{"city": '}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "c1",
                        "is_error": True,
                        "content": [{"type": "text", "text": "no"}],
                    },
                    {"type": "text", "text": "So?"},
                ],
            },
        ],
        "tools": [{"name": "weather", "input_schema": SCHEMA, "type": "custom"}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
        "thinking": {"type": "disabled"},
        "stop_sequences": ["x"],
        "top_k": 3,
    },
}
"""A request of each interface with all that it may have."""

# The server's reader of JSON leaves no lone surrogates, and no numbers that are none.
TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
NUMBERS = st.sampled_from([0, 1, -1, 2, 10**30, 2**31, 0.5, 1e300, 129]) | st.integers()
WORDS = sorted(
    {*re.findall(r"[A-Za-z_]{2,}", json.dumps(FULL)), "document", "item_reference", "web_search", "none", "url"}
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS | st.sampled_from([*WORDS, "\x1b[2J", "x" * 999]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS) | TEXTS, inner, max_size=3),
    max_leaves=9,
)


def places(value):
    """Every list and object within a value, with each index or name, and an unknown name."""
    keys = range(len(value)) if isinstance(value, list) else [*value, "other"] if isinstance(value, dict) else ()
    for key in keys:
        yield value, key
        if key != "other":
            yield from places(value[key])


def changed(route: str, changes):
    """A full request with some of its fields changed, or left out where the value is DROPPED."""
    body = json.loads(json.dumps(FULL[route]))
    for number, value in changes:
        found = [*places(body)]
        within, key = found[number % len(found)]
        if value is not DROPPED:
            within[key] = json.loads(json.dumps(value))
        elif isinstance(within, list) or key in within:
            del within[key]
    return body


DROPPED = object()
CHANGES = st.lists(st.tuples(st.integers(0, 999), VALUES | st.just(DROPPED)), max_size=4)


def read(route: str, body) -> AgentRequest | RequestRefused:
    try:
        return AgentRequests(b"secret").read(FORMATS[route], json.dumps(body).encode())
    except RequestRefused as refusal:
        return refusal


@pytest.mark.parametrize("route", FORMATS)
@given(changes=CHANGES, other=st.dictionaries(TEXTS | st.sampled_from(WORDS), VALUES, max_size=3), whole=st.booleans())
@example(changes=[], other={}, whole=True)
def test_any_object_is_read_or_refused(route: str, changes, other, whole: bool):
    body = changed(route, changes) if whole else other
    before = json.dumps(body)
    form = FORMATS[route]
    request = read(route, body)
    assert json.dumps(body) == before
    if isinstance(request, RequestRefused):
        assert request.status == 400
        assert (request.message + request.param).isprintable()
        assert 0 < len(request.message) < 500
        answer = json.loads(msgspec.json.encode(form.refuse(request)))
        assert answer["error"]["message"] == request.message
        assert before != json.dumps(FULL[route])
        return
    check(request.messages)
    assert request.messages
    assert 1 <= request.n <= 128
    assert Sampling(**msgspec.structs.asdict(request.sampling)) == request.sampling
    constant(request.sampling, msgspec.json.encode(request.tools))
    reply = AgentReply(id="0f", created=1, model=request.model, choices=[ReplyChoice("")])
    msgspec.json.encode(form.write(request, reply))
    assert b"".join(form.events(request, reply)).endswith(b"\n\n")


CALLS = st.builds(
    ToolCall, st.text(max_size=4), st.text(max_size=4), st.text(max_size=8) | st.just('{"a": [1.0, "b"]}')
)
CHOICES = st.builds(
    ReplyChoice,
    st.text(max_size=8),
    st.none() | st.text(max_size=4),
    st.lists(CALLS, max_size=2),
    st.sampled_from(["stop", "length", "tool_calls", "content_filter", "repetition", "", "other"]),
)
COUNTS = st.none() | st.integers(0, 99)
REPLIES = st.builds(
    AgentReply,
    id=st.just("0f"),
    created=st.just(1),
    model=st.just("m"),
    choices=st.lists(CHOICES, min_size=1, max_size=2),
    prompt=COUNTS,
    cached=COUNTS,
    generated=COUNTS,
)
ASKED = AgentRequest(
    model="m", messages=[{"role": "user", "content": "?"}], stream=True, options={"usage": True, "summary": True}
)


def events(route: str, reply: AgentReply) -> list[dict]:
    """The events of a reply, each named by its type where it has a name."""
    found = []
    for block in FORMATS[route].events(ASKED, reply):
        *name, data = block.decode().removesuffix("\n\n").split("\n")
        if data != "data: [DONE]":
            found.append(json.loads(data.removeprefix("data: ")))
            assert not name or name == [f"event: {found[-1]['type']}"]
    return found


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
@given(reply=REPLIES)
def test_chunks_add_up_to_the_completion(route: str, reply: AgentReply):
    whole = json.loads(msgspec.json.encode(FORMATS[route].write(ASKED, reply)))
    *chunks, last = events(route, reply)
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    for place, choice in enumerate(whole["choices"]):
        mine = [one["choices"][0] for one in chunks if one["choices"][0]["index"] == place]
        assert [one["finish_reason"] for one in mine] == [None] * (len(mine) - 1) + [choice["finish_reason"]]
        if "text" in choice:
            assert "".join(one["text"] for one in mine) == choice["text"]
            continue
        added: dict = {}
        for delta in (one["delta"] for one in mine):
            for call in delta.get("tool_calls", ()):
                assert call.pop("index") == len(added.setdefault("tool_calls", []))
                added["tool_calls"].append(call)
            added |= {name: value for name, value in delta.items() if name != "tool_calls"}
        assert added | {"refusal": None} == choice["message"]


@given(reply=REPLIES)
def test_events_add_up_to_the_response(reply: AgentReply):
    whole = json.loads(msgspec.json.encode(FORMATS["/v1/responses"].write(ASKED, reply)))
    made = events("/v1/responses", reply)
    assert [one["sequence_number"] for one in made] == [*range(len(made))]
    assert made[-1]["response"] == whole
    assert made[-1]["type"] == f"response.{whole['status']}"
    items = [one["item"] for one in made if one["type"] == "response.output_item.done"]
    assert items == whole["output"]
    texts = ["" for _ in items]
    for one in made:
        if one["type"].endswith(".delta"):
            assert one["item_id"] == items[one["output_index"]]["id"]
            texts[one["output_index"]] += one["delta"]
    wanted = [
        item["arguments"] if "arguments" in item else (item.get("content") or item.get("summary"))[0]["text"]
        for item in items
    ]
    assert texts == wanted


@given(reply=REPLIES)
def test_events_add_up_to_the_message_and_calls_come_back_as_they_were(reply: AgentReply):
    form = FORMATS["/v1/messages"]
    whole = json.loads(msgspec.json.encode(form.write(ASKED, reply)))
    made = events("/v1/messages", reply)
    added = made[0]["message"]
    for one in made:
        match one["type"]:
            case "content_block_start":
                added["content"].append(one["content_block"])
            case "content_block_delta" if one["delta"]["type"] == "text_delta":
                added["content"][one["index"]]["text"] += one["delta"]["text"]
            case "content_block_delta":
                added["content"][one["index"]]["input"] = json.loads(one["delta"]["partial_json"])
            case "message_delta":
                added |= {**one["delta"], "usage": one["usage"]}
    assert added == whole
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": whole["content"]}]
    body = {"model": "m", "max_tokens": 1, "messages": turns}
    said = AgentRequests(b"secret").read(form, json.dumps(body).encode()).messages[1]
    for call, given_back in zip(reply.choices[0].tool_calls, said.get("tool_calls", ()), strict=True):
        assert given_back["id"] == call.id
        assert given_back["function"]["name"] == call.name
        assert form_of(given_back["function"]["arguments"]) == form_of(call.arguments)


def form_of(arguments: str):
    """Arguments as an object where they are one; blank ones are an empty object."""
    try:
        value = json.loads(arguments or "{}")
    except ValueError:
        return arguments if arguments.strip() else {}
    return value if isinstance(value, dict) else arguments
