"""A reply that came and is not on the tree yet: turns of a program go onto it in the order of its calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trunkline._core import Heard, hear
from trunkline.rollout.turns import Turn, Turns, share

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trunkline._core import Tree as Core
    from trunkline.errors import RolloutError
    from trunkline.llm.protocol import Choice, Reply
    from trunkline.rollout.agent import Kit
    from trunkline.rollout.hold import Meter

__all__ = ["Asked", "Landed", "Parked"]


class Asked(NamedTuple):
    """How a program asked for a turn, as its record has it.

    Attributes:
        number: Turns that it had asked for before.
        leaf: Where its path ended.
        context: What it asked to be sent; None for its path.
        how: Model and sampling, as the tree knows their name.
    """

    number: int
    leaf: int
    context: int | None
    how: int


class Landed(NamedTuple):
    """A turn that has landed.

    Attributes:
        node: Its node.
        size: Bytes of its message.
        turns: Model turns up to it, itself included.
        first: Whether no other rollout said the same there before.
        prompt: Prompt tokens as first reported there; None where nobody did.
        generated: Completion tokens, likewise.
    """

    node: int
    size: int
    turns: int
    first: bool
    prompt: int | None
    generated: int | None


class Parked(Turns):
    """Reads the reply to one draw, so that it is known to be usable, and puts it on a tree later.

    Args:
        kit: Who speaks.
        turn: Model turns before it.
        called: Told of a request that brought nothing at once, and of the reply in the step in which its turn lands.
    """

    def __init__(self, kit: Kit, turn: int, called: Callable[[Reply], None]) -> None:
        self.found: list[Turn | RolloutError | None] = [None]
        self.meter: Meter | None = None
        self._kit = kit
        self._turn = turn
        self._rollouts = _DRAW
        self._called = self.heard
        self._told = self.over
        self._told_of = called
        self._reply: Reply | None = None
        self._heard: Heard | None = None

    def _take(self, rollouts: Sequence[int], data: bytes, attempts: int, micros: int) -> Any:
        """Read the bytes."""
        self._heard, told = hear(self._kit.reading, data, self._turn)
        return told

    def _append(self, place: int, reply: Reply, sibling: int, *, lead: bool) -> Turn:
        """Keep a reply that an LLM made itself."""
        choice = reply.choices[sibling]
        message = self._message(choice)
        self._heard = Heard(
            choice.content,
            choice.reasoning.encode("utf-8", "replace").decode() if choice.reasoning else None,
            [("", call.name, call.arguments) for call in choice.tool_calls],
            choice.finish,
            reply.prompt,
            reply.cached,
            share(reply.generated, sibling, len(reply.choices)),
        )
        return Turn(choice, 0, len(message))

    def heard(self, reply: Reply) -> None:
        """Pay for what a request brought, and note it."""
        if self.meter is not None:
            self.meter.called(reply)
        else:
            self.keep(reply)

    def over(self, place: int, outcome: Turn | RolloutError) -> None:
        """Settle what was set aside for the draw."""
        if self.meter is not None:
            self.meter.told(place, outcome)

    def keep(self, reply: Reply) -> None:
        """Note what a request brought; who answered may be filled in later."""
        if reply.choices:
            self._reply = reply
        else:
            self._told_of(reply)

    @property
    def choice(self) -> Choice:
        """What the model said, once it has."""
        (found,) = self.found
        assert isinstance(found, Turn), "who waits for a reply gets one or an error"
        return found.choice

    def land(
        self, core: Core, rollout: int, sent: int | None, nth: int, asked: Asked, note: bytes | None, *, alone: bool
    ) -> Landed:
        """Put the turn on a tree, and the program's record of it, as :mod:`trunkline.tree.records` has it.

        Args:
            core: The tree.
            rollout: Whose turn it is.
            sent: What was sent, where that is not the rollout's path.
            nth: Turns of the same agent that the program had asked for before.
            asked: How it asked.
            note: What it noted of the reply, as JSON.
            alone: Whether nothing else was under way.
        """
        heard, reply, kit = self._heard, self._reply, self._kit
        assert heard is not None
        assert reply is not None
        agent, retries = kit.agent.name, max(0, reply.attempts - 1)
        landed = heard.land(core, rollout, agent, kit.namespace, sent, retries, reply.micros, nth, *asked, note, alone)
        self._told_of(reply)
        return Landed._make(landed)

    def drop(self) -> None:
        """Tell of the reply, which lands nowhere."""
        if self._reply is not None:
            self._told_of(self._reply)


_DRAW = (0,)
"""The one draw, on no tree yet."""
