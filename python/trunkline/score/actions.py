"""What a turn does, in a form in which two turns that do the same are equal."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline.llm.dialects.hermes import Hermes
from trunkline.llm.dialects.search_r1 import SearchR1
from trunkline.llm.protocol import Choice
from trunkline.score.answers import extract_answer
from trunkline.tree.node import message_text
from trunkline.tree.vote import normalise

if TYPE_CHECKING:
    from trunkline.types import JSON, Message

__all__ = ["action"]

# Dialects whose calls stand in the text, with what they must know of tools to read one.
_WRITTEN = (Hermes(), SearchR1())
_TOOLS = [{"function": {"name": "search", "parameters": {"properties": {"query": {"type": "string"}}}}}]


def action(turn: Message) -> str:
    """Return the key of what a model turn does: its tool calls, else its answer.

    Calls are equal if they name the same tools with the same arguments, whatever the order of the calls, of the
    arguments' names, and the case and white space of texts. They are found in ``tool_calls``, and in the text where it
    is written as ``hermes`` or ``search-r1`` have it; what is only thought does not count. Answers are equal as
    everywhere, after normalisation.

    Args:
        turn: The message of the turn.

    Returns:
        16 hex digits. What a model wrote may be of any length, and must reach no screen.
    """
    calls = _native(turn) or _written(message_text(turn))
    said: JSON = sorted([name, _plain(arguments)] for name, arguments in calls)
    if not calls:
        said = normalise(extract_answer(message_text(turn)))
    # ASCII, so that lone surrogates can be hashed.
    return blake2b(json.dumps(said).encode(), digest_size=8).hexdigest()


def _native(turn: Message) -> list[tuple[str, str]]:
    listed = turn.get("tool_calls")
    found = [call.get("function") for call in listed if isinstance(call, dict)] if isinstance(listed, list) else []
    return [(str(call.get("name")), str(call.get("arguments"))) for call in found if isinstance(call, dict)]


def _written(text: str) -> list[tuple[str, str]]:
    for dialect in _WRITTEN:
        calls = dialect.parse(Choice(text, None, [], "stop"), _TOOLS).calls
        if calls:
            return [(call.name, call.arguments) for call in calls]
    return []


def _plain(arguments: str) -> str:
    """Return arguments in one spelling; text that is no JSON stands for itself."""
    try:
        return json.dumps(_folded(msgspec.json.decode(arguments)), sort_keys=True)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return json.dumps(_folded(arguments))


def _folded(value: Any) -> JSON:
    if isinstance(value, str):
        return " ".join(value.casefold().split())
    if isinstance(value, list):
        return [_folded(item) for item in value]
    if isinstance(value, dict):
        return {key: _folded(item) for key, item in value.items()}
    return value
