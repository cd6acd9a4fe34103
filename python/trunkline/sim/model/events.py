"""What happened in a conversation: searches, visits, and what they found."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from trunkline.sim.model.chat import Call, parts, response
from trunkline.sim.model.forms import is_form

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trunkline.sim.model.chat import Conversation, Message

__all__ = ["SEARCH_KEYS", "VISIT_KEYS", "Event", "events"]

SEARCH_KEYS: Final = ("query", "queries", "q", "search_query", "keywords")
"""What a search tool's parameter may be called."""

VISIT_KEYS: Final = ("id", "ids", "doc_id", "document_id", "url", "urls", "link", "page")
"""What a visit tool's parameter may be called."""

_TAG: Final = re.compile(r"<(search|information)>(.*?)</\1>", re.DOTALL)
_READ_AS: Final = re.compile(
    r"\A\[The (?:arguments were|tool call was) no JSON object; read as ([^\n]*)\]\n(.*)\Z", re.DOTALL
)


class Event(NamedTuple):
    """One of them.

    Attributes:
        kind: ``search``, ``visit`` or ``result``.
        values: The queries, the documents, or the text that was found.
    """

    kind: str
    values: tuple[str, ...]


def events(conversation: Conversation) -> Iterator[Event]:
    """Return what happened in a conversation, oldest first.

    Args:
        conversation: The conversation; searches and what they found may stand in replies and results of tools, or in
            one message that tells of them.
    """
    pending: list[Event | None] = []
    asked = False
    known = {tool.name for tool in conversation.tools}
    for message in conversation.messages:
        if message.role == "assistant":
            calls = parts(message.text).calls
            pending = [_read_call(call) if not known or call.name in known else None for call in calls]
            text = message.text
            if "<search>" in text and "</search>" not in text:
                text += "</search>"  # the server left the stop string out of the reply
            tagged = _tagged(text)
            yield from tagged
            asked = bool(tagged) and tagged[-1].kind == "search"
        elif message.role == "tool":
            event = pending.pop(0) if pending else None
            text = _response(message)
            if event is None:
                event, text = _repaired(text)
            if event is not None:
                yield event
                yield Event("result", (text,))
            elif asked:
                yield Event("result", (text,))
        elif message.role == "user":
            tagged = _told(message.text)
            yield from tagged
            if asked and not any(event.kind == "result" for event in tagged):
                yield Event("result", (message.text,))
            asked = False
    yield from _tagged(conversation.opened)


@lru_cache(maxsize=8192)
def _tagged(text: str) -> tuple[Event, ...]:
    if "<search>" not in text and "<information>" not in text:
        return ()
    kinds = {"search": "search", "information": "result"}
    return tuple(Event(kinds[match[1]], (match[2].strip(),)) for match in _TAG.finditer(text))


@lru_cache(maxsize=8192)
def _told(text: str) -> tuple[Event, ...]:
    """Searches that a prompt tells of; what stands behind one, in no tag, is what it found. A mere form is none."""
    events: list[Event] = []
    end = 0
    for match in _TAG.finditer(text):
        if not is_form(match[2]):
            events += [*_found(events, text[end : match.start()]), *_tagged(match[0])]
            end = match.end()
    return tuple(events + _found(events, text[end:]))


def _found(events: Sequence[Event], text: str) -> list[Event]:
    return [Event("result", (text,))] if events and events[-1].kind == "search" and text.strip() else []


@lru_cache(maxsize=8192)
def _read_call(call: Call) -> Event | None:
    """A call as an event; ``None`` where it cannot have had an effect."""
    try:
        arguments = msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    if not isinstance(arguments, dict):
        return None
    for kind, keys in (("search", SEARCH_KEYS), ("visit", VISIT_KEYS)):
        for key in keys:
            values = _texts(arguments.get(key))
            if values:
                return Event(kind, values)
    return None


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list):
        return tuple(item for item in value if isinstance(item, str))
    return ()


def _repaired(text: str) -> tuple[Event | None, str]:
    """The call that an observation says it repaired, and its result; no call where it says no such thing, or failed."""
    match = _READ_AS.match(text)
    if match is None or match[2].startswith("Error: "):
        return None, text
    call = parts(f"<tool_call>{match[1]}</tool_call>").calls
    return _read_call(call[0] if call else Call("", match[1])), match[2]


def _response(message: Message) -> str:
    inside = response(message.text)
    return message.text if inside is None else inside
