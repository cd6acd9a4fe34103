"""A second reader of chat completions, by typed decoding, and writer of turns: what the core's are compared with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from trunkline._internal.text import excerpt, loads, scrub
from trunkline.errors import LLMError
from trunkline.llm.messages import call_id, is_object
from trunkline.llm.types import ReplyChoice, ToolCall

__all__ = ["Decoded", "assistant", "decode"]

_ABSURD: Final = 2**31
_NAME_LIMIT: Final = 64
_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")


class Decoded(NamedTuple):
    """What a reply body holds; the fields are those of :class:`trunkline.llm.types.Reply`."""

    choices: list[ReplyChoice]
    prompt: int
    cached: int
    generated: int
    served: str


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: msgspec.Raw = msgspec.Raw()


class _Call(msgspec.Struct):
    id: str | int | None = None
    function: _Function | None = None


class _Part(msgspec.Struct):
    text: str | None = None
    thinking: str | list[Any] | None = None


class _Message(msgspec.Struct):
    content: str | list[_Part | str] | None = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: list[_Call] | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct):
    message: _Message | None = None
    index: int | None = None
    finish_reason: str | int | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()
    model: Any = None
    system_fingerprint: Any = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    prompt_cache_hit_tokens: int | None = None


_completion = msgspec.json.Decoder(_Completion)
_usage = msgspec.json.Decoder(_Usage)
_string = msgspec.json.Decoder(str)


def decode(body: bytes, secret: str = "") -> Decoded:
    """Decode the body of a chat completion.

    ``content`` may be null or a list of parts, ``usage`` and call ids may be missing, ``arguments`` may be an
    object instead of a string, finish reasons may be unknown and further fields are ignored. Usage that
    cannot be true counts as missing. Escaped lone surrogates become U+FFFD.

    Args:
        body: The body as received.
        secret: A key that must not stand in an error, should the server echo it.

    Raises:
        LLMError: It is no chat completion, or one without choices; retryable.
    """
    try:
        return _decode(_completion.decode(body))
    except msgspec.ValidationError as error:
        raise _unusable(str(error), body, secret) from None
    except RecursionError:
        raise _unusable("it is nested too deeply", body, secret) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        return _rescue(body, str(error), secret)
    except _BadReplyError as error:
        raise _unusable(str(error), body, secret) from None


class _BadReplyError(ValueError):
    pass


def _rescue(body: bytes, reason: str, secret: str) -> Decoded:
    """Read again, slowly, what only a byte order mark or an escaped lone surrogate made unreadable."""
    if not body.strip():
        raise _unusable("it is empty", body, secret)
    if body.lstrip()[:1] == b"<":
        raise _unusable("it is an HTML page; is the base URL right?", body, secret)
    try:
        value = loads(body)
        return _decode(_completion.decode(msgspec.json.encode(value)))
    except (_BadReplyError, msgspec.ValidationError) as error:
        reason = str(error)
    except RecursionError:
        reason = "it is nested too deeply"
    except (ValueError, msgspec.MsgspecError):
        # The first reader's complaint is about the bytes as they came.
        pass
    raise _unusable(reason, body, secret)


def _decode(completion: _Completion) -> Decoded:
    found = completion.choices
    if not found:
        if completion.error and bytes(completion.error) != b"null":
            raise _BadReplyError("it is an error object")
        raise _BadReplyError("it has no choices" if found is None else "its choices are empty")
    if len(found) > 1 and all(choice.index is not None for choice in found):
        found.sort(key=lambda choice: choice.index or 0)
    choices = [_choice(number, choice) for number, choice in enumerate(found)]
    prompt, cached, generated = _tokens(completion.usage)
    return Decoded(choices, prompt, cached, generated, _served(completion.model, completion.system_fingerprint))


def _choice(number: int, choice: _Choice) -> ReplyChoice:
    message = choice.message
    if message is None:
        raise _BadReplyError(f"choices[{number}] has no message")
    content = message.content
    reasoning = message.reasoning_content if message.reasoning_content is not None else message.reasoning
    if isinstance(content, list):
        content, thought = _join(content)
        reasoning = reasoning or thought
    calls = [_call(call) for call in message.tool_calls] if message.tool_calls else []
    finish = choice.finish_reason
    return ReplyChoice(
        content or message.refusal or "",
        reasoning if isinstance(reasoning, str) else None,
        calls,
        "" if finish is None else str(finish)[:_NAME_LIMIT],
    )


def _call(call: _Call) -> ToolCall:
    function = call.function
    identity = "" if call.id is None else str(call.id)
    if function is None:
        return ToolCall(identity, "", "")
    raw = bytes(function.arguments)
    return ToolCall(identity, function.name or "", _arguments(raw))


def _arguments(raw: bytes) -> str:
    if raw[:1] == b'"':
        return _string.decode(raw)
    # Some servers send an object; its own text is what the string would have held.
    return "" if raw in {b"", b"null"} else raw.decode()


def _join(parts: list[_Part | str]) -> tuple[str, str | None]:
    texts, thoughts = [], []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
            continue
        texts.append(part.text or "")
        thinking = part.thinking
        if isinstance(thinking, list):
            thinking = "".join(str(item.get("text", "")) for item in thinking if isinstance(item, dict))
        thoughts.append(thinking or "")
    return "".join(texts), "".join(thoughts) or None


def _tokens(raw: msgspec.Raw) -> tuple[int, int, int]:
    data = bytes(raw)
    if not data or data == b"null":
        return -1, -1, -1
    try:
        usage = _usage.decode(data)
    except msgspec.MsgspecError:
        return -1, -1, -1
    details = usage.prompt_tokens_details
    cached = usage.prompt_cache_hit_tokens if details is None else details.cached_tokens
    prompt, generated = _count(usage.prompt_tokens), _count(usage.completion_tokens)
    if prompt < 0 or generated < 0:
        return -1, -1, -1
    return prompt, min(_count(cached), prompt), generated


def _count(value: int | None) -> int:
    return value if value is not None and 0 <= value < _ABSURD else -1


def _served(model: object, fingerprint: object) -> str:
    parts = [part[:_NAME_LIMIT] for part in (model, fingerprint) if isinstance(part, str) and part]
    return " ".join(parts)


def _unusable(reason: str, body: bytes, secret: str) -> LLMError:
    shown = f": '{excerpt(body, 200, secret)}'" if body.strip() else ""
    return LLMError(f"the reply is no chat completion: {excerpt(reason, 200, secret)}{shown}", retryable=True)


def assistant(content: str, calls: Sequence[ToolCall] = (), turn: int = 0) -> bytes:
    """Encode a model's turn as the core does for the history, in a form that servers accept.

    Calls get our own ids (``call_id``), names keep only ``[a-zA-Z0-9_-]``, empty arguments become ``{}``, and
    arguments that are no JSON object ``{"malformed": "<text>"}``.
    """
    parts = [b'{"role":"assistant","content":', b"null" if calls and not content else _encoded(content)]
    if calls:
        parts.append(b',"tool_calls":[')
        for index, call in enumerate(calls):
            parts += (
                b',{"id":"' if index else b'{"id":"',
                call_id(turn, index).encode(),
                b'","type":"function","function":{"name":"',
                (_NAME.sub("_", call.name)[:64] or "unknown").encode(),
                b'","arguments":',
                _encoded(_object_of(call.arguments)),
                b"}}",
            )
        parts.append(b"]")
    parts.append(b"}")
    return b"".join(parts)


def _object_of(raw: str) -> str:
    if not raw.strip():
        return "{}"
    return raw if is_object(raw) else msgspec.json.encode({"malformed": scrub(raw)}).decode()


def _encoded(value: str) -> bytes:
    return msgspec.json.encode(scrub(value))
