"""Responses: what an agent asks by items, and what it is answered."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Final

from trunkline.gateway.formats import chat, fields
from trunkline.gateway.types import AgentRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trunkline.gateway.types import AgentReply, RequestRefused
    from trunkline.llm.types import ReplyChoice

_PREFIX: Final = "resp_"
"""Begins the id of a response."""

_ENCRYPTED: Final = "reasoning.encrypted_content"

_REFUSED: Final = {
    "top_logprobs": fields.NOT_HANDED_OUT,
    "background": "a reply is given to the request that asks for it; leave it out",
    "conversation": "conversations are not kept here; use previous_response_id, or give all items as input",
    "prompt": "templates of prompts are not kept here; give instructions and input",
    "context_management": "nothing is left out of a conversation here; do so before you ask",
    "moderation": "it is not offered here; leave it out",
}
_PASSED_ON: Final = fields.PASSED_ON.keys() - {"response_format", "reasoning_effort", "verbosity"}
_KNOWN: Final = frozenset(
    {"model", "input", "instructions", "tools", "tool_choice", "max_output_tokens", "max_tool_calls", "text"}
    | {"reasoning", "previous_response_id", "stream", "include", "truncation", "stop"}
).union(fields.SAMPLING, _PASSED_ON, fields.IGNORED)

_ECHOED: Final = ("instructions", "previous_response_id", "tool_choice")
"""Fields that a response has as the request had them."""
_ROLES: Final = ("system", "developer", "user", "assistant")
_ENDS: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponsesFormat:
    """``/v1/responses``; see ``Format``."""

    route = "/v1/responses"
    conversation = "input"

    def head(self, body: dict[str, Any]) -> AgentRequest:
        """Read all but the input; the instructions are a message before it."""
        fields.check_offered(body, _KNOWN, _REFUSED)
        _check_include(body)
        if (cut := fields.given(body, "truncation")) not in (None, "auto", "disabled"):
            raise fields.invalid("truncation", "auto or disabled", cut)
        reasoning = fields.mapping(body, "reasoning")
        effort = fields.text(reasoning, "effort", ("reasoning",)) or None
        summary = fields.text(reasoning, "summary", ("reasoning",))
        extra = {**fields.passed_on(body), **_text_options(body), "reasoning_effort": effort}
        extra["tool_choice"] = _tool_choice(body)
        instructions = fields.text(body, "instructions")
        return AgentRequest(
            model=fields.text(body, "model"),
            messages=[{"role": "system", "content": instructions}] if instructions else [],
            tools=fields.function_tools(fields.objects(body, "tools"), lambda tool: tool),
            sampling=fields.sampling(body, extra, "max_output_tokens"),
            stream=fields.flag(body, "stream"),
            previous=fields.text(body, "previous_response_id").removeprefix(_PREFIX),
            options={"summary": bool(summary), **{name: body.get(name) for name in _ECHOED}},
        )

    def text(self, value: Any) -> list[dict[str, Any]]:
        """Read an input that is a text."""
        given = fields.of_kind({"input": value}, "input", (str, list))
        return [{"role": "user", "content": given}] if given else []

    def add(self, messages: list[dict[str, Any]], items: list[Any], first: int) -> None:
        """Read items; a turn's calls and its text are one message."""
        own = False  # whether the last message is of these items
        for number, given in enumerate(items, first):
            at = ("input", number)
            item = fields.of_list("input", given)
            last = messages[-1] if messages else {}
            kind = item.get("type") or "message"
            merged = last.get("role") == "assistant" and kind in ("message", "function_call")
            if merged and not own:
                calls = {"tool_calls": [*last["tool_calls"]]} if "tool_calls" in last else {}
                last = messages[-1] = {**last, **calls}
            own = own or merged
            if kind == "message":
                role = item.get("role")
                if role not in _ROLES:
                    raise fields.invalid(fields.named(*at, "role"), f"one of {', '.join(_ROLES)}", role)
                content = _content(at, item)
                if role == last.get("role") == "assistant" and last.get("tool_calls") and not last["content"]:
                    last["content"] = content  # a text after the calls of the same turn
                else:
                    messages.append({"role": role, "content": content})
                    own = True
            elif kind == "function_call":
                arguments = fields.text(item, "arguments", at)
                call = fields.function_call(item.get("call_id"), item.get("name"), arguments, at)
                if not merged:
                    messages.append(last := {"role": "assistant", "content": ""})
                    own = True
                last.setdefault("tool_calls", []).append(call)
            elif kind == "function_call_output":
                messages.append(fields.tool_result(item.get("call_id"), _content(at, item, "output"), at))
                own = True
            elif kind == "item_reference":
                raise fields.unsupported(fields.named(*at, "type"), "items are not kept here; give the item itself")
            elif kind != "reasoning":
                raise fields.unsupported_kind(at, kind, "is no item that is offered here; use calls of functions")

    def write(self, request: AgentRequest, reply: AgentReply) -> dict[str, Any]:
        """Return the body of a reply."""
        choice = reply.choices[0]
        why = _ENDS.get(chat.finish(choice))
        status = "incomplete" if why else "completed"
        return _response(request, reply, status) | {
            "incomplete_details": {"reason": why} if why else None,
            "output": _output(reply.id, choice, status, summary=request.options.get("summary", False)),
            "usage": _usage(reply),
        }

    def events(self, request: AgentRequest, reply: AgentReply) -> Iterator[bytes]:
        """Return a reply as events."""
        numbers = count()

        def event(kind: str, /, **data: Any) -> bytes:
            kind = f"response.{kind}"
            return chat.event({"type": kind, "sequence_number": next(numbers), **data}, kind)

        done = self.write(request, reply)
        started = done | _response(request, reply, "in_progress")
        started.update(incomplete_details=None, output=[], usage=None)
        yield event("created", response=started)
        yield event("in_progress", response=started)
        for place, item in enumerate(done["output"]):
            at = {"output_index": place, "item_id": item["id"]}
            yield event("output_item.added", output_index=place, item=_begun(item))
            if item["type"] == "message":
                at["content_index"] = 0
                (part,) = item["content"]
                yield event("content_part.added", **at, part=part | {"text": ""})
                if part["text"]:
                    yield event("output_text.delta", **at, delta=part["text"], logprobs=[])
                yield event("output_text.done", **at, text=part["text"], logprobs=[])
                yield event("content_part.done", **at, part=part)
            elif item["type"] == "reasoning":
                at["summary_index"] = 0
                (part,) = item["summary"]
                yield event("reasoning_summary_part.added", **at, part=part | {"text": ""})
                yield event("reasoning_summary_text.delta", **at, delta=part["text"])
                yield event("reasoning_summary_text.done", **at, text=part["text"])
                yield event("reasoning_summary_part.done", **at, part=part)
            else:
                if item["arguments"]:
                    yield event("function_call_arguments.delta", **at, delta=item["arguments"])
                yield event("function_call_arguments.done", **at, name=item["name"], arguments=item["arguments"])
            yield event("output_item.done", output_index=place, item=item)
        yield event(done["status"], response=done)

    def refuse(self, refusal: RequestRefused) -> dict[str, Any]:
        """Return the body of a refusal."""
        return chat.refused(refusal)


def _check_include(body: dict[str, Any]) -> None:
    for one in fields.items(body, "include"):
        if one != _ENCRYPTED:
            why = f"{fields.shown(one)} is not offered here; {_ENCRYPTED} alone is, without effect"
            raise fields.unsupported("include", why)


def _text_options(body: dict[str, Any]) -> dict[str, Any]:
    """The form of the text, as chat completions have it."""
    options = fields.mapping(body, "text")
    form = fields.mapping(options, "format", ("text",))
    kind = fields.text(form, "type", ("text", "format")) or "text"
    given = None
    if kind == "json_schema":
        schema = {name: value for name, value in form.items() if name != "type" and value is not None}
        given = {"type": kind, "json_schema": schema}
    elif kind == "json_object":
        given = {"type": kind}
    elif kind != "text":
        raise fields.invalid("text.format.type", "text, json_object or json_schema", kind)
    return {"response_format": given, "verbosity": fields.text(options, "verbosity", ("text",)) or None}


def _tool_choice(body: dict[str, Any]) -> Any:
    """The choice of tools, as chat completions have it."""
    choice: Any = fields.of_kind(body, "tool_choice", (str, dict))
    if choice is None or isinstance(choice, str):
        return choice
    fields.check_sendable("tool_choice", choice)
    if (kind := choice.get("type")) == "allowed_tools":
        listed = [_named(tool) for tool in fields.objects(choice, "tools", ("tool_choice",))]
        return {"type": kind, "allowed_tools": {"mode": choice.get("mode"), "tools": listed}}
    return _named(choice)


def _named(choice: dict[str, Any]) -> dict[str, Any]:
    if (kind := choice.get("type")) != "function":
        raise fields.unsupported_kind(
            ("tool_choice",), kind, "is run by its provider; choose a tool that is a function"
        )
    return {"type": "function", "function": {"name": fields.text(choice, "name", ("tool_choice",))}}


def _content(at: fields.FieldPath, item: dict[str, Any], field: str = "content") -> Any:
    """A text, or the parts of an item, as chat completions have them."""
    content = fields.of_kind(item, field, (str, list), at)
    if content is None or type(content) is str:
        return content or ""
    parts = fields.objects(item, field, at)
    made = [_part((*at, field, place), part) for place, part in enumerate(parts)]
    return fields.joined(made, "" if item.get("role") == "assistant" else "\n")


def _part(at: fields.FieldPath, part: dict[str, Any]) -> dict[str, Any]:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        return fields.text_part(part, at)
    if kind == "refusal":
        return fields.text_part(part, at, "refusal")
    if kind == "input_image" and (url := fields.text(part, "image_url", at)):
        detail = fields.text(part, "detail", at)
        return {"type": "image_url", "image_url": {"url": url} | ({"detail": detail} if detail else {})}
    raise fields.unsupported_kind(at, kind, "is not offered here; give a text, or an image by its URL")


def _response(request: AgentRequest, reply: AgentReply, status: str) -> dict[str, Any]:
    """What a response says beside its output."""
    options, sampling = request.options, request.sampling
    parallel = sampling.extra.get("parallel_tool_calls")
    return {
        "id": f"{_PREFIX}{reply.id}",
        "object": "response",
        "created_at": reply.created,
        "status": status,
        "error": None,
        "instructions": options.get("instructions"),
        "max_output_tokens": sampling.max_tokens,
        "metadata": {},
        "model": reply.model,
        "parallel_tool_calls": parallel is not False,
        "previous_response_id": options.get("previous_response_id"),
        "temperature": sampling.temperature,
        "tool_choice": options.get("tool_choice") or "auto",
        "tools": [
            {"parameters": None, "strict": None, **tool["function"], "type": "function"} for tool in request.tools
        ],
        "top_p": sampling.top_p,
    }


def _output(identity: str, choice: ReplyChoice, status: str, *, summary: bool) -> list[dict[str, Any]]:
    """The items of a reply: reasoning, where a summary was asked for, a message, calls."""
    items: list[dict[str, Any]] = []
    if choice.reasoning and summary:
        parts = [{"type": "summary_text", "text": choice.reasoning}]
        items.append({"id": f"rs_{identity}", "type": "reasoning", "summary": parts})
    if choice.content or not choice.tool_calls:
        part: dict[str, Any] = {"type": "output_text", "text": choice.content, "annotations": [], "logprobs": []}
        head = {"id": f"msg_{identity}", "type": "message", "role": "assistant"}
        items.append({**head, "status": status, "content": [part]})
    for place, call in enumerate(choice.tool_calls):
        head = {"id": f"fc_{identity}_{place}", "type": "function_call", "status": status}
        items.append({**head, "call_id": call.id, "name": call.name, "arguments": call.arguments})
    return items


def _begun(item: dict[str, Any]) -> dict[str, Any]:
    """An item before its parts have come."""
    if item["type"] == "reasoning":
        return item | {"summary": []}
    begun = item | {"status": "in_progress"}
    return begun | {"content": []} if item["type"] == "message" else begun | {"arguments": ""}


def _usage(reply: AgentReply) -> dict[str, Any]:
    prompt, generated = reply.prompt or 0, reply.generated or 0
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": reply.cached or 0, "cache_write_tokens": 0},
        "output_tokens": generated,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + generated,
    }
