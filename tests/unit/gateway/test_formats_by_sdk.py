"""What the official clients send is read, and what they are answered is what they parse, whole and as a stream."""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from openai import AsyncOpenAI, BadRequestError, DefaultAsyncHttpxClient
from pydantic import BaseModel

from trunkline.gateway.formats import FORMATS, anthropic, chat, completions, responses
from trunkline.gateway.requests import AgentRequests
from trunkline.gateway.types import AgentReply, AgentRequest, RequestRefused
from trunkline.llm.types import ReplyChoice, ToolCall

ID = "0123456789abcdef"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "description": "The weather.", "parameters": SCHEMA}
CALLS = [ToolCall("call00001", "weather", '{"city": "Köln"}'), ToolCall("call00002", "weather", '{"city": ')]
TEXT = ReplyChoice("It rains.\n\u2603", reasoning="Look outside.")
ACTS = ReplyChoice("Let me see.", tool_calls=CALLS, finish="tool_calls")
CUT = ReplyChoice("It ra", finish="length")


class Endpoint:
    """Answers all requests by one reply, and keeps them."""

    def __init__(self, *choices: ReplyChoice, known: bool = True) -> None:
        counts = {"prompt": 20, "cached": 5, "generated": 7} if known else {}
        self.reply = AgentReply(id=ID, created=1_700_000_000, model="m", choices=list(choices), **counts)
        self.seen: list[AgentRequest] = []

    async def serve(self, request: web.Request) -> web.Response:
        form = FORMATS[request.path]
        try:
            asked = AgentRequests(b"secret").read(form, await request.read())
        except RequestRefused as refusal:
            return web.json_response(form.refuse(refusal), status=refusal.status)
        self.seen.append(asked)
        if asked.stream:
            return web.Response(body=b"".join(form.events(asked, self.reply)), content_type="text/event-stream")
        return web.json_response(body=msgspec.json.encode(form.write(asked, self.reply)))


@asynccontextmanager
async def endpoint(*choices: ReplyChoice, known: bool = True):
    app, served = web.Application(), Endpoint(*choices, known=known)
    app.router.add_post("/{path:.*}", served.serve)
    async with TestServer(app) as server:
        yield served, str(server.make_url("/")).rstrip("/")


@asynccontextmanager
async def by_openai(*choices: ReplyChoice, known: bool = True):
    async with endpoint(*choices, known=known) as (session, url), DefaultAsyncHttpxClient() as http:
        yield session, AsyncOpenAI(base_url=f"{url}/v1", api_key="k", http_client=http, max_retries=0)


ASKED = {"model": "m", "messages": [{"role": "user", "content": "Weather?"}]}


@pytest.mark.parametrize("choice", [TEXT, ACTS, CUT, ReplyChoice("")])
async def test_a_streamed_chat_completion_is_the_whole_one(choice: ReplyChoice):
    async with by_openai(choice, choice) as (session, client):
        whole = await client.chat.completions.create(**ASKED, n=2)
        async with client.chat.completions.stream(**ASKED, n=2, stream_options={"include_usage": True}) as stream:
            last = await stream.get_final_completion() if choice is not CUT else None
        if last is not None:
            assert plain(last) == plain(whole)
    assert [request.n for request in session.seen] == [2, 2]
    message = whole.choices[1].message
    assert (message.content or "") == choice.content
    assert [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()] == [
        (call.id, call.name, call.arguments) for call in choice.tool_calls
    ]
    assert whole.choices[0].finish_reason == choice.finish
    assert whole.usage is not None
    assert whole.usage.prompt_tokens_details is not None
    assert (whole.usage.total_tokens, whole.usage.prompt_tokens_details.cached_tokens) == (27, 5)
    assert (whole.id, whole.created) == (f"chatcmpl-{ID}", 1_700_000_000)


def plain(completion) -> dict:
    """A completion without what the client's helpers add, and what one of both ways leaves out when null."""

    def bare(value):
        if isinstance(value, dict):
            left = {
                key: bare(item) for key, item in value.items() if key not in ("parsed", "parsed_arguments", "index")
            }
            return {key: item for key, item in left.items() if item not in (None, [])}
        return [bare(item) for item in value] if isinstance(value, list) else value

    return bare(completion.model_dump(warnings=False)) | {"object": None}


@pytest.mark.parametrize("choice", [TEXT, ACTS, ReplyChoice("", tool_calls=CALLS[:1]), ReplyChoice("")])
async def test_a_streamed_response_is_the_whole_one(choice: ReplyChoice):
    tools = [{"type": "function", **FUNCTION, "strict": False}]
    async with by_openai(choice) as (_, client):
        asked = {"model": "m", "input": "Weather?", "instructions": "Be short.", "tools": tools}
        unasked = await client.responses.create(**asked)
        asked["reasoning"] = {"summary": "auto"}
        whole = await client.responses.create(**asked)
        async with client.responses.stream(**asked) as stream:
            events = [event async for event in stream]
            last = await stream.get_final_response()
    assert plain(last) == plain(whole)
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert whole.output_text == choice.content
    assert unasked.output == [item for item in whole.output if item.type != "reasoning"]
    calls = [item for item in whole.output if item.type == "function_call"]
    assert [(call.call_id, call.arguments) for call in calls] == [
        (call.id, call.arguments) for call in choice.tool_calls
    ]
    assert [item.summary[0].text for item in whole.output if item.type == "reasoning"] == [choice.reasoning][
        : bool(choice.reasoning)
    ]
    assert (whole.status, whole.tools[0].name, whole.usage.input_tokens_details.cached_tokens) == (
        "completed",
        "weather",
        5,
    )
    type(whole).model_validate(whole.model_dump(warnings=False))


async def test_a_response_that_was_cut_off_says_so():
    async with by_openai(CUT, known=False) as (_, client):
        whole = await client.responses.create(model="m", input="Weather?")
        stream = await client.responses.create(model="m", input="Weather?", stream=True)
        events = [event async for event in stream]
    assert events[-1].type == "response.incomplete"
    assert plain(events[-1].response) == plain(whole)
    assert (whole.incomplete_details.reason, whole.usage.total_tokens) == ("max_output_tokens", 0)


async def test_a_streamed_completion_is_the_whole_one():
    async with by_openai(TEXT, CUT) as (session, client):
        whole = await client.completions.create(model="m", prompt=["Rain?"], n=2, max_tokens=9)
        stream = await client.completions.create(
            model="m", prompt="Rain?", n=2, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert [choice.model_dump() for chunk in chunks for choice in chunk.choices] == [
        choice.model_dump() for choice in whole.choices
    ]
    assert chunks[-1].usage == whole.usage
    assert session.seen[0].messages == [{"role": "user", "content": "Rain?"}] == session.seen[1].messages


async def test_a_response_is_continued_by_its_items_or_its_id():
    async with by_openai(ACTS) as (session, client):
        first = await client.responses.create(model="m", input=[{"role": "user", "content": "Weather?"}])
        outputs = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}
            for item in first.output
            if item.type == "function_call"
        ]
        items = [item.model_dump(exclude_none=True) for item in first.output]
        asked = {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]}
        await client.responses.create(model="m", input=[asked, *items, *outputs])
        await client.responses.create(model="m", input=outputs, previous_response_id=first.id)
    calls = [
        {"id": call.id, "type": "function", "function": {"name": "weather", "arguments": call.arguments}}
        for call in CALLS
    ]
    results = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in CALLS]
    _, by_items, by_id = session.seen
    assert by_items.messages == [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": calls},
        *results,
    ]
    assert (by_id.messages, by_id.previous) == (results, ID)


class Weather(BaseModel):
    """A form of answers."""

    city: str


async def test_forms_of_answers_and_choices_of_tools_are_those_of_chat_completions():
    said = ReplyChoice('{"city": "Bonn"}')
    async with by_openai(said) as (session, client):
        parsed = await client.responses.parse(
            model="m",
            input="Where?",
            text_format=Weather,
            reasoning={"effort": "low"},
            tools=[{"type": "function", **FUNCTION, "strict": True}],
            tool_choice={"type": "function", "name": "weather"},
            max_output_tokens=9,
            temperature=0.5,
        )
        chat = await client.chat.completions.parse(
            model="m",
            messages=[{"role": "user", "content": [{"type": "text", "text": "Where"}, {"type": "text", "text": "?"}]}],
            response_format=Weather,
            reasoning_effort="low",
            tools=[{"type": "function", "function": {**FUNCTION, "strict": True}}],
            tool_choice={"type": "function", "function": {"name": "weather"}},
            max_completion_tokens=9,
            temperature=0.5,
        )
    assert parsed.output_parsed == chat.choices[0].message.parsed == Weather(city="Bonn")
    one, other = session.seen
    assert (one.tools, one.sampling) == (other.tools, other.sampling)
    assert one.sampling.max_tokens == 9
    assert other.messages == [{"role": "user", "content": "Where\n?"}]


async def test_refusals_are_errors_of_the_client_that_name_the_field():
    async with by_openai(TEXT) as (session, client):
        with pytest.raises(BadRequestError) as raised:
            await client.chat.completions.create(**ASKED, logprobs=True)
        assert (raised.value.code, raised.value.param) == ("unsupported_parameter", "logprobs")
        with pytest.raises(BadRequestError, match="web_search") as raised:
            await client.responses.create(model="m", input="?", tools=[{"type": "web_search"}])
        assert raised.value.param == "tools[0].type"
        with pytest.raises(BadRequestError, match="token ids"):
            await client.completions.create(model="m", prompt=[1, 2])
    assert not session.seen


@pytest.mark.parametrize("choice", [TEXT, ACTS, CUT, ReplyChoice("", tool_calls=CALLS[:1])])
async def test_a_streamed_message_is_the_whole_one(choice: ReplyChoice):
    sdk = pytest.importorskip("anthropic")
    asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Weather?"}]}
    tools = [{"name": "weather", "description": "The weather.", "input_schema": SCHEMA}]
    async with (
        endpoint(choice) as (session, url),
        sdk.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client,
    ):
        whole = await client.messages.create(**asked, tools=tools)
        async with client.messages.stream(**asked, tools=tools) as stream:
            last = await stream.get_final_message()
        assert plain(last) == plain(whole)
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": "no", "is_error": True}
            for call in choice.tool_calls
        ]
        second = [*asked["messages"], {"role": "assistant", "content": whole.content}]
        if results:
            second.append({"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]})
        await client.messages.create(**(asked | {"messages": second}))
        with pytest.raises(sdk.BadRequestError) as raised:
            await client.messages.create(**asked, thinking={"type": "enabled", "budget_tokens": 1024})
        assert json.loads(raised.value.response.text)["error"]["type"] == "invalid_request_error"
    assert session.seen[0].tools == [{"type": "function", "function": FUNCTION}]
    said = session.seen[2].messages[1]
    assert said["content"] == choice.content
    # Arguments that are no JSON come back as the model wrote them.
    assert [call["function"]["arguments"].replace(" ", "") for call in said.get("tool_calls", ())] == [
        call.arguments.replace(" ", "") for call in choice.tool_calls
    ]
    assert [one["content"] for one in session.seen[2].messages[2:]] == ["Error: no"] * len(choice.tool_calls) + [
        "Go on."
    ] * bool(results)


def test_a_refusal_without_a_field_has_none():
    over = RequestRefused("the rollout is over", 429, "insufficient_quota")
    for route, form in FORMATS.items():
        kind = "rate_limit_error" if route == "/v1/messages" else "insufficient_quota"
        assert form.refuse(over)["error"]["type"] == kind


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (
            "/v1/chat/completions",
            '{"messages":[{"role":"user","content":"?"}],"tools":[{"function":{"name":"f","parameters":%s}}]}',
        ),
        ("/v1/responses", '{"input":"?","tools":[{"type":"function","name":"f","parameters":%s}]}'),
        ("/v1/responses", '{"input":"?","tool_choice":{"type":"function","name":"f","other":%s}}'),
        (
            "/v1/messages",
            '{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f","input":%s}]}]}',
        ),
    ],
)
def test_nesting_that_can_be_read_can_be_written_or_is_refused(route: str, body: str):
    form = FORMATS[route]
    for depth in range(1, 1200, 7):
        nested = '{"a":' * depth + "1" + "}" * depth
        try:
            asked = AgentRequests(b"secret").read(form, (body % nested).encode())
        except RecursionError:  # by the decoder
            break
        except RequestRefused:
            continue
        reply = AgentReply(
            id=ID, created=1, model="m", choices=[ReplyChoice("", tool_calls=[ToolCall("c", "f", nested)])]
        )
        msgspec.json.encode(form.write(asked, reply))
        assert b"".join(form.events(asked, reply))


def test_the_reference_has_every_field():
    guide = (Path(__file__).parents[3] / "docs" / "reference" / "gateway.md").read_text("utf-8")
    for form in (anthropic, chat, completions, responses):
        missing = {field for field in [*form._KNOWN, *form._REFUSED] if not re.search(rf"`{field}\b", guide)}
        assert not missing, form.__name__


def test_the_shape_of_a_message_and_of_its_events():
    form = FORMATS["/v1/messages"]
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "?"}], "stream": True}
    asked = AgentRequests(b"secret").read(form, json.dumps(body).encode())
    reply = Endpoint(ACTS).reply
    usage = {
        "input_tokens": 15,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 5,
        "output_tokens": 7,
    }
    assert form.write(asked, reply) == {
        "id": f"msg_{ID}",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "text", "text": "Let me see.", "citations": None},
            {"type": "tool_use", "id": "call00001", "name": "weather", "input": {"city": "Köln"}},
            {"type": "tool_use", "id": "call00002", "name": "weather", "input": {"INVALID_JSON": '{"city": '}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": usage,
    }
    blocks = ["content_block_start", "content_block_delta", "content_block_stop"] * 3
    named = [event.decode().split("\n")[0] for event in form.events(asked, reply)]
    assert named == [f"event: {name}" for name in ["message_start", *blocks, "message_delta", "message_stop"]]
    refusal = RequestRefused("no tools are run here", param="mcp_servers")
    assert form.refuse(refusal) == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "no tools are run here"},
    }
