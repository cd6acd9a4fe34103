"""The conversations that a rollout's agent has had, and the fragments of the tree that its next request is sent as."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trunkline.gateway.canonical import FormReader, LatestRequests, add_parts, digest, forms
from trunkline.llm.messages import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline._core import CoreTree
    from trunkline.gateway.canonical import RequestMasks
    from trunkline.types import Message


class EndedConversation(NamedTuple):
    """Messages that were sent and the reply to them: their fragments, and the ids of all calls in them."""

    messages: tuple[Message, ...] = ()
    fragments: tuple[int, ...] = ()
    calls: tuple[str, ...] = ()


class MatchedRequest(NamedTuple):
    """A request as it is matched and sent.

    Attributes:
        messages: The messages, as the agent sent them; those of an earlier conversation are its own.
        forms: Their masked forms.
        keys: The hash of the first so many forms, from none to all.
        raw: The hash of all forms without masks.
        fragments: The messages in the tree; of those that an earlier conversation has, as they stand there.
        calls: Ids of all calls in these fragments.
        known: How many messages are those of an earlier conversation, its reply included.
        rewritten: Whether it holds replies, and continues no earlier conversation.
        encoded: The messages behind these, as they are sent.
    """

    messages: list[Message]
    forms: list[bytes]
    keys: list[bytes]
    raw: bytes
    fragments: list[int]
    calls: list[str]
    known: int
    rewritten: bool
    encoded: list[bytes]

    @property
    def key(self) -> bytes:
        return self.keys[-1]


NOTHING_ASKED: Final = MatchedRequest([], [], [b""], b"", [], [], 0, rewritten=False, encoded=[])


class ReadConversation:
    """The messages of a request with what was found in them; the next request of its conversation begins with them."""

    def __init__(self, masks: RequestMasks) -> None:
        self.messages: list[Message] = []
        self.forms: list[bytes] = []
        self.keys = [b""]
        self.called: list[str] = []
        self._masked = FormReader(masks)
        self._raw = FormReader()
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, message: Message) -> None:
        form = self._masked.read(message)
        self.messages.append(message)
        self.called += [call["id"] for call in message.get("tool_calls") or ()]
        self.forms.append(form)
        self.keys.append(_next(self.keys[-1], form))
        add_parts(self._hash, [self._raw.read(message)])

    @property
    def raw(self) -> bytes:
        """The hash of all forms without masks."""
        return self._hash.digest()


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
        self._latest = LatestRequests[ReadConversation]()

    def read(self, messages: list[Message]) -> MatchedRequest:
        """Match a request against the conversations so far, and put its messages into the tree as fragments.

        Raises:
            ConfigError: A message is none that can be sent.
        """
        there = self._latest.take(messages) or ReadConversation(self._masks)
        first = len(there.messages)
        encoded = [encode(message) for message in messages[first:]]  # all are checked
        for message in messages[first:]:
            there.add(message)
        self._latest.keep(there.messages, there)
        keys = [*there.keys]
        found, known = EndedConversation(), 0
        for length in range(len(messages), 0, -1):
            ended = self._ended.get(keys[length])
            if ended is not None:
                found, known = ended, length
                break
        fragments, calls = [*found.fragments], [*found.calls]
        encoded = [*map(encode, messages[known:first]), *encoded[max(0, known - first) :]]
        renamed = _renamed(messages[known:], there.called[: len(calls)], calls)
        sent = [data if made is None else encode(made) for made, data in zip(renamed, encoded, strict=True)]
        fragments += map(self._core.fragment, sent)
        rewritten = not known and any(message["role"] == "assistant" for message in messages)
        shared = [*found.messages, *messages[known:]]
        return MatchedRequest(shared, [*there.forms], keys, there.raw, fragments, calls, known, rewritten, sent)

    def ended(self, asked: MatchedRequest, reply: Message, node: int) -> None:
        """Note the reply to a request, which is a node of the tree; two that are equal for matching are no parent."""
        key = _next(asked.key, forms([reply], self._masks)[0])
        if key in self._ended:
            self._ended[key] = None
            return
        fragment = self._core.fragment(self._core.message(node))
        calls = (*asked.calls, *(call["id"] for call in reply.get("tool_calls") or ()))
        self._ended[key] = EndedConversation((*asked.messages, reply), (*asked.fragments, fragment), calls)


def _next(key: bytes, form: bytes) -> bytes:
    return digest([key, form])


_OWN: Final = "p{:08d}"


def _renamed(messages: Sequence[Message], called: list[str], calls: list[str]) -> list[dict[str, Any] | None]:
    """The messages behind those known with ids by position; None for one that stays. Extends ``calls``.

    Args:
        messages: The messages.
        called: Ids of all calls before them, as the agent gives them.
        calls: The same as they are sent.
    """
    ids = dict(zip(called, calls, strict=True))
    found: list[dict[str, Any] | None] = []
    for message in messages:
        made: dict[str, Any] | None = None
        listed: Any = message.get("tool_calls") or ()
        if listed:
            renamed = []
            for call in listed:
                calls.append(_OWN.format(len(calls)))
                ids[call["id"]] = calls[-1]
                renamed.append({**call, "id": calls[-1]})
            made = {**message, "tool_calls": renamed}
        answered = message.get("tool_call_id")
        if isinstance(answered, str) and ids.get(answered, answered) != answered:
            made = {**message, "tool_call_id": ids[answered]}
        found.append(made)
    return found
