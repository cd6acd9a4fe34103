"""A call of an agent of another framework: its draws, its reply, and what the record keeps of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trunkline._core import call_ids
from trunkline.gateway.types import AgentReply, RequestRefused
from trunkline.llm.messages import call_id
from trunkline.llm.response import recorded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline._core import CoreTree
    from trunkline.agent import CompiledAgent
    from trunkline.errors import LLMError
    from trunkline.gateway.server import GatewayCall
    from trunkline.llm.types import ReplyChoice
    from trunkline.rollout.external.conversations import MatchedRequest
    from trunkline.rollout.sampling.turns import PendingTurn
    from trunkline.tree.records import Record
    from trunkline.types import Message


class CallNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the record of a call keeps for its replay.

    Attributes:
        key: The hash of its canonical request, model, sampling and tools.
        equal: How many equal ones the rollout had asked before.
        messages: The hash of its canonical messages alone.
        raw: The same without masks.
        at: When its reply was first there, in seconds since 1970.
        cached: Prompt tokens that the server had cached; None where it did not say.
    """

    key: str
    equal: int
    messages: str
    raw: str
    at: int
    cached: int | None = None


class CallDraw:
    """One draw of a call: its number among equal ones, what ``trunkline._core.call_ids`` says, its record."""

    asked = at = fragment = 0
    pending: PendingTurn | None = None
    error: LLMError | None = None
    cached: int | None = None
    facts: tuple[int, int | None, int | None, int] | None = None
    said = b""

    def __init__(self, number: int, ids: tuple[str, int, str], compiled: CompiledAgent, record: Record | None) -> None:
        self.number = number
        self.key, self.turn, self.reply = ids
        self.compiled = compiled
        self.record = record


class Exchange:
    """One call of the agent: its request, its draws and its reply."""

    alone = True
    ready = delivered = False
    leaf = micros = 0
    context: int | None = None
    draft: int | None = None
    missing: Sequence[int] = ()

    def __init__(
        self, key: bytes, model: str, asked: MatchedRequest, draws: Sequence[CallDraw], call: GatewayCall
    ) -> None:
        self.key = key
        self.model = model
        self.asked = asked
        self.draws = draws
        self.idempotency = call.key
        self._calls = [call]
        self._waiting = [call.waits]
        self._outcome: AgentReply | RequestRefused | None = None

    @property
    def abandoned(self) -> bool:
        """Whether its reply was not delivered in full, and nothing waits for it any more."""
        return not self.delivered and not any(waits() for waits in self._waiting)

    def join(self, call: GatewayCall) -> None:
        """Have one more request wait for the same reply."""
        self._waiting.append(call.waits)
        if self._outcome is None:
            self._calls.append(call)
        else:
            self._tell(call, self._outcome)

    def end(self, outcome: AgentReply | RequestRefused) -> None:
        """Answer the requests that wait; the first outcome counts."""
        if self._outcome is None:
            self._outcome = outcome
            calls, self._calls = self._calls, []  # they hold all that was sent
            for call in calls:
                self._tell(call, outcome)

    def _tell(self, call: GatewayCall, outcome: AgentReply | RequestRefused) -> None:
        if isinstance(outcome, RequestRefused):
            call.refuse(outcome)
        else:
            call.reply(outcome, self._was_delivered)

    def _was_delivered(self) -> None:
        self.delivered = True
        self._waiting.clear()


def reply_of(core: CoreTree, node: int, note: CallNote, model: str) -> AgentReply:
    """Return the reply that a recorded call of one choice was given."""
    facts, message = core.node(node), msgspec.json.decode(core.message(node))
    choice = recorded(core, node, message)
    name_calls(choice, message, facts.turns - 1)
    return AgentReply(
        id=call_ids(bytes.fromhex(note.key), note.equal)[2],
        created=note.at,
        model=model,
        choices=[choice],
        prompt=facts.prompt,
        cached=at_most(note.cached, facts.prompt),
        generated=facts.generated,
    )


def at_most(cached: int | None, prompt: int | None) -> int | None:
    """Cached tokens of a prompt, which may have been counted by another server."""
    return None if cached is None or prompt is None else min(cached, prompt)


def name_calls(choice: ReplyChoice, message: Message, turn: int) -> None:
    """Give a choice's calls the ids that they have in the tree's message, or by position where its text holds them."""
    if calls := choice.tool_calls:
        listed = message.get("tool_calls")
        for place, call in enumerate(calls):
            call.id = listed[place]["id"] if listed else call_id(turn, place)
