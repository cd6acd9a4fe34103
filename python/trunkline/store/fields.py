"""From a row of a data set to a task: which field means what."""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from trunkline.bounds import kind
from trunkline.errors import ConfigError
from trunkline.llm.messages import check
from trunkline.printable import printable
from trunkline.types import JSON, Message, Task, accepted

if TYPE_CHECKING:
    from trunkline.store.place import Place

__all__ = ["ANSWERS", "EXTRAS", "QUESTIONS", "read_task"]

Row = dict[str, JSON]

QUESTIONS = ("question", "input", "prompt", "messages", "problem")
ANSWERS = ("answer", "target", "label", "ideal", "reference")
EXTRAS = ("metadata", "info")


def _present(row: Row, name: str) -> bool:
    value = row.get(name)
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _names(names: list[str]) -> str:
    shown = ", ".join(printable(name, 40) or '""' for name in names[:12])
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _one_of(row: Row, names: tuple[str, ...], what: str, place: Place) -> str | None:
    found = [name for name in names if _present(row, name)]
    if len(found) > 1:
        raise place.error(f"two {what} fields, {found[0]} and {found[1]}: keep one and rename or remove the other")
    return found[0] if found else None


def _sendable(messages: list[Message], place: Place, name: str) -> list[Message]:
    try:
        check(messages, name)
    except ConfigError as problem:
        raise place.error(printable(str(problem), 300)) from None
    return messages


def _messages(row: Row, place: Place) -> list[Message]:
    name = _one_of(row, QUESTIONS, "question", place)
    if name is None:
        has = _names(list(row)) or "no fields"
        raise place.error(f"no question field: it has {has}; expected one of {', '.join(QUESTIONS)}")
    value = row[name]
    if isinstance(value, list):
        if not value:
            raise place.error(f"{name} is an empty list, expected at least one message")
        return _sendable(value, place, name)
    if not isinstance(value, str) or name == "messages":
        expected = "a list of messages" if name == "messages" else "a string or a list of messages"
        raise place.error(f"{name} is {kind(value)}, expected {expected}")
    if not value.strip():
        raise place.error(f"{name} is empty")
    return _sendable([{"role": "user", "content": value}], place, name)


def _references(row: Row, place: Place) -> tuple[str, ...]:
    name = _one_of(row, ANSWERS, "answer", place)
    if name is None:
        return ()
    try:
        return accepted(name, row[name])
    except ConfigError as problem:
        raise place.error(str(problem)) from None


def _metadata(row: Row, place: Place) -> dict[str, JSON]:
    known = {"id", *QUESTIONS, *ANSWERS, *EXTRAS}
    metadata = {name: value for name, value in row.items() if name not in known}
    for name in EXTRAS:
        if not _present(row, name):
            continue
        value = row[name]
        if not isinstance(value, dict):
            raise place.error(f"{name} is {kind(value)}, expected an object")
        for key, item in value.items():
            if key in metadata and metadata[key] != item:
                raise place.error(f"{printable(key, 40)} stands in {name} and beside it with another value: keep one")
            metadata[key] = item
    return metadata


def _id(row: Row, place: Place) -> str | None:
    if not _present(row, "id"):
        return None
    value = row["id"]
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a table with a gap in the column holds its ids as floats
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise place.error(f"id is {kind(value)}, expected a string or a whole number")
    if not str(value).strip():
        raise place.error("id is empty: give it a value or leave the field out")
    return str(value)


def _content_id(*content: JSON) -> str:
    return blake2b(msgspec.json.encode(content, order="deterministic"), digest_size=8).hexdigest()


def read_task(row: JSON, place: Place) -> tuple[Task, bool]:
    """Make a task from a row.

    Args:
        row: What the file holds, decoded.
        place: Where it stands there.

    Returns:
        The task, and whether the row names its id; else that is a hash of the content.

    Raises:
        InputError: The row cannot be used; the message names the place and the field.
    """
    if not isinstance(row, dict):
        raise place.error(f"{kind(row)}, expected an object with a question field")
    name = _id(row, place)
    messages, reference, metadata = _messages(row, place), _references(row, place), _metadata(row, place)
    try:
        content = _content_id(messages, reference, metadata)
    except (TypeError, ValueError, RecursionError) as problem:
        raise place.error(f"cannot be stored as JSON: {printable(str(problem), 80)}") from None
    return Task(id=name or content, messages=messages, reference=reference, metadata=metadata), name is not None
