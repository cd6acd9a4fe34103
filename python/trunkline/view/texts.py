"""Texts of a run: what messages hold, and the tasks that hold a text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline.tree.views import message_calls, message_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trunkline.store.reader import RunReader
    from trunkline.tree.views import Node

_PLAIN: Final = re.compile(r"[A-Za-z0-9 _.,:;?!()=-]+")
"""Characters that JSON holds as they are."""


def tasks_with(reader: RunReader, text: str, *, turns: bool) -> set[int]:
    """The numbers of tasks that hold a text: in their id or messages or, with ``turns``, in their trees.

    Letters match in either case. Names of fields of messages are no text.

    Raises:
        RunFileError: A task or a tree is damaged.
    """
    wanted = text.lower()
    # A delta without the longest part that no JSON escapes cannot hold the text: its tree is not rebuilt.
    least = max(_PLAIN.findall(wanted), key=len, default="").encode()
    found = set()
    for number, task in reader.each_task():
        asked = (task.id, *map(message_text, task.messages))
        if any(wanted in one.lower() for one in asked) or (
            turns
            and any(least in delta.lower() for delta in reader.deltas(number))
            and any(wanted in one.lower() for node in reader.grown(number).nodes for one in _said(node))
        ):
            found.add(number)
    return found


def _said(node: Node) -> Iterator[str]:
    """What the page shows of a node."""
    message = node.message
    yield message_text(message)
    yield node.aside or ""
    yield node.compressed_reasoning or ""
    for _, name, arguments in message_calls(message):
        yield name
        yield arguments
        yield from _leaves(arguments)


def _leaves(text: str) -> Iterator[str]:
    """The texts in a JSON value, names included; none where it is no JSON."""
    try:
        values: list[Any] = [msgspec.json.decode(text)]
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return
    while values:
        match values.pop():
            case str() as one:
                yield one
            case list() as several:
                values += several
            case dict() as named:
                values += [*named, *named.values()]
