"""Reads the requests of a rollout: agents send all of a conversation each time, and what is known is not read again."""

from __future__ import annotations

import re
from collections import deque
from typing import Any, Final

import msgspec

from trunkline._internal.text import HIDDEN, describe_error, excerpt
from trunkline.gateway.formats import fields
from trunkline.gateway.types import AgentRequest, Format, RequestRefused

_KEPT: Final = 4
"""Conversations of a rollout that are kept: an agent may hold several side by side."""

LARGE: Final = 4 << 20
"""Bytes of a body that may be large."""
_MOST_VALUES: Final = 1_000_000
"""Of such a body, told by commas and brackets; each value costs time and much memory."""

_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items: Final = msgspec.json.Decoder(tuple[list[Any]])
"""Items within as much as they are within in a body, so that they may be nested as deeply."""
_any: Final = msgspec.json.Decoder()
_SPACE: Final = b" \t\r\n"
_COMMA: Final = ord(",")


class KnownConversation(msgspec.Struct, frozen=True, gc=False):
    """A conversation that was read.

    Attributes:
        form: Its interface.
        body: The body that it came in, up to the end of its last item.
        rest: What followed that: the end of the list, and the fields behind it.
        items: How many items it has.
        head: The request without its conversation.
        messages: The messages of the conversation.
    """

    form: Format
    body: bytes
    rest: bytes
    items: int
    head: AgentRequest
    messages: list[dict[str, Any]]


class AgentRequests:
    """Reads the requests of one rollout.

    Args:
        secret: What is hidden in them: an agent may write its base URL into a request, which is kept in the run file.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._head: tuple[Format, dict[str, msgspec.Raw], AgentRequest] | None = None
        self._kept: deque[KnownConversation] = deque(maxlen=_KEPT)

    def read(self, form: Format, data: bytes) -> AgentRequest:
        """Read the body of a request. Messages that came before are the same objects as then.

        Args:
            form: Its interface.
            data: The body, which may hold anything.

        Raises:
            RequestRefused: It asks for something that is not offered, or is no request.
        """
        if len(data) > LARGE and sum(map(data.count, (b",", b"[", b"{"))) > _MOST_VALUES:
            raise RequestRefused(f"the body has more than {_MOST_VALUES:,} values: shorten it", 413)
        try:
            return self._read_on(form, data) or self._read_whole(form, data)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as problem:
            raise no_object(problem) from None

    def _read_on(self, form: Format, data: bytes) -> AgentRequest | None:
        """Read a body that is one that was read, but for further items of its list."""
        known, at = None, 0
        for place, one in enumerate(self._kept):
            if one.form is form and data.startswith(one.body) and (known is None or one.items > known.items):
                known, at = one, place
        if known is None or not data.endswith(known.rest):
            return None
        start, end = len(known.body), len(data) - len(known.rest)
        if end < start:
            return None
        items: list[Any] = []
        if start != end:
            more = data[start + 1 : end]
            if data[start] != _COMMA or self._secret in more:
                return None
            try:
                (items,) = _items.decode(b"[[%b]]" % more)
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                return None
            if not items:
                return None
        del self._kept[at]
        messages = self._add(form, known.messages, items, known.items, len(data))
        body = data[:end].rstrip(_SPACE)
        self._kept.append(
            KnownConversation(form, body, data[len(body) :], known.items + len(items), known.head, messages)
        )
        return _with(known.head, messages)

    def _read_whole(self, form: Format, data: bytes) -> AgentRequest:
        data = data.replace(self._secret, HIDDEN.encode())
        given = _object.decode(data)
        said = given.pop(form.conversation, None)
        head = self._read_head(form, given)
        if said is None or memoryview(said)[0] != ord("["):
            messages = form.text(None if said is None else _any.decode(said))
            fields.check_messages(messages, form.conversation, len(data))
            return _with(head, messages)
        (items,) = _items.decode(b"[%b]" % said)
        messages = self._add(form, [], items, 0, len(data))
        if size := self._lead(form, data, said):
            self._keep(form, data, size + len(said) - 2, len(items), head, messages)
        return _with(head, messages)

    def _lead(self, form: Format, data: bytes, said: msgspec.Raw) -> int:
        """The length of a body up to the first item of its conversation; 0 where that is not certain."""
        begins = re.search(rb'"%b"[ \t\r\n]*:[ \t\r\n]*\[' % form.conversation.encode(), data)
        if begins is None:
            return 0
        lead, rest = data[: begins.end()], data[begins.end() - 1 + len(said) :]
        try:  # the list may be one that another field holds
            without = _object.decode(lead + b"]" + rest)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return 0
        certain = bytes(without[form.conversation]) == b"[]" and data.startswith(bytes(said), len(lead) - 1)
        return len(lead) if certain else 0

    def _keep(
        self, form: Format, data: bytes, end: int, items: int, head: AgentRequest, messages: list[dict[str, Any]]
    ) -> None:
        """Keep a conversation whose list ends there in a body."""
        body = data[:end].rstrip(_SPACE)
        self._kept.append(KnownConversation(form, body, data[len(body) :], items, head, messages))

    def _add(
        self, form: Format, known: list[dict[str, Any]], items: list[Any], count: int, size: int
    ) -> list[dict[str, Any]]:
        """The messages of a conversation with further items.

        Args:
            form: The interface.
            known: The messages so far.
            items: The items.
            count: How many are before them.
            size: Bytes of the body.
        """
        messages, first = [*known], len(known)
        form.add(messages, items, count)
        if first and messages[first - 1] is not known[-1]:
            first -= 1
        fields.check_messages(messages, form.conversation, size, first)
        return messages

    def _read_head(self, form: Format, given: dict[str, msgspec.Raw]) -> AgentRequest:
        if self._head is not None:
            known, fields_before, head = self._head
            if known is form and fields_before == given:
                return head
        head = form.head({name: _any.decode(value) for name, value in given.items()})
        self._head = form, {name: value.copy() for name, value in given.items()}, head
        return head


def _with(head: AgentRequest, messages: list[dict[str, Any]]) -> AgentRequest:
    return msgspec.structs.replace(head, messages=[*head.messages, *messages] if head.messages else messages)


def no_object(problem: Exception) -> RequestRefused:
    """Return the refusal of a body that cannot be read."""
    return RequestRefused(f"the body is no JSON object: {excerpt(describe_error(problem), 200)}")
