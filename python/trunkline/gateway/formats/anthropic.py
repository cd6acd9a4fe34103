"""Messages, as Anthropic's interface has them: what an agent asks by blocks, and what it is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline.gateway.formats import chat, fields
from trunkline.gateway.types import AgentRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trunkline.gateway.types import AgentReply, RequestRefused
    from trunkline.llm.types import ToolCall

_INVALID: Final = "INVALID_JSON"
"""The one field of an input that stands for arguments that are no JSON object, as Anthropic's guide names it."""

_REFUSED: Final = {
    "container": "nothing is run here; give tools that are functions",
    "context_management": "nothing is left out of a conversation here; do so before you ask",
    "mcp_servers": "no tools are run here; give tools that are functions",
}
_IGNORED: Final = frozenset(
    {"betas", "anthropic_beta", "cache_control", "diagnostics", "inference_geo", "metadata", "service_tier", "speed"}
    | {"user_profile_id", "workspace_id"}
)
_KNOWN: Final = frozenset(
    {"model", "messages", "system", "tools", "tool_choice", "max_tokens", "temperature", "top_p", "top_k"}
    | {"stop_sequences", "stream", "thinking", "output_config"}
).union(_IGNORED)

_ROLES: Final = ("user", "assistant", "system")
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_ENDS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_ERRORS: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class AnthropicFormat:
    """``/v1/messages``; see ``Format``."""

    route = "/v1/messages"
    conversation = "messages"

    def head(self, body: dict[str, Any]) -> AgentRequest:
        """Read all but the messages; the system prompt is a message before them."""
        fields.check_offered(body, _KNOWN, _REFUSED)
        if fields.given(fields.mapping(body, "thinking"), "type") not in (None, "disabled"):
            raise fields.unsupported(
                "thinking", "signed thinking is not offered here; leave it out, or set it to disabled"
            )
        extra = {**_tool_choice(body), **_output_config(body), "top_k": fields.of_kind(body, "top_k", (int,))}
        system = fields.of_kind(body, "system", (str, list))
        if isinstance(system, list):
            system = fields.joined(_parts(("system",), fields.objects(body, "system")))
        return AgentRequest(
            model=fields.text(body, "model"),
            messages=[{"role": "system", "content": system}] if system else [],
            tools=fields.function_tools([_typed(tool) for tool in fields.objects(body, "tools")], _function),
            sampling=fields.sampling(body, extra, stop="stop_sequences"),
            stream=fields.flag(body, "stream"),
        )

    def text(self, value: Any) -> list[dict[str, Any]]:
        """Refuse messages that are no list."""
        return fields.no_list(self.conversation, value)

    def add(self, messages: list[dict[str, Any]], items: list[Any], first: int) -> None:
        """Read messages; results of tools have messages of their own."""
        for number, item in enumerate(items, first):
            at = ("messages", number)
            message = fields.of_list("messages", item)
            role = message.get("role")
            if role not in _ROLES:
                raise fields.invalid(fields.named(*at, "role"), f"one of {', '.join(_ROLES)}", role)
            content = fields.of_kind(message, "content", (str, list), at)
            if content is None or type(content) is str:
                messages.append({"role": role, "content": content or ""})
                continue
            blocks = fields.objects(message, "content", at)
            within = (*at, "content")
            if role == "user":
                messages.extend(_of_user(within, blocks))
            elif role == "assistant":
                messages.append(_of_assistant(within, blocks))
            else:
                messages.append({"role": role, "content": fields.joined(_parts(within, blocks))})

    def write(self, request: AgentRequest, reply: AgentReply) -> dict[str, Any]:
        """Return the body of a reply; reasoning is left out, as its blocks would need a signature."""
        del request
        choice = reply.choices[0]
        blocks: list[dict[str, Any]] = []
        if choice.content or not choice.tool_calls:
            blocks.append({"type": "text", "text": choice.content, "citations": None})
        blocks.extend(map(_block, choice.tool_calls))
        cached = reply.cached or 0
        return {
            "id": f"msg_{reply.id}",
            "type": "message",
            "role": "assistant",
            "model": reply.model,
            "content": blocks,
            "stop_reason": _ENDS[chat.finish(choice)],
            "stop_sequence": None,
            "usage": {
                "input_tokens": max((reply.prompt or 0) - cached, 0),
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": cached,
                "output_tokens": reply.generated or 0,
            },
        }

    def events(self, request: AgentRequest, reply: AgentReply) -> Iterator[bytes]:
        """Return a reply as events."""
        done = self.write(request, reply)
        usage = done["usage"]
        started = dict(done)
        started.update(content=[], stop_reason=None, usage=usage | {"output_tokens": 0})
        yield _event("message_start", message=started)
        for index, block in enumerate(done["content"]):
            if block["type"] == "text":
                begun, delta = block | {"text": ""}, {"type": "text_delta", "text": block["text"]}
            else:
                partial = msgspec.json.encode(block["input"]).decode()
                begun, delta = block | {"input": {}}, {"type": "input_json_delta", "partial_json": partial}
            yield _event("content_block_start", index=index, content_block=begun)
            yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        delta = {"stop_reason": done["stop_reason"], "stop_sequence": None}
        yield _event("message_delta", delta=delta, usage=usage)
        yield _event("message_stop")

    def refuse(self, refusal: RequestRefused) -> dict[str, Any]:
        """Return the body of a refusal."""
        kind = _ERRORS.get(refusal.status) or ("api_error" if refusal.status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": refusal.message}}


def _event(name: str, **data: Any) -> bytes:
    return chat.event({"type": name, **data}, name)


def _tool_choice(body: dict[str, Any]) -> dict[str, Any]:
    """The choice of tools, as chat completions have it."""
    choice = fields.mapping(body, "tool_choice")
    if not choice:
        return {}
    kind = fields.text(choice, "type", ("tool_choice",))
    single = fields.flag(choice, "disable_parallel_tool_use", ("tool_choice",))
    found: dict[str, Any] = {"parallel_tool_calls": False} if single else {}
    if kind == "tool":
        name = fields.text(choice, "name", ("tool_choice",))
        return found | {"tool_choice": {"type": "function", "function": {"name": name}}}
    if kind not in _CHOICES:
        raise fields.invalid("tool_choice.type", "auto, any, tool or none", kind)
    return found | {"tool_choice": _CHOICES[kind]}


def _output_config(body: dict[str, Any]) -> dict[str, Any]:
    """The effort and the form of the text, as chat completions have them."""
    config = fields.mapping(body, "output_config")
    form = fields.mapping(config, "format", ("output_config",))
    found: dict[str, Any] = {"reasoning_effort": fields.text(config, "effort", ("output_config",)) or None}
    if form:
        if form.get("type") != "json_schema":
            raise fields.invalid("output_config.format.type", "json_schema", form.get("type"))
        schema = fields.mapping(form, "schema", ("output_config", "format"))
        named = {"name": "output", "schema": schema, "strict": True}
        found["response_format"] = {"type": "json_schema", "json_schema": named}
    return found


def _typed(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool, with the word for a tool that the agent runs that chat completions have."""
    return tool | {"type": "function"} if tool.get("type") == "custom" else tool


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    return {name: tool.get(name) for name in ("name", "description", "strict")} | {
        "parameters": tool.get("input_schema")
    }


def _of_user(at: fields.FieldPath, blocks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    rest: list[dict[str, Any]] = []
    for place, block in enumerate(blocks):
        within = (*at, place)
        if block.get("type") == "tool_result":
            yield fields.tool_result(block.get("tool_use_id"), _result(within, block), within)
        else:
            rest.append(_part(within, block))
    if rest:
        yield {"role": "user", "content": fields.joined(rest)}


def _of_assistant(at: fields.FieldPath, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for place, block in enumerate(blocks):
        within = (*at, place)
        if (kind := block.get("type")) == "tool_use":
            given = _arguments(fields.mapping(block, "input", within), within)
            calls.append(fields.function_call(block.get("id"), block.get("name"), given, within))
        elif kind not in ("thinking", "redacted_thinking"):
            parts.append(_part(within, block))
    message = {"role": "assistant", "content": fields.joined(parts, "")}
    return message | {"tool_calls": calls} if calls else message


def _result(at: fields.FieldPath, block: dict[str, Any]) -> Any:
    """What a tool returned: a text, or parts; that of a failure begins with a word that says so."""
    content = fields.of_kind(block, "content", (str, list), at) or ""
    failed = fields.flag(block, "is_error", at)
    if type(content) is str:
        return f"Error: {content}" if failed else content
    parts = _parts((*at, "content"), fields.objects(block, "content", at))
    return fields.joined([{"type": "text", "text": "Error:"}, *parts] if failed else parts)


def _parts(at: fields.FieldPath, blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [_part((*at, place), block) for place, block in enumerate(blocks)]


def _part(at: fields.FieldPath, block: dict[str, Any]) -> dict[str, Any]:
    """A block as a part of chat completions."""
    kind = block.get("type")
    if kind == "text":
        return fields.text_part(block, at)
    if kind != "image":
        raise fields.unsupported_kind(at, kind, "is not offered here; give a text or an image")
    source, within = fields.mapping(block, "source", at), (*at, "source")
    if source.get("type") == "url":
        url = fields.text(source, "url", within)
    elif source.get("type") == "base64":
        url = f"data:{fields.text(source, 'media_type', within)};base64,{fields.text(source, 'data', within)}"
    else:
        raise fields.unsupported_kind(within, source.get("type"), "is not kept here; give base64 or a url")
    return {"type": "image_url", "image_url": {"url": url}}


def _block(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments)}


def _input(arguments: str) -> dict[str, Any]:
    """Return arguments as an object; those that are none are kept as a text, see ``_arguments``."""
    if not arguments.strip():
        return {}
    try:
        given = msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {_INVALID: arguments}
    return given if fields.is_sendable(given) else {_INVALID: arguments}


def _arguments(given: dict[str, Any], at: fields.FieldPath) -> str:
    """Return an input as the arguments of a call, with those of ``_input`` as the model wrote them."""
    written = given.get(_INVALID)
    if len(given) == 1 and isinstance(written, str) and _input(written) == given:
        return written
    fields.check_sendable(fields.named(*at, "input"), given)
    return msgspec.json.encode(given).decode()
