"""The lender: slots and rates of a run, which the controller alone has, and what of them engines hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline.llm.bucket import limits_of
from trunkline.llm.spec import EndpointSpec
from trunkline.runtime.flow import Flow
from trunkline.runtime.stock import Stock
from trunkline.runtime.wire import Allot, Ask, Draw, Grant, Reclaim, Refund, Return

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.runtime.wire import ToWorker

__all__ = ["Lender", "parties"]


def parties(llm: EndpointSpec, workers: int) -> int:
    """Return how many engines can share an LLM's limits: without a slot one has nothing to do."""
    return min(workers, llm.max_concurrency, llm.limits.endpoint_concurrency or workers)


class Lender:
    """Lends engines in other processes the slots and rates of a run. An engine in this process has its own.

    Args:
        llm: Whose limits.
        workers: How many engines there are to be in other processes.
        send: Takes a seat and a message for it.
    """

    def __init__(self, llm: object, workers: int, send: Callable[[int, ToWorker], None]) -> None:
        self._send = send
        self._seats: set[int] = set()
        self._stocks: list[Stock] = []
        self._flow: Flow | None = None
        if workers and isinstance(llm, EndpointSpec):
            self._parties = parties(llm, workers)
            self._open(llm)

    def held(self, seat: int) -> int:
        """How many requests of an engine may be in flight."""
        return self._stocks[0].held(seat) if self._stocks and seat in self._seats else 0

    def seat(self, seat: int) -> None:
        """Note that an engine is up, and lend it an equal part."""
        self._seats.add(seat)
        for stock in self._stocks:
            stock.join(seat, -(-stock.total // self._parties))
        if self._flow is not None:
            self._flow.join(seat)
        self._settle()

    def take(self, seat: int, message: Ask | Return | Draw | Refund) -> None:
        """Take a message about slots or rates."""
        if seat not in self._seats:
            return
        match message:
            case Ask(slots):
                for stock, wish in zip(self._stocks, slots, strict=True):
                    stock.ask(seat, wish)
                self._settle()
            case Return(slots, wishes):
                for stock, back, wish in zip(self._stocks, slots, wishes, strict=True):
                    stock.give_back(seat, back)
                    stock.ask(seat, wish)
                self._settle()
            case Draw(least, most) if self._flow is not None:
                self._flow.draw(seat, least, most)
            case Refund(requests, tokens) if self._flow is not None:
                self._flow.refund(requests, tokens)

    def lost(self, seat: int) -> None:
        """Take back what an engine held that is gone; what it drew of the rates counts as used."""
        self._seats.discard(seat)
        for stock in self._stocks:
            stock.leave(seat)
        if self._flow is not None:
            self._flow.leave(seat)
        self._settle()

    def close(self) -> None:
        """Stop every timer."""
        if self._flow is not None:
            self._flow.close()

    def _open(self, llm: EndpointSpec) -> None:
        """Take up everything that is limited."""
        most, each = llm.max_concurrency, llm.limits.endpoint_concurrency
        self._stocks.append(Stock(most))
        if each is not None and each < most:
            self._stocks += [Stock(each) for _ in llm.base_urls]
        requests, tokens = limits_of(llm.limits.requests_per_minute, llm.limits.tokens_per_minute)
        if requests is not None or tokens is not None:
            self._flow = Flow(requests, tokens, self._allot)

    def _settle(self) -> None:
        """Send everybody what is due to him, and ask for what is due to others."""
        changes = [stock.settle() for stock in self._stocks]
        for seat in sorted(set().union(*changes)):
            slots = [change.get(seat, 0) for change in changes]
            if any(more > 0 for more in slots):
                self._send(seat, Grant([max(0, more) for more in slots]))
            if any(more < 0 for more in slots):
                self._send(seat, Reclaim([max(0, -more) for more in slots]))

    def _allot(self, seat: int, requests: int, tokens: int) -> None:
        self._send(seat, Allot(requests, tokens))
