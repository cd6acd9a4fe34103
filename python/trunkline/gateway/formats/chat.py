"""Chat completions: what an agent asks, and what it is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline._internal.text import excerpt
from trunkline._internal.validation import short_repr
from trunkline.errors import ConfigError
from trunkline.gateway.formats import fields
from trunkline.gateway.types import AgentRequest, RequestRefused
from trunkline.llm.messages import check

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trunkline.gateway.types import AgentReply
    from trunkline.llm.types import ReplyChoice, ToolCall

_SAMPLING: Final = ("temperature", "top_p", "stop", "presence_penalty", "frequency_penalty")
_PASSED_ON: Final = (
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "reasoning_effort",
    "verbosity",
    "logit_bias",
    "top_k",
    "min_p",
    "repetition_penalty",
    "chat_template_kwargs",
)
_IGNORED: Final = frozenset(
    {
        "messages", "model", "tools", "n", "stream", "stream_options", "max_tokens", "max_completion_tokens", "seed",
        "modalities", "user", "metadata", "store", "service_tier", "prompt_cache_key", "prompt_cache_retention",
        "safety_identifier",
    }
)  # fmt: skip
"""Fields that are read, or change nothing here."""

_REFUSED: Final = {
    "logprobs": "the run keeps log-probabilities, and hands none out",
    "top_logprobs": "the run keeps log-probabilities, and hands none out",
    "audio": "replies are texts and calls",
    "prediction": "it is not offered here",
    "web_search_options": "tools are run by the agent",
    "functions": "give tools",
    "function_call": "give tool_choice",
}

_KNOWN: Final = _IGNORED.union(_SAMPLING, _PASSED_ON, _REFUSED)

_ERRORS: Final = {401: "authentication_error", 404: "not_found_error", 429: "insufficient_quota"}


class ChatFormat:
    """``/v1/chat/completions``; see :class:`~trunkline.gateway.types.Format`."""

    route = "/v1/chat/completions"

    def read(self, body: dict[str, Any]) -> AgentRequest:
        """Read a request."""
        for field, why in _REFUSED.items():
            if fields.given(body, field) not in (None, False, 0):
                raise fields.unsupported(field, why)
        if (kinds := fields.given(body, "modalities")) not in (None, ["text"]):
            raise fields.invalid("modalities", '["text"]', kinds)
        for field in body.keys() - _KNOWN:
            if fields.given(body, field) is not None:
                raise fields.unsupported(field, "it is not offered here; leave it out")
        most = body.get("max_completion_tokens")
        found = {name: body.get(name) for name in _SAMPLING}
        found["max_tokens"] = body.get("max_tokens") if most is None else most
        options = body.get("stream_options")
        usage = isinstance(options, dict) and options.get("include_usage") is True
        return AgentRequest(
            model=fields.text(body, "model"),
            messages=messages(fields.objects(body, "messages")),
            tools=fields.function_tools(fields.objects(body, "tools"), lambda tool: tool.get("function")),
            sampling=fields.sampling(found, {name: fields.given(body, name) for name in _PASSED_ON}),
            n=fields.choices(body),
            stream=fields.flag(body, "stream"),
            options={"usage": usage},
        )

    def write(self, request: AgentRequest, reply: AgentReply) -> dict[str, Any]:
        """Return the body of a reply."""
        del request
        return {
            **_head(reply, "chat.completion"),
            "choices": [
                {
                    "index": place,
                    "message": message_of(choice) | {"refusal": None},
                    "logprobs": None,
                    "finish_reason": finish(choice),
                }
                for place, choice in enumerate(reply.choices)
            ],
            "usage": usage_of(reply),
        }

    def events(self, request: AgentRequest, reply: AgentReply) -> Iterator[bytes]:
        """Return a reply as chunks."""
        head = _head(reply, "chat.completion.chunk")
        asked = request.options.get("usage")
        rest = {"usage": None} if asked else {}

        def chunk(place: int, delta: Mapping[str, Any], ended: str | None = None) -> bytes:
            choice = {"index": place, "delta": delta, "logprobs": None, "finish_reason": ended}
            return event({**head, "choices": [choice], **rest})

        for place, choice in enumerate(reply.choices):
            message = message_of(choice)
            calls = message.pop("tool_calls", [])
            yield chunk(place, message | {"content": message["content"] or ""})
            for index, call in enumerate(calls):
                yield chunk(place, {"tool_calls": [{"index": index, **call}]})
            yield chunk(place, {}, finish(choice))
        if asked:
            yield event({**head, "choices": [], "usage": usage_of(reply)})
        yield b"data: [DONE]\n\n"

    def refuse(self, refusal: RequestRefused) -> dict[str, Any]:
        """Return the body of a refusal."""
        return refused(refusal)


def refused(refusal: RequestRefused) -> dict[str, Any]:
    """Return a refusal in the words of OpenAI's interfaces."""
    kind = "server_error" if refusal.status >= 500 else _ERRORS.get(refusal.status, "invalid_request_error")
    return {"error": {"message": refusal.message, "type": kind, "param": None, "code": refusal.code or None}}


def event(data: Any, name: str = "") -> bytes:
    """Return a server-sent event."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + msgspec.json.encode(data) + b"\n\n"


def messages(listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return chat messages that can be sent: texts joined, and fields of replies that are not sent back left out.

    Raises:
        RequestRefused: There are none, or one is no message.
    """
    if not listed:
        raise fields.invalid("messages", "a list of at least one message", listed)
    found = [_message(place, message) for place, message in enumerate(listed)]
    try:
        check(found)
    except ConfigError as problem:
        raise RequestRefused(f"Invalid value: {excerpt(str(problem), 200)}", 400, "invalid_value") from None
    return found


def _message(place: int, message: dict[str, Any]) -> dict[str, Any]:
    role = message.get("role")
    made: dict[str, Any] = {"role": role, "content": _content(place, message.get("content"))}
    if isinstance(name := fields.given(message, "name"), str):
        made["name"] = name
    if role == "tool":
        made["tool_call_id"] = message.get("tool_call_id")
    elif role == "assistant":
        if not made["content"] and isinstance(message.get("refusal"), str):
            made["content"] = message["refusal"]
        calls = fields.objects(message, "tool_calls", f"messages[{place}].tool_calls")
        if calls:
            made["tool_calls"] = [_call(place, number, call) for number, call in enumerate(calls)]
    return made


def _call(place: int, number: int, call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise fields.invalid(f"messages[{place}].tool_calls[{number}]", "a call of a function", call)
    kept = {"name": function.get("name"), "arguments": function.get("arguments") or ""}
    return {"id": call.get("id"), "type": "function", "function": kept}


def _content(place: int, content: Any) -> Any:
    """A content's text, or its parts where some are no texts."""
    if content is None:
        return ""
    if not isinstance(content, list):
        return content
    if not all(isinstance(part, dict) for part in content):
        raise fields.invalid(f"messages[{place}].content", "a string or a list of parts", content)
    kinds = {short_repr(part.get("type")) for part in content}
    if kinds <= {"'text'"} and all(isinstance(part.get("text"), str) for part in content):
        return "\n".join(part["text"] for part in content)
    return [{"type": "text", "text": part.get("text")} if part.get("type") == "text" else part for part in content]


def message_of(choice: ReplyChoice) -> dict[str, Any]:
    """Return a choice as the assistant's message, with the ids that are handed out."""
    message: dict[str, Any] = {"role": "assistant", "content": choice.content or (None if choice.tool_calls else "")}
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if choice.tool_calls:
        message["tool_calls"] = [_call_of(call) for call in choice.tool_calls]
    return message


def _call_of(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def finish(choice: ReplyChoice) -> str:
    """Return why a choice ended, in one of the words that the interface has."""
    if choice.tool_calls and choice.finish != "length":
        return "tool_calls"
    return choice.finish if choice.finish in {"length", "content_filter"} else "stop"


def usage_of(reply: AgentReply) -> dict[str, Any] | None:
    """Return the tokens of a reply; None where they are not known."""
    if reply.prompt is None or reply.generated is None:
        return None
    cached = {} if reply.cached is None else {"prompt_tokens_details": {"cached_tokens": reply.cached}}
    total = reply.prompt + reply.generated
    return {"prompt_tokens": reply.prompt, "completion_tokens": reply.generated, "total_tokens": total, **cached}


def _head(reply: AgentReply, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{reply.id}", "object": kind, "created": reply.created, "model": reply.model}
