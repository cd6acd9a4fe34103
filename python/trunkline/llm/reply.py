"""Bytes of an answer as a reply, for whoever has no tree to put them on."""

from __future__ import annotations

from trunkline._core import read_reply
from trunkline.errors import ReplyError
from trunkline.llm.protocol import Choice, Reply, ToolCall
from trunkline.llm.text import excerpt

__all__ = ["read", "unusable"]


def read(data: bytes, first: int = 0, attempts: int = 1, micros: int = 0, most: int | None = None) -> Reply:
    """Read the body of a chat completion; see :class:`trunkline.llm.protocol.Take`.

    Raises:
        ReplyError: It is no chat completion, or one without choices.
    """
    del first
    found = read_reply(data)
    choices = [
        Choice(choice.content, choice.reasoning, [ToolCall(*call) for call in choice.tool_calls], choice.finish)
        for choice in found.choices[:most]
    ]
    if not choices:
        raise ReplyError("its choices are empty")
    prompt, cached, generated = (
        -1 if count is None else count for count in (found.prompt, found.cached, found.generated)
    )
    return Reply(choices, prompt, cached, generated, attempts, micros, found.served)


def unusable(error: ReplyError, data: bytes, secret: str | tuple[str, ...] = "") -> str:
    """Say that an answer is no reply, why, and how it begins.

    Args:
        error: What the reader said.
        data: The body.
        secret: A key that must not be shown, should the server echo it; or several.
    """
    begun = data.lstrip()[:1]
    reason = "it is an HTML page; is the base URL right?" if begun == b"<" else excerpt(str(error), 200, secret)
    shown = f": '{excerpt(data, 200, secret)}'" if begun else ""
    return f"the reply is no chat completion: {reason}{shown}"
