"""A conversation that somebody gives, made fit to go on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from trunkline.bounds import kind
from trunkline.errors import ConfigError
from trunkline.llm import messages as chat
from trunkline.llm.text import scrub_deep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trunkline.types import JSON, Message

__all__ = ["conversation_of"]

_OURS: Final = re.compile(r"t[0-9a-z]{4}c[0-9a-z]{3}")
"""What ids of calls look like that the library gives; see :func:`trunkline.llm.messages.call_id`."""


def conversation_of(given: object) -> list[Message]:
    """Read messages, of which some may be the SDK's own objects.

    Calls of an earlier rollout get other ids: those of the one that goes on from here begin anew, and a conversation
    must not have one id twice.

    Args:
        given: What was given as messages; it stays as it is.

    Returns:
        Messages in the OpenAI form.

    Raises:
        ConfigError: They cannot be sent; the message names the field.
    """
    if not isinstance(given, list | tuple) or not given:
        raise ConfigError(f"messages must be a list of at least one chat message, not {kind(given)}")
    read: list[Message] = []
    for message in given:
        dump = getattr(message, "model_dump", None)
        read.append(dump(exclude_none=True) if callable(dump) else message)
    chat.check(read)
    # A copy, in which every text can be sent and stored.
    read = scrub_deep(read)
    _rename(read)
    return read


def _rename(conversation: list[Message]) -> None:
    """Give the calls that an earlier rollout made other ids, and their results as well."""
    used = {call["id"] for message in conversation for call in message.get("tool_calls") or ()}
    fresh = _fresh(used)
    # Of the latest turn: foreign ids may come again in a later one.
    names: dict[str, str] = {}
    for message in conversation:
        if message["role"] == "assistant":
            calls: list[JSON] = message.get("tool_calls") or []
            names = {call["id"]: next(fresh) for call in calls if _OURS.fullmatch(call["id"])}
            for call in calls:
                call["id"] = names.get(call["id"], call["id"])
        elif message["role"] == "tool":
            message["tool_call_id"] = names.get(message["tool_call_id"], message["tool_call_id"])


def _fresh(used: set[str]) -> Iterator[str]:
    """Yield ids of nine letters and digits, as some models want them, that nobody has."""
    number = 0
    while True:
        name = f"p{number:08d}"
        number += 1
        if name not in used:
            yield name
