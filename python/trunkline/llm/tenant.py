"""A process's part of slots that several processes share: it holds some, needs more, or gives them back."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.llm.gate import Gate
    from trunkline.llm.limiter import Limiter

__all__ = ["Tenant"]


class Tenant:
    """The slots of a run, and of each endpoint where these are limited, as one of several processes has them.

    Amounts are lists: slots of the run, then of each endpoint in the order of the base URLs, where these are limited.
    There are never more requests in flight than slots held: a slot that is to go goes when it is free. A request needs
    a slot of its endpoint first and of the run then, so that nobody holds what somebody else waits for and waits for
    what that one holds.

    Args:
        limiter: Who lets requests in; from now on only through slots that were granted.
        gates: The ways into the endpoints.
        fair: An equal part of the slots of the run, or of an endpoint's if that is less. An endpoint's window adapts
            on it, and beyond it only as far as more is held.
        limited: Whether the slots of each endpoint are limited, too.

    Attributes:
        fair: The same.
        most: The most slots that this process can make use of.
    """

    def __init__(self, limiter: Limiter, gates: Sequence[Gate], fair: int, *, limited: bool) -> None:
        self.fair = fair
        self.most = sys.maxsize
        self._limiter = limiter
        self._gates = tuple(gates)
        self._limited = self._gates if limited else ()
        self._idle = [0] * (1 + len(self._limited))
        limiter.free = 0
        for gate in self._limited:
            gate.slots = 0
        self._resize()

    @property
    def held(self) -> list[int]:
        """The slots that are held, in use or not."""
        run = self._limiter.free + sum(gate.in_flight for gate in self._gates)
        return [run, *(gate.slots for gate in self._limited)]

    @property
    def wishes(self) -> list[int]:
        """The slots that are in use, and those that would be if they were held."""
        ours = [gate.in_flight + gate.lacking() for gate in self._gates]
        run = sum(min(want, max(gate.slots, gate.in_flight)) for want, gate in zip(ours, self._gates, strict=True))
        return [min(wish, self.most) for wish in (run, *(ours if self._limited else ()))]

    def grant(self, slots: Sequence[int]) -> None:
        """Take more slots; who waits for one gets it."""
        self._limiter.free += slots[0]
        for gate, more in zip(self._limited, slots[1:], strict=True):
            gate.slots += more
        self._resize()
        self._limiter.admit()

    def reclaim(self, slots: Sequence[int]) -> None:
        """Owe so many slots from now on; :meth:`repaid` says which are back."""
        limiter, held = self._limiter, self.held
        limiter.owed = min(limiter.owed + slots[0], held[0])
        for gate, less in zip(self._limited, slots[1:], strict=True):
            gate.owed = min(gate.owed + less, gate.slots)
        free = min(limiter.owed, max(0, limiter.free))
        limiter.free -= free
        limiter.owed -= free
        limiter.back += free
        for gate in self._limited:
            free = min(gate.owed, gate.slots - gate.in_flight)
            gate.slots -= free
            gate.owed -= free
            gate.back += free
        self._resize()

    def repaid(self) -> list[int]:
        """Return the slots that are back since the last call, of those that were owed; they are held no longer."""
        back = [self._limiter.back, *(gate.back for gate in self._limited)]
        self._limiter.back = 0
        for gate in self._limited:
            gate.back = 0
        self._resize()
        return back

    def unused(self) -> None:
        """Give back what nobody needed, at this look and the one before."""
        idle = [max(0, held - wish) for held, wish in zip(self.held, self.wishes, strict=True)]
        less = list(map(min, idle, self._idle))
        self._idle = [now - gone for now, gone in zip(idle, less, strict=True)]
        self.reclaim([max(0, gone - owed) for gone, owed in zip(less, self._owed, strict=True)])

    @property
    def _owed(self) -> list[int]:
        return [self._limiter.owed, *(gate.owed for gate in self._limited)]

    def _resize(self) -> None:
        """Let windows be as large as what is held, but no smaller than an equal part."""
        run = self.held[0]
        for gate in self._gates:
            cap = max(self.fair, min(run, gate.slots))
            if cap != gate.window.cap:
                gate.window.resize(cap)
