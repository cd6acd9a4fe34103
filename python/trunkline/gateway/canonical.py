"""The form of a conversation by which requests of an agent are compared: ids are ordinals, arguments are parsed."""

from __future__ import annotations

import re
from collections import deque
from operator import is_
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from trunkline._core import parts_digest
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
        patterns: The expressions, as ``re`` reads them.
        texts: Texts that are covered wherever they stand.

    Raises:
        ConfigError: An expression is wrong, or fits the empty text.

    Attributes:
        texts: The texts as JSON has them, without quotation marks: without them in a form nothing is covered. None
            where there are expressions.
    """

    def __init__(self, patterns: Sequence[str] = (), texts: Iterable[str] = ()) -> None:
        self._patterns = patterns
        # The longest first, so that a text within another one does not leave a rest of it.
        plain = sorted({text for text in texts if text}, key=lambda text: (-len(text), text))
        self._replaced = [re.compile("|".join(map(re.escape, plain))).sub] if plain else []
        self.texts = None if patterns else tuple(encoded(text)[1:-1] for text in plain)
        for pattern in patterns:
            try:
                compiled = re.compile(pattern)
                empty = compiled.match("") is not None
            except (re.error, TypeError, RecursionError, OverflowError) as problem:
                raise ConfigError(f"mask {short_repr(pattern)} is no regular expression: {problem}") from None
            if empty:
                raise ConfigError(f"mask {short_repr(pattern)} fits the empty text: write what it is to cover")
            self._replaced.append(compiled.sub)

    def with_texts(self, texts: Iterable[str]) -> RequestMasks:
        """Return these masks, and others of plain texts."""
        return RequestMasks(self._patterns, texts)

    def apply(self, text: str) -> str:
        """Return a text with all that is covered replaced by one character."""
        for replaced in self._replaced:
            text = replaced(_MASKED, text)
        return text


NO_MASKS: Final = RequestMasks()


class FormReader:
    """Reads the forms of a conversation's messages, one after the other.

    Args:
        masks: What they are compared without.
    """

    def __init__(self, masks: RequestMasks = NO_MASKS) -> None:
        self._masks = masks
        self._texts = masks.texts
        self._ordinals: dict[str, int] = {}
        self._count = 0

    def read(self, message: Message) -> tuple[bytes, bytes, int | None]:
        """Return a message's form: role, text, calls by name and parsed arguments, and which call it answers.

        Args:
            message: A chat message, whose role and text ``trunkline.llm.messages.check`` accepts.

        Returns:
            The form with what masks cover replaced, and without; which call the message answers, by its place among all
            calls, or None.
        """
        calls = []
        if listed := message.get("tool_calls"):
            for call in listed:
                function = call["function"]
                calls.append([function["name"], arguments(function["arguments"])])
        content = message.get("content")
        if type(content) is not str:
            content = _content(content)
        answered = message.get("tool_call_id")
        answers = None if answered is None else self._ordinals.get(answered)
        raw = encoded([message["role"], content, calls, answers])
        if self._texts is not None:
            for one in self._texts:
                if one in raw:
                    break
            else:
                return raw, raw, answers
        apply = self._masks.apply
        text = apply(content) if type(content) is str else [apply(x) if type(x) is str else x for x in content]
        covered = calls and [[*map(apply, call)] for call in calls]
        if text == content and covered == calls:
            return raw, raw, answers
        return encoded([message["role"], text, covered, answers]), raw, answers

    def passed(self, message: Message) -> None:
        """Note the calls of a message, which those behind it may answer."""
        for call in message.get("tool_calls") or ():
            self._ordinals[call["id"]] = self._count
            self._count += 1


def forms(messages: Sequence[Message], masks: RequestMasks = NO_MASKS) -> list[bytes]:
    """Return the form of each message of a conversation."""
    reader = FormReader(masks)
    found = []
    for message in messages:
        found.append(reader.read(message)[0])
        reader.passed(message)
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


class LatestRequests(Generic[T]):
    """What was found in the messages of the latest requests: agents send all of a conversation again and again."""

    def __init__(self) -> None:
        self._kept: deque[tuple[Sequence[Message], T]] = deque(maxlen=_KEPT)

    def keep(self, messages: Sequence[Message], found: T) -> None:
        """Keep what was found in a request's messages."""
        self._kept.append((messages, found))

    def take(self, messages: Sequence[Message]) -> T | None:
        """Take out what was found in the longest request that these messages begin with."""
        longest = at = -1
        for place, (earlier, _) in enumerate(self._kept):
            if len(earlier) > longest and _begins(messages, earlier):
                longest, at = len(earlier), place
        if at < 0:
            return None
        _, found = self._kept[at]
        del self._kept[at]
        return found


def _begins(messages: Sequence[Message], earlier: Sequence[Message]) -> bool:
    last = len(earlier) - 1
    try:
        if len(messages) <= last or messages[last] != earlier[last]:
            return False
        if all(map(is_, messages, earlier)):
            return True
        return messages[: len(earlier)] == earlier and all(
            encoded(new["content"]) == encoded(old["content"])  # true is not 1 there
            for new, old in zip(messages, earlier, strict=False)
            if new is not old and type(new.get("content")) is list
        )
    except RecursionError:
        return False


def encoded(value: Any) -> bytes:
    """Encode JSON with its fields in order; lone surrogates are replaced."""
    try:
        return _sorted.encode(value)
    except UnicodeEncodeError:
        return _sorted.encode(scrub(value))


def _content(content: Any) -> Any:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return [part["text"] if part.get("type") == "text" else [parts_digest([encoded(part)]).hex()] for part in content]
