"""Reads the requests of a rollout: agents send all of a conversation each time, and what is known is not read again."""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from trunkline._internal.text import HIDDEN, describe_error, excerpt
from trunkline.gateway.formats import fields
from trunkline.gateway.types import RequestRefused

if TYPE_CHECKING:
    from trunkline.gateway.types import AgentRequest, Format

_KEPT: Final = 4
"""Conversations of a rollout that are kept: an agent may hold several side by side."""

LARGE: Final = 4 << 20
"""Bytes of a body that may be large."""
_MOST_VALUES: Final = 1_000_000
"""Of such a body, told by commas and brackets; each value costs time and much memory."""

_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list: Final = msgspec.json.Decoder(list[msgspec.Raw])
_any: Final = msgspec.json.Decoder()
_SPACE: Final = b" \t\r\n"


class KnownConversation(NamedTuple):
    """A conversation that was read.

    Attributes:
        form: Its interface.
        body: The body that it came in, up to the end of its last item.
        lead: The beginning of that, up to its first item.
        rest: What followed the list.
        items: How many items it has.
        messages: The messages that they are.
    """

    form: Format
    body: bytes
    lead: bytes
    rest: bytes
    items: int
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
        """Read what is new in a body that begins with one that was read."""
        known, at = None, 0
        for place, one in enumerate(self._kept):
            if one.form is form and data.startswith(one.body) and (known is None or one.items > known.items):
                known, at = one, place
        if known is None:
            return None
        end = len(known.body)
        further = data.startswith(b",", end)
        more = data[end + further :]
        ends = more.lstrip(_SPACE).startswith(b"]")
        if ends is further or not (ends or further) or self._secret in more or form.conversation.encode() in more:
            return None
        body = known.lead + more
        given = _object.decode(body)
        said, begins = bytes(given[form.conversation]), len(known.lead) - 1
        rest = body[begins + len(said) :]
        if not body.startswith(said, begins) or (rest != known.rest and b"\\u" in rest):
            return None  # the field may come again, escaped
        del self._kept[at]
        return self._take(form, known, given, data, len(data) - len(body))

    def _read_whole(self, form: Format, data: bytes) -> AgentRequest:
        data = data.replace(self._secret, HIDDEN.encode())
        given = _object.decode(data)
        said = given.get(form.conversation)
        if said is None or memoryview(said)[0] != ord("["):
            given.pop(form.conversation, None)
            head, messages = self._read_head(form, given), form.text(None if said is None else _any.decode(said))
            fields.check_messages(messages, form.conversation, len(data))
            return msgspec.structs.replace(head, messages=[*head.messages, *messages])
        return self._take(form, KnownConversation(form, b"", self._lead(form, data, said), b"", 0, []), given, data, 0)

    def _lead(self, form: Format, data: bytes, said: msgspec.Raw) -> bytes:
        """A body up to the first item of its conversation; empty where that is not certain."""
        begins = re.search(rb'"%b"[ \t\r\n]*:[ \t\r\n]*\[' % form.conversation.encode(), data)
        if begins is None:
            return b""
        lead, rest = data[: begins.end()], data[begins.end() - 1 + len(said) :]
        try:  # the list may be one that another field holds
            without = _object.decode(lead + b"]" + rest)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return b""
        certain = bytes(without[form.conversation]) == b"[]" and data.startswith(bytes(said), len(lead) - 1)
        return lead if certain else b""

    def _take(
        self, form: Format, known: KnownConversation, given: dict[str, msgspec.Raw], data: bytes, before: int
    ) -> AgentRequest:
        """Read further items of a conversation.

        Args:
            form: The interface.
            known: The conversation so far.
            given: The body without the items so far.
            data: The body.
            before: How many bytes of it are left out in ``given``, beyond those that are not.
        """
        field, count = form.conversation, known.items
        said = given.pop(field)
        head = self._read_head(form, given)
        new, first, messages = _list.decode(said), len(known.messages), [*known.messages]
        form.add(messages, [*map(_any.decode, new)], count)
        if first and messages[first - 1] is not known.messages[-1]:
            first -= 1
        fields.check_messages(messages, field, len(data), first)
        if known.lead:
            end = before + len(known.lead) - 1 + len(said)
            body = data[: end - 1].rstrip(_SPACE)
            self._kept.append(KnownConversation(form, body, known.lead, data[end:], count + len(new), messages))
        return msgspec.structs.replace(head, messages=[*head.messages, *messages] if head.messages else messages)

    def _read_head(self, form: Format, given: dict[str, msgspec.Raw]) -> AgentRequest:
        if self._head is not None:
            known, fields_before, head = self._head
            if known is form and fields_before == given:
                return head
        head = form.head({name: _any.decode(value) for name, value in given.items()})
        self._head = form, {name: value.copy() for name, value in given.items()}, head
        return head


def no_object(problem: Exception) -> RequestRefused:
    """Return the refusal of a body that cannot be read."""
    return RequestRefused(f"the body is no JSON object: {excerpt(describe_error(problem), 200)}")
