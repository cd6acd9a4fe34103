"""How a conversation came to its end, in a few lines, without asking a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trunkline.llm.dialects.thinking import spoken
from trunkline.printable import printable
from trunkline.tree.node import message_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.types import Message

__all__ = ["extract"]

_WIDTH: Final = 160
"""Characters kept of each call and of what it brought."""

_PASSAGE: Final = 600
"""Characters kept of what was said first, and last."""

_CALLS: Final = 24
"""Calls that are listed; of more, the first and the last ones."""


def extract(messages: Sequence[Message]) -> str:
    """Take out what a reader needs: how it began, which tools were called and what came of it, how it ended.

    Args:
        messages: A conversation in the OpenAI form.

    Returns:
        A few thousand characters at most; empty where no model said anything.
    """
    turns = [message for message in messages if message.get("role") == "assistant"]
    if not turns:
        return ""
    calls = _calls(messages)
    if len(calls) > _CALLS:
        left_out = f"- ({len(calls) - _CALLS} more calls)"
        calls = [*calls[: _CALLS // 2], left_out, *calls[-(_CALLS // 2) :]]
    first, last = _passage(turns[0]), _passage(turns[-1], end=True)
    parts = [
        f"Plan: {first}" if first and len(turns) > 1 else "",
        "\n".join(["Calls:", *calls]) if calls else "",
        f"Conclusion: {last}" if last else "",
    ]
    return "\n".join(part for part in parts if part)


def _calls(messages: Sequence[Message]) -> list[str]:
    """One line for each call, with the beginning of what it brought."""
    brought = {
        message.get("tool_call_id"): message_text(message) for message in messages if message.get("role") == "tool"
    }
    lines = []
    for message in messages:
        for call in message.get("tool_calls") or ():
            function = call.get("function") or {}
            made = printable(f"{function.get('name', '')}({function.get('arguments', '')})", _WIDTH)
            result = printable(" ".join(brought.get(call.get("id"), "").split())[: 2 * _WIDTH], _WIDTH)
            lines.append(f"- {made} -> {result}" if result else f"- {made}")
    return lines


def _passage(message: Message, *, end: bool = False) -> str:
    """The beginning or the end of what a turn says, thinking included only where it says nothing else."""
    text = message_text(message)
    words = " ".join((spoken(text) or text).split())
    return printable(words[-_PASSAGE:] if end else words[:_PASSAGE])
