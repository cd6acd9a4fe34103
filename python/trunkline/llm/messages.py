"""Chat messages as canonical JSON bytes, encoded once and joined into every later request.

Fields have a fixed order, so equal messages are equal bytes. Lone surrogates, which UTF-8 cannot carry, become U+FFFD.
"""

from __future__ import annotations

import re
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline._internal.text import scrub
from trunkline._internal.validation import short_repr, type_phrase
from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline._internal.text import JSON
    from trunkline.types import Message


ROLES: Final = ("system", "developer", "user", "assistant", "tool")
LONGEST: Final = 16 << 20
"""Bytes of the longest prompt of a task, which travels to a worker in one frame."""

OPENS: Final = b'\x02{"role":"user","content":"'
"""The piece that a user message begins with which is cut into pieces; its first byte says so, and is not sent."""
CLOSES: Final = b'\x01"}'
"""The piece that it ends with."""

_FIELDS: Final = ("role", "content", "reasoning_content", "refusal", "name", "tool_calls", "tool_call_id")
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"

_PLAIN_ROLES: Final = ("user", "system", "assistant", "developer")
_PLAIN_FIELDS: Final = ("role", "content")
_RESULT_FIELDS: Final = ("role", "content", "tool_call_id")
_TEXTS: Final = {str}

_HEADS: Final = {role: f'{{"role":"{role}","content":'.encode() for role in ROLES}
"""How a message begins that has a role and a text alone."""

_HEAD_SIZE: Final = max(map(len, _HEADS.values())) + len('"","tool_call_id":""}')
_ESCAPED_SIZE: Final = len(r"\u0000")  # bytes of the longest character

_encoder = msgspec.json.Encoder()
_sorted = msgspec.json.Encoder(order="sorted")
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def system(text: str) -> bytes:
    return _HEADS["system"] + _encoded(text) + b"}"


def user(text: str) -> bytes:
    """Encode a user message, with the bytes of one that is cut into pieces."""
    return _HEADS["user"] + _encoded(text) + b"}"


def piece(text: str) -> bytes:
    """Encode a part of a user message's text, to stand between ``OPENS`` and ``CLOSES``."""
    return b"\x01" + _encoded(text)[1:-1]


def tool(call_id: str, text: str) -> bytes:
    """Encode a tool's result."""
    return b'{"role":"tool","tool_call_id":' + _encoded(call_id) + b',"content":' + _encoded(text) + b"}"


def call_id(turn: int, index: int) -> str:
    """The id of a tool call in histories: nine of ``[0-9a-z]``, from its position alone.

    Servers' ids may be missing, repeated or hostile, and some models accept nine alphanumerics only.
    """
    if not (0 <= turn < 36**4 and 0 <= index < 36**3):
        raise ConfigError(f"no tool call id for turn {turn}, call {index}: out of range")
    return f"t{_base36(turn, 4)}c{_base36(index, 3)}"


_OURS: Final = re.compile(r"t[0-9a-z]{4}c[0-9a-z]{3}")
"""Ids that ``call_id`` returns."""


def rename_calls(conversation: Sequence[Message]) -> None:
    """Replace ids of ``call_id``, which the rollout that continues this conversation will use again."""
    used = {call["id"] for message in conversation for call in message.get("tool_calls") or ()}
    fresh = (name for number in count() if (name := f"p{number:08d}") not in used)
    names: dict[str, str] = {}  # of the latest turn, as every earlier rollout may have used the same ids
    for message in conversation:
        if message["role"] == "assistant":
            calls: list[JSON] = message.get("tool_calls") or []
            names = {call["id"]: next(fresh) for call in calls if _OURS.fullmatch(call["id"])}
            for call in calls:
                call["id"] = names.get(call["id"], call["id"])
        elif message["role"] == "tool":
            message["tool_call_id"] = names.get(message["tool_call_id"], message["tool_call_id"])


def encode(message: Message) -> bytes:
    """Encode one message of a task; raises ConfigError for what cannot be sent."""
    if _is_plain(message):
        return _encoded(message)
    if not isinstance(message, dict):
        raise ConfigError(f"a message must be an object with role and content, not {type_phrase(message)}")
    role = message.get("role")
    if role not in ROLES:
        raise ConfigError(f"message field 'role' must be one of {', '.join(ROLES)}, not {short_repr(role)}")
    _check_content(role, message)
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        raise ConfigError("a tool message needs the field 'tool_call_id', a string")
    if message.get("tool_calls") is not None:
        _check_calls(role, message["tool_calls"])
    ordered: dict[str, Any] = {field: message.get(field) for field in _FIELDS if field in message or field == "content"}
    extra = sorted((key for key in message if key not in _FIELDS), key=str)
    ordered["role"] = str.__str__(role)  # an enumeration or another subclass is its text
    ordered.update((key, message[key]) for key in extra)
    return _canonical(role, ordered)


def check(conversation: Sequence[Message], name: str = "messages") -> None:
    """Raise ConfigError for a conversation that cannot be sent."""
    if _is_short(conversation):
        return
    size = 0
    for position, message in enumerate(conversation):
        try:
            size += len(encode(message))
        except ConfigError as problem:
            raise ConfigError(f"{name}[{position}]: {problem}") from None
    if size > LONGEST:
        raise ConfigError(f"{name} is {size:,} bytes long, at most {LONGEST:,} can be sent: shorten it")


def _is_short(conversation: Sequence[Message]) -> bool:
    """Whether all messages have texts alone, and are short enough however these are escaped."""
    size = 0
    for message in conversation:
        if not _is_plain(message):
            return False
        size += _HEAD_SIZE + _ESCAPED_SIZE * sum(map(len, message.values()))
    return size <= LONGEST


def _is_plain(message: object) -> bool:
    """Whether a message has a role and a text alone, and that of a tool the id of its call, in this order."""
    if type(message) is not dict or (fields := tuple(message)) not in (_PLAIN_FIELDS, _RESULT_FIELDS):
        return False
    roles = _PLAIN_ROLES if fields == _PLAIN_FIELDS else ("tool",)
    return {*map(type, message.values())} == _TEXTS and message["role"] in roles


def _canonical(role: str, ordered: dict[str, Any]) -> bytes:
    parts = []
    for field, value in ordered.items():
        if not isinstance(field, str):
            raise ConfigError(f"the {role} message has a field name that is not a string: {short_repr(field)}")
        try:
            data = _encoded(value, _encoder if field in {"content", "tool_calls"} else _sorted)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ConfigError(f"{role} message field {short_repr(field)} is not JSON: {error}") from None
        parts.append(_encoded(field) + b":" + data)
    return b"{" + b",".join(parts) + b"}"


def _check_content(role: str, message: Message) -> None:
    content = message.get("content")
    if content is None:
        if role != "assistant" or not (message.get("tool_calls") or message.get("refusal")):
            absent = f"{role} message field 'content' is {'null' if 'content' in message else 'missing'}"
            raise ConfigError(f"{absent}; only an assistant message with tool calls may have none")
        return
    if isinstance(content, str):
        return
    if not isinstance(content, list) or not content:
        raise ConfigError(
            f"{role} message field 'content' must be a string or a list of parts, not {type_phrase(content)}"
        )
    for index, part in enumerate(content):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise ConfigError(f"{role} message field 'content[{index}]' must be an object with a string 'type'")
        if part["type"] == "text" and not isinstance(part.get("text"), str):
            raise ConfigError(f"{role} message field 'content[{index}].text' must be a string")


def _check_calls(role: str, calls: JSON) -> None:
    if role != "assistant":
        raise ConfigError(f"{role} message field 'tool_calls' belongs to assistant messages only")
    if not isinstance(calls, list):
        raise ConfigError(f"assistant message field 'tool_calls' must be a list, not {type_phrase(calls)}")
    for index, call in enumerate(calls):
        place = f"assistant message field 'tool_calls[{index}]"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise ConfigError(f"{place}.function' must be an object")
        if not isinstance(call.get("id"), str):
            raise ConfigError(f"{place}.id' must be a string")
        for field in ("name", "arguments"):
            if not isinstance(function.get(field), str):
                raise ConfigError(f"{place}.function.{field}' must be a string")


def is_object(text: str) -> bool:
    """Whether a text is a JSON object."""
    try:
        _object.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return True


def _encoded(value: JSON, encoder: msgspec.json.Encoder = _encoder) -> bytes:
    try:
        return encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(scrub(value))


def _base36(value: int, width: int) -> str:
    digits = ""
    for _ in range(width):
        value, digit = divmod(value, 36)
        digits = _DIGITS[digit] + digits
    return digits
