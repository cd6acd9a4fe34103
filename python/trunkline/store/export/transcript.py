"""A conversation in plain text messages: thoughts, tool calls and their results stand between tags.

The tags are those that Hermes and Qwen models are trained on; a chat template makes the same of native messages.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline.tree.node import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trunkline.tree.node import Node
    from trunkline.types import JSON, Message

__all__ = ["text_of", "transcript"]

_TAG: Final = re.compile(r"<(?=/?(?:think|tool_call|tool_response)>)")


def text_of(message: Message) -> str:
    """The text of a message's content; what is no text stands as its type in brackets, such as ``[image_url]``."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        refusal = message.get("refusal")
        return refusal if isinstance(refusal, str) else ""
    parts: list[str] = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) else None
        parts.append(text if isinstance(text, str) else f"[{part.get('type') if isinstance(part, dict) else 'part'}]")
    return "".join(parts)


def _call(call: JSON) -> str:
    function: Any = call.get("function") if isinstance(call, dict) else None
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments")
    try:
        read: JSON = msgspec.json.decode(arguments) if isinstance(arguments, str) else arguments
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        read = arguments
    said = msgspec.json.encode({"name": function.get("name"), "arguments": read}).decode()
    # In JSON a < stands in strings alone, so a tag that a model quotes can be written so that it is none.
    inside = _TAG.sub(r"\\u003c", said)
    return f"<tool_call>\n{inside}\n</tool_call>"


def _turn(node: Node, message: Message) -> str:
    said = text_of(message)
    calls = message.get("tool_calls")
    blocks = [_call(call) for call in calls] if isinstance(calls, list) else []
    thought = node.aside
    if thought:
        inside = _TAG.sub(r"<\\", thought).strip()
        blocks.insert(0, f"<think>\n{inside}\n</think>" + (f"\n\n{said}" if said else ""))
    elif said:
        blocks.insert(0, said)
    return "\n".join(blocks)


def _result(message: Message) -> str:
    inside = _TAG.sub(r"<\\", text_of(message))
    return f"<tool_response>\n{inside}\n</tool_response>"


def transcript(
    nodes: Iterable[Node], tools: str = "", marks: Callable[[Node], dict[str, JSON]] | None = None
) -> list[Message]:
    r"""Write a path as messages of the roles system, user and assistant, whose contents are text.

    Results of one turn's calls are one user message. A tag inside a block is written so that it is none: ``<\/think>``
    in a thought or a result, ``\u003c/think>`` in the JSON of a call. What a model wrote into its visible text stays.

    Args:
        nodes: The path, without the root.
        tools: What the system prompt is to say of tools beside its own words; empty for nothing.
        marks: What to add to the message of a model turn; nothing when not given.
    """
    found: list[Message] = []
    results: list[str] = []
    for node in nodes:
        message = node.message
        role = message.get("role")
        if role == "tool":
            results.append(_result(message))
            continue
        if results:
            found.append({"role": "user", "content": "\n".join(results)})
            results = []
        if role == "assistant":
            extra = marks(node) if marks is not None and node.kind is Kind.TURN else {}
            found.append({"role": role, "content": _turn(node, message), **extra})
        else:
            found.append({"role": "system" if role == "developer" else role, "content": text_of(message)})
    if results:
        found.append({"role": "user", "content": "\n".join(results)})
    if not tools or not found:
        return found
    if found[0]["role"] == "system":
        found[0]["content"] = f"{found[0]['content']}\n\n{tools}".strip()
    else:
        found.insert(0, {"role": "system", "content": tools})
    return found
