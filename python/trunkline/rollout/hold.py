"""What is set aside for one model turn, and how it is settled when the request is answered."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol, Self

from trunkline.llm.names import named
from trunkline.llm.price import price_at
from trunkline.rollout.budget import cost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trunkline.errors import RolloutError
    from trunkline.llm.price import Price
    from trunkline.llm.protocol import Reply
    from trunkline.rollout.budget import Amounts
    from trunkline.rollout.turns import Told, Turn

__all__ = ["Claim", "Hold", "Meter"]


class Claim(Protocol):
    """Something that an account has set aside."""

    def settle(self, spent: Amounts, estimated: Amounts | None = None) -> None:
        """Count what it did cost, and the part of that which nobody measured."""
        ...


class Hold:
    """What was set aside for one model turn.

    Args:
        claims: What holds it.
        most: How much.
        prices: Prices by base URL.
    """

    def __init__(self, claims: Sequence[Claim], most: Amounts, prices: Mapping[str, Price]) -> None:
        self.sent = False
        self._claims: Sequence[Claim] = claims
        self._most = most
        self._prices = prices

    def settle(self, spent: Amounts, estimated: Amounts | None = None) -> None:
        """Count what the turn did cost, once."""
        claims, self._claims = self._claims, ()
        for claim in claims:
            claim.settle(spent, estimated)

    def lose(self) -> None:
        """The turn was sent and nobody knows what it did cost: as much as it can have."""
        self.settle(self._most, self._most)

    def drop(self) -> None:
        """The turn does not happen; if it was sent, whoever sent it settles."""
        if not self.sent:
            self.settle({})

    def pay(self, reply: Reply, draw: int) -> None:
        """Count the turn's part of what a request did cost.

        Args:
            reply: What the request brought.
            draw: Which of its choices it is; the prompt goes with the first.
        """
        if not reply.attempts:
            self.settle({})
        elif reply.prompt < 0 or reply.generated < 0:
            # It was answered, but without usage.
            self.settle(self._most, {name: amount for name, amount in self._most.items() if name != "calls"})
        else:
            self.settle(self._part(reply, draw))

    def _part(self, reply: Reply, draw: int) -> Amounts:
        n = len(reply.choices)
        generated = reply.generated * (draw + 1) // n - reply.generated * draw // n
        prompt, cached = (reply.prompt, max(0, reply.cached)) if draw == 0 else (0, 0)
        price = price_at(self._prices, named(reply.llm, reply.endpoint))
        money = 0 if price is None else cost(price, prompt, min(cached, prompt), generated)
        parts = {"prompt": prompt, "generated": generated, "tokens": prompt + generated, "micro_dollars": money}
        return {"calls": 1} | parts


class Meter:
    """Settles the turns of one request as they come.

    Args:
        holds: What was set aside for each draw.
        called: Told of each reply.
        told: Told of each draw what became of it.
    """

    def __init__(self, holds: Sequence[Hold], called: Callable[[Reply], None], told: Told | None) -> None:
        self._holds = holds
        self._called = called
        self._told = told
        self._parts: deque[tuple[Reply, int]] = deque()
        self._asked = False
        self._open = set(range(len(holds)))
        for hold in holds:
            hold.sent = True

    def called(self, reply: Reply) -> None:
        """Note what a request brought. Who answered may be filled in later, so it is priced when it settles."""
        self._called(reply)
        self._asked |= reply.attempts > 0
        self._parts.extend((reply, draw) for draw in range(len(reply.choices)))

    def told(self, place: int, outcome: Turn | RolloutError) -> None:
        """Settle a draw, and then tell whoever waits for it: who comes next finds the ledger up to date."""
        if place in self._open:
            self._open.discard(place)
            if self._parts:
                self._holds[place].pay(*self._parts.popleft())
            else:
                # One that failed for good was a call, if it was sent, and brought no tokens.
                self._holds[place].settle({"calls": int(self._asked)})
        if self._told is not None:
            self._told(place, outcome)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # What was given up in the middle.
        for place in sorted(self._open):
            if self._parts:
                self._holds[place].pay(*self._parts.popleft())
            else:
                self._holds[place].lose()
