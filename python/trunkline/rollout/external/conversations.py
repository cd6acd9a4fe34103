"""The conversations that a rollout's agent has had, and the fragments of the tree that its next request is sent as."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline._core import ConversationKeys, parts_digest
from trunkline.gateway.canonical import NO_MASKS, FormReader, LatestRequests
from trunkline.llm.messages import encode

if TYPE_CHECKING:
    from trunkline._core import CoreTree
    from trunkline.gateway.canonical import RequestMasks
    from trunkline.types import Message


class EndedConversation(msgspec.Struct, frozen=True, gc=False):
    """Messages that were sent and the reply to them: their fragments, and the ids of all calls in them."""

    fragments: tuple[int, ...] = ()
    calls: tuple[str, ...] = ()


_NEW: Final = EndedConversation()


class GivenReply(msgspec.Struct, frozen=True, gc=False):
    """A reply that an agent was given, as it quotes it, its forms with and without masks, and the hash up to it."""

    message: dict[str, Any]
    form: bytes
    raw: bytes
    key: bytes


class ReadConversation:
    """The messages of a request with what was found in them; the next request of its conversation adds to them.

    Attributes:
        messages: The messages, as the agent sent them.
        forms: Their masked forms.
        answers: Which call each of them answers, by its place among all calls; None for those that answer none.
        keys: The hashes of the forms.
    """

    def __init__(self, masks: RequestMasks) -> None:
        self.messages: list[Message] = []
        self.forms: list[bytes] = []
        self.answers: list[int | None] = []
        self.keys = ConversationKeys()
        self._reader = FormReader(masks)

    def add(self, message: Message, given: GivenReply | None) -> None:
        """Add a message, which may be the latest reply as it was given."""
        if given is not None and message == given.message:
            form, raw, answers, key = given.form, given.raw, None, given.key
        else:
            form, raw, answers = self._reader.read(message)
            key = None
        self.messages.append(message)
        self.forms.append(form)
        self.answers.append(answers)
        self.keys.add(form, raw, key)
        if "tool_calls" in message:
            self._reader.passed(message)


class MatchedRequest(msgspec.Struct, gc=False):
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
        keys, count = there.keys, len(messages)
        if (before := len(there.messages)) < count:
            given = self._given.pop(keys.key(before), None)
            for message in messages[before:]:
                there.add(message, given)
                given = None
        self._latest.keep(there.messages, there)
        key = keys.key(count)
        found, known = self._ended.get(key), count
        while found is None and known:
            known -= 1
            found = self._ended.get(keys.key(known))
        if found is None:
            found = _NEW
        calls = [*found.calls]
        sent = [*map(encode, _renamed(messages[known:], there.answers[known:count], calls))]
        fragments = [*found.fragments, *map(self._core.fragment, sent)]
        rewritten = not known and any(message["role"] == "assistant" for message in messages)
        return MatchedRequest(there, count, key, keys.raw(), fragments, calls, known, rewritten, sent)

    def ended(self, asked: MatchedRequest, reply: Message, fragment: int) -> tuple[int, ...]:
        """Note the reply to a request; two that are equal for matching are no parent.

        Args:
            asked: The request.
            reply: The reply, as an agent quotes it.
            fragment: The reply in the tree.

        Returns:
            The fragments of the conversation.
        """
        form, raw, _ = self._reader.read(reply)
        key, fragments = parts_digest((asked.key, form)), (*asked.fragments, fragment)
        self._given[asked.key] = GivenReply(reply, form, raw, key)
        calls = (*asked.calls, *(call["id"] for call in reply.get("tool_calls") or ()))
        self._ended[key] = None if key in self._ended else EndedConversation(fragments, calls)
        return fragments


_OWN: Final = "p{:08d}"


def _renamed(messages: list[Message], answers: list[int | None], calls: list[str]) -> list[Message]:
    """The messages behind those known, with ids by position. Extends ``calls``.

    Args:
        messages: The messages.
        answers: Which call each of them answers.
        calls: Ids of all calls before them, as they are sent.
    """
    found: list[Message] = []
    for message, answered in zip(messages, answers, strict=True):
        if listed := message.get("tool_calls"):
            renamed = []
            for call in listed:
                calls.append(_OWN.format(len(calls)))
                renamed.append({**call, "id": calls[-1]})
            found.append({**message, "tool_calls": renamed})
        elif answered is not None and message["tool_call_id"] != calls[answered]:
            found.append({**message, "tool_call_id": calls[answered]})
        else:
            found.append(message)
    return found
