"""A stock of equal slots that the controller lends to engines, divided by what they need."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Stock", "divide"]


def divide(total: int, wishes: Mapping[int, int]) -> dict[int, int]:
    """Divide by max-min fairness: small wishes are granted whole, and large ones share what is left equally.

    Args:
        total: What there is.
        wishes: Who wants how much. Where it does not divide evenly, the last of equal wishes get one more.
    """
    shares: dict[int, int] = {}
    left = total
    for place, (seat, wish) in enumerate(sorted(wishes.items(), key=lambda item: item[1])):
        share = min(wish, left // (len(wishes) - place))
        shares[seat] = share
        left -= share
    return shares


class _Holder(msgspec.Struct):
    """One engine.

    Attributes:
        wish: How many slots it could use.
        held: How many it holds, those that it was told to give back among them.
        reclaimed: How many it was told to give back, and has not yet.
        served: When it was granted something last, as a number that grows.
    """

    wish: int
    held: int = 0
    reclaimed: int = 0
    served: int = -1


class Stock:
    """Slots of one kind.

    What is lent and what is left are always all there is. An engine keeps what it holds until somebody else has less
    than a fair share and wants more; a slot changes hands only when its request is over.

    Args:
        total: How many there are.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._holders: dict[int, _Holder] = {}
        self._turns = count()

    @property
    def left(self) -> int:
        """Slots that nobody holds."""
        return self.total - sum(holder.held for holder in self._holders.values())

    def held(self, seat: int) -> int:
        """Slots that an engine holds."""
        return self._holders[seat].held

    def join(self, seat: int, wish: int) -> None:
        """Note an engine, and what it is to have at first."""
        self._holders[seat] = _Holder(wish)

    def ask(self, seat: int, wish: int) -> None:
        """Note how many slots an engine could use, those it holds among them."""
        self._holders[seat].wish = wish

    def give_back(self, seat: int, slots: int) -> None:
        """Take slots back, reclaimed or not."""
        holder = self._holders[seat]
        slots = min(slots, holder.held)
        holder.held -= slots
        holder.reclaimed = max(0, holder.reclaimed - slots)

    def leave(self, seat: int) -> None:
        """Take everything back from an engine that is gone: its requests are over, since its sockets are closed."""
        self._holders.pop(seat, None)

    def settle(self) -> dict[int, int]:
        """Lend what is left to whom it is due; return what each engine gets, or less than 0 for what it is to return.

        Who was granted nothing for longest comes first.
        """
        newest = dict(sorted(self._holders.items(), key=lambda item: -item[1].served))
        shares = self._shares(newest)
        changes: dict[int, int] = {}
        left, short = self.left, 0
        for seat, holder in reversed(newest.items()):
            lacking = max(0, shares[seat] - holder.held)
            granted = min(lacking, left)
            if granted:
                left -= granted
                holder.held += granted
                holder.served = next(self._turns)
                changes[seat] = granted
            short += lacking - granted
        short -= sum(holder.reclaimed for holder in newest.values())
        for seat, holder in newest.items():
            taken = min(short, holder.held - holder.reclaimed - shares[seat])
            if taken > 0:
                holder.reclaimed += taken
                short -= taken
                changes[seat] = -taken
        return changes

    def _shares(self, newest: dict[int, _Holder]) -> dict[int, int]:
        """What is due to each. What cannot be divided stays where it is, but for a slot that several take in turns."""
        if self.total >= len(newest):
            newest = dict(sorted(newest.items(), key=lambda item: item[1].held))
        return divide(self.total, {seat: holder.wish for seat, holder in newest.items()})
