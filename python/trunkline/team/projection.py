"""Projections: what of a reply counts, and whether it is a valid action."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

from trunkline._internal.validation import check_bool, check_choice, short_repr
from trunkline.errors import ConfigError

_CHINESE: Final = re.compile("[\u4e00-\u9fff]")
_BRACE: Final = re.compile("[{}]")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_THINK, _THINK_END = "<think>", "</think>"


class Reading(NamedTuple):
    """A reply as a team reads it.

    Attributes:
        text: What is told to the others, and what the program gets.
        valid: Whether it is a valid action; one that is not is used all the same.
    """

    text: str
    valid: bool = True


@runtime_checkable
class Reader(Protocol):
    """Reads replies of one role. It must read equal replies equally: a replay reads them again."""

    def read(self, text: str, reasoning: str | None) -> Reading:
        """Read a reply.

        Args:
            text: What the model said.
            reasoning: What it thought, where the server returned that beside the text.
        """
        ...


class Whole(msgspec.Struct, frozen=True):
    """All of a reply counts, and every reply is valid."""

    def read(self, text: str, reasoning: str | None) -> Reading:
        """Read a reply."""
        return Reading(text)


class Tag(msgspec.Struct, frozen=True):
    """What stands in a tag counts: from the first ``<name>`` to the first ``</name>``, without white space around it.

    A reply that lacks either is not valid, and nothing of it counts (all of it does with ``keep="all"``). With a
    closing tag before the opening one nothing stands in the tag, which is valid. Case matters.

    Attributes:
        name: The tag's name.
        keep: What the text is: the tag's ``content``, the ``block`` with its tags, or ``all`` of the reply, in which
            the content is trimmed.
        thinks: Whether a valid reply has thought first: it has one ``<think>`` and one ``</think>``, in that order, or
            the server returned its thoughts beside it.
        chinese: Whether a valid reply may hold Chinese characters (U+4E00 to U+9FFF), in its thoughts or elsewhere.

    Raises:
        ConfigError: If a field has a value it cannot have.
    """

    name: str
    keep: Literal["content", "block", "all"] = "block"
    thinks: bool = False
    chinese: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ConfigError(f"Tag: name must be a tag's name without brackets, not {short_repr(self.name)}")
        check_choice("Tag: keep", self.keep, "content", "block", "all")
        for field in ("thinks", "chinese"):
            check_bool(f"Tag: {field}", getattr(self, field))

    def read(self, text: str, reasoning: str | None) -> Reading:
        """Read a reply."""
        opens, closes = f"<{self.name}>", f"</{self.name}>"
        start, end = text.find(opens), text.find(closes)
        if start < 0 or end < 0:
            return Reading(text if self.keep == "all" else "", False)
        start += len(opens)
        content = text[start:end].strip()
        match self.keep:
            case "content":
                kept = content
            case "block":
                kept = opens + content + closes
            case "all":
                kept = text[:start] + content + text[end:]
        return Reading(kept, self._is_valid(text, reasoning or ""))

    def _is_valid(self, text: str, reasoning: str) -> bool:
        if not self.chinese and (_CHINESE.search(text) or _CHINESE.search(reasoning)):
            return False
        return not self.thinks or bool(reasoning) or _thought(text)


class Boxed(msgspec.Struct, frozen=True):
    r"""All of a reply counts; it is valid if after its last ``\boxed`` a brace opens at once and is closed."""

    def read(self, text: str, reasoning: str | None) -> Reading:
        """Read a reply."""
        last = text.rfind(r"\boxed")
        opens = last + len(r"\boxed")
        return Reading(text, last >= 0 and text.startswith("{", opens) and _closes(text, opens))


def _thought(text: str) -> bool:
    """Whether a text has one pair of think tags, in order."""
    once = text.count(_THINK) == 1 and text.count(_THINK_END) == 1
    return once and text.find(_THINK) < text.find(_THINK_END)


def _closes(text: str, start: int) -> bool:
    """Whether the brace that opens at a place is closed; backslashes do not count."""
    depth = 0
    for brace in _BRACE.finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return True
    return False
