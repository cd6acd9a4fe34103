"""The form of a conversation by which requests of an agent are compared: ids are ordinals, arguments are parsed."""

from __future__ import annotations

import hashlib
import re
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from trunkline._internal.text import scrub
from trunkline._internal.validation import short_repr
from trunkline.errors import ConfigError
from trunkline.llm.response import written

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trunkline.types import Message

T = TypeVar("T")

_sorted: Final = msgspec.json.Encoder(order="sorted")
_KEPT: Final = 4
"""Requests of a rollout that are kept as they were read: an agent may hold several conversations side by side."""
_MASKED: Final = "\ufffc"
"""Stands for what a mask covers: the object replacement character."""


class RequestMasks:
    """Regular expressions of texts that are equal for matching, whatever they are.

    Args:
        patterns: The expressions, as :mod:`re` reads them.
        texts: Texts that are covered wherever they stand.

    Raises:
        ConfigError: An expression is wrong, or fits the empty text.
    """

    def __init__(self, patterns: Sequence[str] = (), texts: Iterable[str] = ()) -> None:
        self._patterns = patterns
        # The longest first, so that a text within another one does not leave a rest of it.
        plain = sorted({re.escape(text) for text in texts if text}, key=lambda text: (-len(text), text))
        self._compiled = [re.compile("|".join(plain))] if plain else []
        for pattern in patterns:
            try:
                compiled = re.compile(pattern)
                empty = compiled.match("") is not None
            except (re.error, TypeError, RecursionError, OverflowError) as problem:
                raise ConfigError(f"mask {short_repr(pattern)} is no regular expression: {problem}") from None
            if empty:
                raise ConfigError(f"mask {short_repr(pattern)} fits the empty text: write what it is to cover")
            self._compiled.append(compiled)

    def with_texts(self, texts: Iterable[str]) -> RequestMasks:
        """Return these masks, and others of plain texts."""
        return RequestMasks(self._patterns, texts)

    def apply(self, text: str) -> str:
        """Return a text with all that is covered replaced by one character."""
        for compiled in self._compiled:
            text = compiled.sub(_MASKED, text)
        return text


NO_MASKS: Final = RequestMasks()


class FormReader:
    """Reads the forms of a conversation's messages, one after the other.

    Args:
        masks: What they are compared without.
    """

    def __init__(self, masks: RequestMasks = NO_MASKS) -> None:
        self._masks = masks
        self._ordinals: dict[str, int] = {}
        self._count = 0

    def read(self, message: Message) -> bytes:
        """Return a message's form: role, text, calls by name and parsed arguments, and which call it answers.

        Args:
            message: A chat message, whose role and text :func:`trunkline.llm.messages.check` accepts.
        """
        apply = self._masks.apply
        calls = []
        for call in message.get("tool_calls") or ():
            function = call["function"]
            calls.append([apply(function["name"]), apply(arguments(function["arguments"]))])
            self._ordinals[call["id"]] = self._count
            self._count += 1
        answers = self._ordinals.get(message.get("tool_call_id", ""))
        return encoded([message["role"], _content(message.get("content"), self._masks), calls, answers])


def forms(messages: Sequence[Message], masks: RequestMasks = NO_MASKS) -> list[bytes]:
    """Return the form of each message of a conversation."""
    reader = FormReader(masks)
    return [reader.read(message) for message in messages]


def arguments(text: str) -> str:
    """Return the arguments of a call with their fields in order, as the model wrote them; blank ones are none."""
    text = written(text)
    if not text.strip():
        return "{}"
    try:
        return encoded(msgspec.json.decode(text)).decode()
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError):
        return text


class LatestRequests(Generic[T]):
    """What was found in the messages of the latest requests: agents send all of a conversation again and again."""

    def __init__(self) -> None:
        self._kept: deque[tuple[Sequence[Message], T]] = deque(maxlen=_KEPT)

    def keep(self, messages: Sequence[Message], found: T) -> None:
        """Keep what was found in a request's messages."""
        self._kept.append((messages, found))

    def take(self, messages: Sequence[Message]) -> T | None:
        """Take out what was found in the longest request that these messages begin with."""
        fitting = [place for place, (earlier, _) in enumerate(self._kept) if _begins(messages, earlier)]
        if not fitting:
            return None
        longest = max(fitting, key=lambda place: len(self._kept[place][0]))
        _, found = self._kept[longest]
        del self._kept[longest]
        return found


def _begins(messages: Sequence[Message], earlier: Sequence[Message]) -> bool:
    try:
        return messages[: len(earlier)] == earlier and all(
            encoded(new["content"]) == encoded(old["content"])  # true is not 1 there
            for new, old in zip(messages, earlier, strict=False)
            if new is not old and type(new.get("content")) is list
        )
    except RecursionError:
        return False


def digest(parts: Iterable[bytes], size: int = 16) -> bytes:
    """Return the hash of some byte strings in their order."""
    hashed = hashlib.blake2b(digest_size=size)
    add_parts(hashed, parts)
    return hashed.digest()


def add_parts(hashed: hashlib.blake2b, parts: Iterable[bytes]) -> None:
    """Add byte strings to a hash, each with its length."""
    for part in parts:
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)


def encoded(value: Any) -> bytes:
    """Encode JSON with its fields in order; lone surrogates are replaced."""
    try:
        return _sorted.encode(value)
    except UnicodeEncodeError:
        return _sorted.encode(scrub(value))


def _content(content: Any, masks: RequestMasks) -> Any:
    if content is None:
        return ""
    if isinstance(content, str):
        return masks.apply(content)
    parts: list[Any] = []
    for part in content:
        if part.get("type") == "text":
            parts.append(masks.apply(part["text"]))
        else:
            parts.append([digest([encoded(part)]).hex()])
    return parts
