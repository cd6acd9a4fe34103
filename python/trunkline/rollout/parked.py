"""A reply that came and is not on the tree yet: turns of a program go onto it in the order of its calls."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from trunkline._core import ROOT
from trunkline._core import Tree as Core
from trunkline.rollout.turns import Turn, Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.errors import RolloutError
    from trunkline.llm.protocol import Choice, Reply
    from trunkline.rollout.agent import Kit
    from trunkline.rollout.hold import Meter

__all__ = ["Parked"]


class Parked(Turns):
    """Reads the reply to one draw on a tree of its own, so that it is known to be usable, and puts it on another later.

    Args:
        kit: Who speaks.
        turn: Model turns before it.
        called: Told of a request that brought nothing at once, and of the reply in the step in which its turn lands.
    """

    def __init__(self, kit: Kit, turn: int, called: Callable[[Reply], None]) -> None:
        scratch = Core()
        rollout = scratch.open(ROOT, (turn, 0))
        super().__init__(scratch, kit, [rollout], turn, scratch.name, self._heard, self._over)
        self._told_of = called
        self.meter: Meter | None = None
        self._reply: Reply | None = None
        self._again: Callable[[Turns], tuple[int, int]] | None = None

    def __call__(self, data: bytes, first: int, attempts: int, micros: int, most: int | None = None) -> Reply:
        """Read an answer's bytes; see :class:`~trunkline.llm.protocol.Take`."""
        reply = super().__call__(data, first, attempts, micros, most)
        self._again = partial(Turns.append, data=data, attempts=attempts, micros=micros)
        return reply

    def _append(self, place: int, reply: Reply, sibling: int, *, lead: bool) -> Turn:
        turn = super()._append(place, reply, sibling, lead=lead)
        self._again = partial(_adopt, reply=reply)
        return turn

    def _heard(self, reply: Reply) -> None:
        if self.meter is not None:
            self.meter.called(reply)
        else:
            self.keep(reply)

    def _over(self, place: int, outcome: Turn | RolloutError) -> None:
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

    def land(self, core: Core, rollout: int, turn: int, name: Callable[[str], int], context: int | None) -> Turn:
        """Put the reply on a tree.

        Args:
            core: The tree.
            rollout: Whose turn it is.
            turn: Model turns before it there.
            name: Interns a string in the tree.
            context: What was sent, where that is not the rollout's path.
        """
        assert self._again is not None
        assert self._reply is not None
        turns = Turns(core, self._kit, [rollout], turn, name, lambda _: None, None, context)
        node, size = self._again(turns)
        self._told_of(self._reply)
        return Turn(self.choice, node, size)

    def drop(self) -> None:
        """Tell of the reply, which lands nowhere."""
        if self._reply is not None:
            self._told_of(self._reply)


def _adopt(turns: Turns, reply: Reply) -> tuple[int, int]:
    turns.adopt(reply, 0, 1, reply.endpoint)
    (found,) = turns.found
    assert isinstance(found, Turn), "what could be appended once can be appended again"
    return found.node, found.size
