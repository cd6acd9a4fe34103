"""What a conversation did, as steps: thoughts, tool calls and what they gave back, whatever form they are in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from trunkline.tree.node import message_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trunkline.types import Message

__all__ = ["Step", "clipped", "short_name", "steps", "without_prompt"]

_OPEN, _CLOSE = "<think>", "</think>"
_CALL: Final = re.compile(r"<(tool_call|search|visit|code|python)>(.*?)(?:</\1>|\Z)", re.DOTALL)
_WRAPPED: Final = re.compile(r"\A\s*<(tool_response|information|result|output)>(.*?)(?:</\1>\s*)?\Z", re.DOTALL)
_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_THOUGHTS: Final = ("reasoning_content", "reasoning")


class Step(NamedTuple):
    """One thing that was done.

    Attributes:
        kind: ``thought``, ``call``, ``result``, or ``message`` from somebody else.
        text: What was thought or said, the arguments of a call as they were written, or what a call gave back.
        name: The tool of a call, or the role of who sent a message; safe to print.
    """

    kind: Literal["thought", "call", "result", "message"]
    text: str
    name: str = ""


def short_name(name: object) -> str:
    """A name that a model wrote, with nothing in it but letters, digits and ``_.-``."""
    return (_NAME.sub("_", name)[:64] if isinstance(name, str) else "") or "unknown"


def clipped(text: str, limit: int) -> str:
    """Leave the middle of a long text out, and say how much.

    Args:
        text: Any text.
        limit: Most characters that are kept of it: two thirds from its head, the rest from its tail.
    """
    left = len(text) - limit
    if left <= 0:
        return text
    head = limit * 2 // 3
    return f"{text[:head]}\n[{left:,} characters left out]\n{text[head + left :]}"


def without_prompt(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages from the first one of the model on; none where it said nothing. What is no message is left out."""
    # What is annotated need not be what was given: lists of messages come from files.
    given = [message for message in messages if isinstance(message, dict)]
    first = next((at for at, message in enumerate(given) if message.get("role") == "assistant"), len(given))
    return given[first:]


def steps(messages: Iterable[Message]) -> list[Step]:
    """Take messages apart.

    Calls are read from ``tool_calls`` and from the tags that models write them in; thoughts from ``reasoning_content``,
    think tags, and what is said besides. A user's message right behind a call is what the call gave back. Nothing that
    a message holds is an error.

    Args:
        messages: Chat messages, the prompt not among them.
    """
    found: list[Step] = []
    for message in messages:
        if message.get("role") == "assistant":
            found += _spoken(message)
            continue
        text = message_text(message)
        wrapped = _WRAPPED.match(text)
        brought = message.get("role") == "tool" or wrapped is not None or _waits(found)
        body = (wrapped[2] if wrapped is not None else text).strip()
        found.append(Step("result", body) if brought else Step("message", body, short_name(message.get("role"))))
    return found


def _waits(found: Sequence[Step]) -> bool:
    return bool(found) and found[-1].kind == "call"


def _spoken(message: Message) -> Iterator[Step]:
    thought, visible = _apart(message_text(message))
    aside = next((message[key] for key in _THOUGHTS if isinstance(message.get(key), str)), "")
    calls = [*_native(message.get("tool_calls")), *_tagged(visible)]
    words = "\n".join(part for part in (aside.strip(), thought.strip(), _CALL.sub("", visible).strip()) if part)
    if words:
        yield Step("thought", words)
    yield from calls


def _apart(text: str) -> tuple[str, str]:
    """What is only thought, and what is said."""
    if _CLOSE in text:
        thought, _, visible = text.rpartition(_CLOSE)
    elif _OPEN in text:
        visible, _, thought = text.partition(_OPEN)
    else:
        return "", text
    return thought.replace(_OPEN, "").replace(_CLOSE, ""), visible


def _native(calls: Any) -> Iterator[Step]:
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            yield Step("call", _written(function.get("arguments")), short_name(function.get("name")))


def _tagged(text: str) -> Iterator[Step]:
    for match in _CALL.finditer(text):
        body = match[2].strip()
        if match[1] != "tool_call":
            yield Step("call", body, match[1])
            continue
        try:
            call = msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            yield Step("call", body, "unknown")
        else:
            yield Step("call", _written(call.get("arguments")), short_name(call.get("name")))


def _written(arguments: object) -> str:
    if isinstance(arguments, str):
        return arguments.strip()
    try:
        return msgspec.json.encode(arguments).decode() if arguments is not None else ""
    except (TypeError, ValueError, OverflowError, RecursionError):
        return ""
