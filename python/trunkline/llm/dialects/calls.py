"""Calls that stand as JSON in a text: from the object to the call."""

from __future__ import annotations

import json

from trunkline.llm.protocol import ToolCall

__all__ = ["call_of", "unread"]


def call_of(value: object) -> ToolCall:
    """Read one call, ``{"name": ..., "arguments": {...}}``.

    Models also write ``parameters``, leave the arguments out, or write them as a string of JSON, as the native form has
    them; that is read too.

    Args:
        value: What JSON made of it.

    Returns:
        The call; an unread one if the value names no tool.
    """
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(name, str) or not name.strip():
        return unread(json.dumps(value, ensure_ascii=False))
    arguments = value.get("arguments", value.get("parameters"))
    if arguments is None:
        return ToolCall("", name, "{}")
    return ToolCall("", name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False))


def unread(text: str) -> ToolCall:
    """Return a call that could not be read: no name, and for arguments everything the model wrote.

    What happens to it is for who runs the calls to decide: it is repaired, or the model hears what is wrong.
    """
    return ToolCall("", "", text)
