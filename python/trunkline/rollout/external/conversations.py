"""The conversations that a rollout's agent has had, and the fragments of the tree that its next request is sent as."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline._core import parts_digest
from trunkline.gateway.canonical import NO_MASKS, FormReader, LatestRequests
from trunkline.llm.messages import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline._core import CoreTree
    from trunkline.gateway.canonical import RequestMasks
    from trunkline.types import Message


class EndedConversation(NamedTuple):
    """Messages that were sent and the reply to them: their fragments, and the ids of all calls in them."""

    fragments: tuple[int, ...] = ()
    calls: tuple[str, ...] = ()


_NEW: Final = EndedConversation()


class GivenReply(NamedTuple):
    """A reply that an agent was given, as it quotes it, and its forms with and without masks."""

    message: Message
    form: bytes
    raw: bytes


class ReadConversation:
    """The messages of a request with what was found in them; the next request of its conversation adds to them.

    Attributes:
        messages: The messages, as the agent sent them.
        forms: Their masked forms.
        keys: The hash of the first so many forms, from none to all.
        called: Ids of their calls.
    """

    def __init__(self, masks: RequestMasks) -> None:
        self.messages: list[Message] = []
        self.forms: list[bytes] = []
        self.keys = [b""]
        self.called: list[str] = []
        self._reader = FormReader(masks)
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, message: Message, given: GivenReply | None) -> None:
        """Add a message, which may be the latest reply as it was given."""
        if given is not None and message == given.message:
            _, form, raw = given
        else:
            form, raw = self._reader.read(message)
        self.messages.append(message)
        if calls := message.get("tool_calls"):
            self.called += [call["id"] for call in calls]
            self._reader.passed(message)
        self.forms.append(form)
        self.keys.append(parts_digest((self.keys[-1], form)))
        self._hash.update(len(raw).to_bytes(8, "little") + raw)

    @property
    def raw(self) -> bytes:
        """The hash of all forms without masks."""
        return self._hash.digest()


class MatchedRequest(NamedTuple):
    """A request as it is matched and sent.

    Attributes:
        read: Its messages; there may be more by now, of a later request.
        size: How many messages it has.
        key: The hash of their masked forms.
        raw: The hash of their forms without masks.
        fragments: The messages in the tree; of those that an earlier conversation has, as they stand there.
        calls: Ids of all calls in these fragments.
        known: How many messages are those of an earlier conversation, its reply included.
        rewritten: Whether it holds replies, and continues no earlier conversation.
        encoded: The messages behind these, as they are sent.
    """

    read: ReadConversation
    size: int
    key: bytes
    raw: bytes
    fragments: list[int]
    calls: list[str]
    known: int
    rewritten: bool
    encoded: list[bytes]

    @property
    def messages(self) -> list[Message]:
        return self.read.messages[: self.size]


NOTHING_ASKED: Final = MatchedRequest(ReadConversation(NO_MASKS), 0, b"", b"", [], [], 0, rewritten=False, encoded=[])


class Conversations:
    """Finds what a request continues.

    Args:
        core: The rollout's tree.
        masks: What requests are compared without.
    """

    def __init__(self, core: CoreTree, masks: RequestMasks) -> None:
        self._core = core
        self._masks = masks
        self._ended: dict[bytes, EndedConversation | None] = {}
        self._reader = FormReader(masks)  # of replies, which answer no calls
        self._given: dict[bytes, GivenReply] = {}
        self._latest = LatestRequests[ReadConversation]()

    def read(self, messages: list[Message]) -> MatchedRequest:
        """Match a request against the conversations so far, and put its messages into the tree as fragments.

        Raises:
            ConfigError: A message is none that can be sent.
        """
        there = self._latest.take(messages) or ReadConversation(self._masks)
        given = self._given.get(there.keys[-1])
        for message in messages[len(there.messages) :]:
            there.add(message, given)
            given = None
        self._latest.keep(there.messages, there)
        count, found, known = len(messages), _NEW, 0
        for length in range(count, 0, -1):
            ended = self._ended.get(there.keys[length])
            if ended is not None:
                found, known = ended, length
                break
        calls = [*found.calls]
        sent = [*map(encode, _renamed(messages[known:], there.called[: len(calls)], calls))]
        fragments = [*found.fragments, *map(self._core.fragment, sent)]
        rewritten = not known and any(message["role"] == "assistant" for message in messages)
        return MatchedRequest(there, count, there.keys[count], there.raw, fragments, calls, known, rewritten, sent)

    def ended(self, asked: MatchedRequest, reply: Message, fragment: int) -> tuple[int, ...]:
        """Note the reply to a request; two that are equal for matching are no parent.

        Args:
            asked: The request.
            reply: The reply, as an agent quotes it.
            fragment: The reply in the tree.

        Returns:
            The fragments of the conversation.
        """
        form, raw = self._reader.read(reply)
        self._given[asked.key] = GivenReply(reply, form, raw)
        key, fragments = parts_digest((asked.key, form)), (*asked.fragments, fragment)
        calls = (*asked.calls, *(call["id"] for call in reply.get("tool_calls") or ()))
        self._ended[key] = None if key in self._ended else EndedConversation(fragments, calls)
        return fragments


_OWN: Final = "p{:08d}"


def _renamed(messages: Sequence[Message], called: list[str], calls: list[str]) -> list[Message]:
    """The messages behind those known, with ids by position. Extends ``calls``.

    Args:
        messages: The messages.
        called: Ids of all calls before them, as the agent gives them.
        calls: The same as they are sent.
    """
    ids = dict(zip(called, calls, strict=True))
    found: list[Message] = []
    for message in messages:
        if listed := message.get("tool_calls"):
            renamed = []
            for call in listed:
                calls.append(_OWN.format(len(calls)))
                ids[call["id"]] = calls[-1]
                renamed.append({**call, "id": calls[-1]})
            found.append({**message, "tool_calls": renamed})
        elif (answered := message.get("tool_call_id")) is not None:
            own = ids.get(answered, answered)
            found.append(message if own == answered else {**message, "tool_call_id": own})
        else:
            found.append(message)
    return found
