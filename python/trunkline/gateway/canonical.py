"""The form of a conversation by which requests of an agent are compared: ids are ordinals, arguments are parsed."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline._internal.text import scrub
from trunkline._internal.validation import short_repr
from trunkline.errors import ConfigError
from trunkline.llm.response import written

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trunkline.types import Message

_sorted: Final = msgspec.json.Encoder(order="sorted")
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


def forms(messages: Sequence[Message], masks: RequestMasks = NO_MASKS) -> list[bytes]:
    """Return the form of each message: role, text, calls by name and parsed arguments, and which call it answers.

    Args:
        messages: Chat messages, whose roles and texts :func:`trunkline.llm.messages.check` accepts.
        masks: What they are compared without.
    """
    ordinals: dict[str, int] = {}
    found = []
    count = 0
    for message in messages:
        calls = []
        for call in message.get("tool_calls") or ():
            function = call["function"]
            calls.append([masks.apply(function["name"]), masks.apply(arguments(function["arguments"]))])
            ordinals[call["id"]] = count
            count += 1
        answers = ordinals.get(message.get("tool_call_id", ""))
        found.append(encoded([message["role"], _content(message.get("content"), masks), calls, answers]))
    return found


def arguments(text: str) -> str:
    """Return the arguments of a call with their fields in order, as the model wrote them; blank ones are none."""
    text = written(text)
    if not text.strip():
        return "{}"
    try:
        return encoded(msgspec.json.decode(text)).decode()
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError):
        return text


def digest(parts: Iterable[bytes], size: int = 16) -> bytes:
    """Return the hash of some byte strings in their order."""
    hashed = hashlib.blake2b(digest_size=size)
    for part in parts:
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return hashed.digest()


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
