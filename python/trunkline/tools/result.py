"""What a tool returned or raised, as text a model can read and any server accepts."""

from __future__ import annotations

import json
from typing import Final

import msgspec

from trunkline.errors import ToolError
from trunkline.llm.text import excerpt, scrub

__all__ = ["LIMIT", "as_text", "bounded", "describe"]

LIMIT: Final = 100_000
"""Characters of an observation that are kept unless a toolbox says otherwise."""

_MESSAGE: Final = 2_000


def as_text(value: object, limit: int = LIMIT) -> str:
    """Turn a tool's result into an observation.

    A string stays as it is, None is the empty string, everything else becomes JSON.

    Args:
        value: What the tool returned.
        limit: Most characters to keep; a longer text ends with a visible note.

    Raises:
        TypeError: The value is bytes, or cannot be JSON; the message says what to return instead.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return bounded(value, limit)
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("the tool returned bytes, which are not text; decode them with .decode()")
    try:
        try:
            text = msgspec.json.encode(value).decode()
        except UnicodeEncodeError:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        kind = type(value).__name__
        raise TypeError(f"the tool returned {kind}, which is neither text nor JSON; return a str or dict") from error
    return bounded(text, limit)


def bounded(text: str, limit: int = LIMIT) -> str:
    """Cut a text that is too long, with a note; replace NUL and lone surrogates, which servers choke on."""
    total = len(text)
    if total > limit:
        text = f"{text[:limit]}\n[cut: the first {limit:,} of {total:,} characters]"
    text = scrub(text)
    return text.replace("\0", "\ufffd") if "\0" in text else text


def describe(name: str, error: BaseException) -> str:
    """Say what a tool raised; the text of a :class:`~trunkline.errors.ToolError` is for the model as it is.

    Args:
        name: The tool's name.
        error: What it raised.
    """
    try:
        message = str(error) if isinstance(error, ToolError) else excerpt(str(error), _MESSAGE)
    except Exception:  # noqa: BLE001 - a foreign exception's own __str__ may fail
        message = ""
    if isinstance(error, ToolError):
        return message
    kind = type(error).__name__
    return f"Error: {name} failed with {kind}: {message}" if message else f"Error: {name} failed: {kind}"
