"""Chat completions: what an agent asks, and what it is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline.gateway.formats import fields
from trunkline.gateway.types import AgentRequest
from trunkline.llm.messages import ROLES
from trunkline.llm.types import CUT_OFF

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trunkline.gateway.types import AgentReply, RequestRefused
    from trunkline.llm.types import ReplyChoice, ToolCall

_REFUSED: Final = {
    "logprobs": fields.NOT_HANDED_OUT,
    "top_logprobs": fields.NOT_HANDED_OUT,
    "audio": "replies are texts and calls of functions",
    "prediction": "it is not offered here; leave it out",
    "web_search_options": "no tools are run here; give tools that are functions",
    "functions": "give tools",
    "function_call": "give tool_choice",
}

_KNOWN: Final = frozenset(
    {
        "messages",
        "model",
        "tools",
        "tool_choice",
        "n",
        "stream",
        "max_tokens",
        "max_completion_tokens",
        "modalities",
        "stop",
    }
).union(fields.SAMPLING, fields.PASSED_ON, fields.IGNORED)

_ERRORS: Final = {401: "authentication_error", 404: "not_found_error", 429: "insufficient_quota"}


_PLAIN: Final = 2
"""Fields of a message that has a role and a content alone."""


class ChatFormat:
    """``/v1/chat/completions``; see ``Format``."""

    route = "/v1/chat/completions"
    conversation = "messages"

    def head(self, body: dict[str, Any]) -> AgentRequest:
        """Read all but the messages."""
        fields.check_offered(body, _KNOWN, _REFUSED)
        if (kinds := fields.given(body, "modalities")) not in (None, ["text"]):
            raise fields.invalid("modalities", '["text"]', kinds)
        most = "max_tokens" if fields.given(body, "max_completion_tokens") is None else "max_completion_tokens"
        choice = fields.of_kind(body, "tool_choice", (str, dict))
        return AgentRequest(
            model=fields.text(body, "model"),
            messages=[],
            tools=fields.function_tools(fields.objects(body, "tools"), lambda tool: fields.mapping(tool, "function")),
            sampling=fields.sampling(body, {**fields.passed_on(body), "tool_choice": choice}, most),
            n=fields.choices(body),
            stream=fields.flag(body, "stream"),
            options={"usage": asks_usage(body)},
        )

    def text(self, value: Any) -> list[dict[str, Any]]:
        """Refuse messages that are no list."""
        return fields.no_list(self.conversation, value)

    def add(self, messages: list[dict[str, Any]], items: list[Any], first: int) -> None:
        """Read messages: texts are joined, and fields of replies that are not sent back are left out."""
        for place, item in enumerate(items, first):
            message = item if type(item) is dict else fields.of_list("messages", item)
            messages.append(_message(("messages", place), message))

    def write(self, request: AgentRequest, reply: AgentReply) -> dict[str, Any]:
        """Return the body of a reply."""
        del request
        body, choices = _head(reply, "chat.completion"), []
        for place, choice in enumerate(reply.choices):
            message = message_of(choice)
            message["refusal"] = None
            choices.append({"index": place, "message": message, "logprobs": None, "finish_reason": finish(choice)})
        body["choices"], body["usage"] = choices, usage_of(reply)
        return body

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
            yield chunk(place, message)
            for index, call in enumerate(calls):
                yield chunk(place, {"tool_calls": [{"index": index, **call}]})
            yield chunk(place, {}, finish(choice))
        if asked:
            yield event({**head, "choices": [], "usage": usage_of(reply)})
        yield DONE

    def refuse(self, refusal: RequestRefused) -> dict[str, Any]:
        """Return the body of a refusal."""
        return refused(refusal)


DONE: Final = b"data: [DONE]\n\n"
"""Ends a stream of chunks."""


def refused(refusal: RequestRefused) -> dict[str, Any]:
    """Return a refusal in the words of OpenAI's interfaces."""
    kind = "server_error" if refusal.status >= 500 else _ERRORS.get(refusal.status, "invalid_request_error")
    param, code = refusal.param or None, refusal.code or None
    return {"error": {"message": refusal.message, "type": kind, "param": param, "code": code}}


def event(data: Any, name: str = "") -> bytes:
    """Return a server-sent event."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + msgspec.json.encode(data) + b"\n\n"


def asks_usage(body: Mapping[str, Any]) -> bool:
    """Whether a stream of chunks is to end with the tokens that were used."""
    return fields.flag(fields.mapping(body, "stream_options"), "include_usage", ("stream_options",))


def _message(at: fields.FieldPath, message: dict[str, Any]) -> dict[str, Any]:
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise fields.invalid(fields.named(*at, "role"), f"one of {', '.join(ROLES)}", role)
    if type(content) is not str:
        content = _content(at, message)
    if role == "tool":
        return fields.tool_result(message.get("tool_call_id"), content, at)
    made: dict[str, Any] = {"role": role, "content": content}
    if len(message) > _PLAIN or "content" not in message:
        if "name" in message and (name := fields.text(message, "name", at)):
            made["name"] = name
        if role == "assistant":
            made["content"] = content or fields.text(message, "refusal", at)
            if "tool_calls" in message and (calls := fields.objects(message, "tool_calls", at)):
                made["tool_calls"] = [_call(at, place, call) for place, call in enumerate(calls)]
    return made


def _call(at: fields.FieldPath, place: int, call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if type(function) is dict and call.get("type") == "function":
        name, arguments, given = function.get("name"), function.get("arguments"), call.get("id")
        if type(name) is type(arguments) is type(given) is str:
            return {"id": given, "type": "function", "function": {"name": name, "arguments": arguments}}
    at = (*at, "tool_calls", place)
    if call.get("type", "function") != "function":
        raise fields.invalid(fields.named(*at, "type"), "function", call["type"])
    function = fields.mapping(call, "function", at)
    said = fields.text(function, "arguments", (*at, "function"))
    return fields.function_call(call.get("id"), function.get("name"), said, at)


def _content(at: fields.FieldPath, message: dict[str, Any]) -> Any:
    """A content's text, or its parts where some are no texts."""
    content = fields.of_kind(message, "content", (str, list), at)
    if content is None:
        return ""
    parts = fields.objects(message, "content", at)
    return fields.joined([_part((*at, "content", place), part) for place, part in enumerate(parts)])


def _part(at: fields.FieldPath, part: dict[str, Any]) -> dict[str, Any]:
    kind = part.get("type")
    if kind in ("text", "refusal"):
        return fields.text_part(part, at, kind)
    if type(kind) is not str:
        raise fields.invalid(fields.named(*at, "type"), "a string", kind)
    return part


def message_of(choice: ReplyChoice) -> dict[str, Any]:
    """Return a choice as the assistant's message, with the ids that are handed out."""
    message: dict[str, Any] = {"role": "assistant", "content": choice.content or (None if choice.tool_calls else "")}
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if choice.tool_calls:
        message["tool_calls"] = [_call_of(call) for call in choice.tool_calls]
    return message


def quoted(choice: ReplyChoice) -> dict[str, Any]:
    """Return a choice as it is read where an agent sends it back."""
    message: dict[str, Any] = {"role": "assistant", "content": choice.content or ""}
    if choice.tool_calls:
        message["tool_calls"] = [_call_of(call) for call in choice.tool_calls]
    return message


def _call_of(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def finish(choice: ReplyChoice) -> str:
    """Return why a choice ended, in one of the words that the interface has."""
    if choice.finish in CUT_OFF:
        return "length"
    if choice.finish == "content_filter":
        return "content_filter"
    return "tool_calls" if choice.tool_calls else "stop"


def usage_of(reply: AgentReply) -> dict[str, Any]:
    """Return the tokens of a reply; zeros where they are not known, since agents add them up."""
    cached = {} if reply.cached is None else {"prompt_tokens_details": {"cached_tokens": reply.cached}}
    prompt, generated = reply.prompt or 0, reply.generated or 0
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated, **cached}


def _head(reply: AgentReply, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{reply.id}", "object": kind, "created": reply.created, "model": reply.model}
