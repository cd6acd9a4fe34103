"""Plays an agent against its record, and lists where it asks something else."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from trunkline._internal.text import excerpt, from_difference, without_secrets
from trunkline.errors import ProgramError
from trunkline.gateway.canonical import RequestMasks, forms
from trunkline.gateway.types import RequestRefused
from trunkline.rollout.external.exchange import CallNote, reply_of
from trunkline.tree.records import Records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from random import Random

    from trunkline.gateway.server import Gateway, GatewayCall
    from trunkline.gateway.types import AgentRequest
    from trunkline.rollout.external.process import AgentRunner
    from trunkline.tree.views import Tree
    from trunkline.types import Message

__all__ = ["Difference", "mask_for", "play_again"]

_KNOWN: Final = (
    r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?",
    r"\d\d:\d\d(:\d\d(\.\d+)?)?",
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
    r"0x[0-9a-fA-F]+",
    r"\d+\.\d+",
    r"\d+",
    r"[0-9a-fA-F]{6,}",
    r"(/[\w.+-]+){2,}",
    r"\b(?=\w*\d)\w{6,}\b",
)
"""Masks of times, ids, addresses, numbers and paths; the first that makes two texts equal is proposed."""


class Difference(NamedTuple):
    """A request that is not as it is on record.

    Attributes:
        call: Number of the call on record, from 0.
        place: Where in the request.
        was: What the record has, from a little before the first difference.
        now: What was asked.
        mask: A mask that covers it; empty where none is known.
    """

    call: int
    place: str
    was: str
    now: str
    mask: str = ""


class _RecordedCall(NamedTuple):
    """A call on record."""

    messages: list[Message]
    node: int
    note: CallNote


class RecordedPlay:
    """Answers an agent from a record alone; see ``GatewaySession``.

    Args:
        tree: The tree, whose first rollout is the record.
        masks: What requests are compared without.
        delay: Returns the seconds that a reply is delayed by.
    """

    def __init__(self, tree: Tree, masks: RequestMasks, delay: Callable[[], float]) -> None:
        self.refused = 0
        self.differences: list[Difference] = []
        self.last = ""
        self._core = tree.core
        self._masks = masks
        self._delay = delay
        self._told: set[int] = set()
        self._calls = dict(enumerate(self._read()))

    @property
    def unasked(self) -> int:
        """How many calls of the record were not asked."""
        return len(self._calls)

    def answer(self, request: AgentRequest, call: GatewayCall) -> None:
        """Reply what the record has for a request, or for the call whose turn it is."""
        now = forms(request.messages, self._masks)
        equal = (number for number, call in self._calls.items() if forms(call.messages, self._masks) == now)
        number = next(equal, None)
        if number is None:
            number = next(iter(self._calls), None)
            if number is None:
                self.differences.append(Difference(-1, "the end", "no more calls", _shown(request.messages)))
                raise RequestRefused("the record has no more calls", 400)
            self.differences += self._compared(number, request.messages)
        recorded = self._calls.pop(number)
        made = reply_of(self._core, recorded.node, recorded.note, request.model)
        self.last = made.choices[0].content
        asyncio.get_running_loop().call_later(self._delay(), call.reply, made, lambda: None)

    def _read(self) -> Iterator[_RecordedCall]:
        for record in Records(self._core).of(0):
            if record.kind == "ask" and record.nodes:
                (_, leaf, context, _), *_ = record.data
                core = self._core
                text = core.messages(leaf) if context is None else core.request_context(context, b"[", b"]")
                yield _RecordedCall(
                    msgspec.json.decode(text), record.nodes[-1], msgspec.convert(record.data[2], CallNote)
                )

    def _compared(self, number: int, messages: Sequence[Message]) -> Iterator[Difference]:
        """The messages of a request that are not those on record."""
        recorded = self._calls[number].messages
        was, now = (forms(listed, self._masks) for listed in (recorded, messages))
        for place, (one, other) in enumerate(zip(was, now, strict=False)):
            if one != other and place not in self._told:
                self._told.add(place)  # later calls hold the same message
                before, after = one.decode(), other.decode()
                _, *shown = from_difference(before, after, 30)
                old, new = (without_secrets(excerpt(text[:300], 120)) for text in shown)
                spoken = f"message {place} ({messages[place]['role']})"
                yield Difference(number, spoken, old, new, mask_for(before, after))
        if len(was) != len(now):
            yield Difference(number, "its length", f"{len(was)} messages", f"{len(now)} messages")


def mask_for(was: str, now: str) -> str:
    """Return a mask under which two texts are equal; empty where none of the known ones is."""
    for pattern in _KNOWN:
        masks = RequestMasks([pattern])
        if masks.apply(was) == masks.apply(now):
            return pattern
    return ""


async def play_again(
    runner: AgentRunner, gateway: Gateway, tree: Tree, question: str, masks: RequestMasks, slow: float, random: Random
) -> list[Difference]:
    """Play an agent once against its record, in another folder, with replies delayed by random times.

    Args:
        runner: Starts the agent.
        gateway: Serves it.
        tree: The tree, whose first rollout is the record.
        question: What the agent is asked.
        masks: What requests are compared without.
        slow: The most seconds that a reply is delayed by.
        random: Draws the delays.
    """
    place = await runner.open()
    secret = secrets.token_urlsafe(24)
    covered = masks.with_texts([*place.masks, secret, gateway.origin])
    play = RecordedPlay(tree, covered, lambda: random.uniform(0, slow))
    try:
        async with gateway.listening(place.listener) as origin:
            with gateway.serving(secret, play, origin) as url:
                result = await runner.run(place, question, url)
    finally:
        await runner.close(place)
    if not result.ok:
        raise ProgramError(f"the agent's process {result.how}{': ' if result.err else ''}{result.err}")
    if play.unasked:
        play.differences.append(Difference(-1, "the end", f"{play.unasked} more calls", "the agent's end"))
    return play.differences


def _shown(messages: Sequence[dict[str, Any]]) -> str:
    return excerpt(forms(messages)[-1], 120)
