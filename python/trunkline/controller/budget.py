"""The treasury: the run's ledger, which the controller alone has, and the leases that engines spend from."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

import msgspec

from trunkline._core import Ledger, Refusal
from trunkline.rollout.budget import Amounts, words
from trunkline.runtime.spent import NOTHING, Spent, worth
from trunkline.runtime.wire import Denied, Lent, Recall
from trunkline.store.funds import Funds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from trunkline.llm.price import Price
    from trunkline.rollout.budget import Budget
    from trunkline.runtime.wire import ToWorker
    from trunkline.store.schema import CallRow

__all__ = ["Treasury"]


class _Loan(msgspec.Struct):
    """A lease that is out."""

    seat: int
    drawn: Amounts = {}
    recalled: bool = False


class Treasury:
    """Lends out a run's budget.

    Leases are equal parts of what is left, so they shrink as the limit comes near; who needs more than is left waits
    until the leases that are out have come back, and is denied only then.

    Args:
        budget: The budget.
        prices: Prices by base URL.
        send: Takes a seat and a message for it.
        spent: What the run had spent before, where it goes on.

    Attributes:
        refused: How often something was not paid for.
        closed: The ledger's words when somebody was denied first: nothing new is begun from then on.
    """

    def __init__(
        self,
        budget: Budget,
        prices: Mapping[str, Price],
        send: Callable[[int, ToWorker], None],
        spent: Spent = NOTHING,
    ) -> None:
        self.refused = 0
        self.closed: str | None = None
        self._budget = budget
        self._prices = prices
        self._send = send
        self._ledger = Ledger(budget.limits, *spent)
        self._estimated: Counter[str] = Counter()
        self._loans: dict[int, _Loan] = {}
        self._wants: deque[tuple[int, Amounts]] = deque()
        self._committed: dict[int, Counter[str]] = {}
        self._seats: set[int] = set()
        self._over = False

    @property
    def lent(self) -> bool:
        """Whether leases are out."""
        return bool(self._loans)

    def seat(self, seat: int) -> None:
        """Note that an engine is up: there are two parts for each."""
        self._seats.add(seat)

    def want(self, seat: int, least: Amounts) -> None:
        """Lend an engine something, as soon as there is so much."""
        if not self._over:
            self._wants.append((seat, least))
            self._serve()

    def stop(self) -> None:
        """Lend nothing any more: the run is winding down."""
        self._over = True
        self._wants.clear()

    def drawn(self, lease: int, most: Amounts) -> None:
        """Note how much of a lease an engine may have drawn."""
        if lease in self._loans:
            self._loans[lease].drawn = most

    def repaid(self, lease: int, spent: Amounts, estimated: Amounts) -> None:
        """Take a lease back."""
        loan = self._loans.pop(lease, None)
        if loan is None:
            return
        self._ledger.take_back(lease, spent)
        self._estimated.update(estimated)
        # What is left of it are calls of leases that are still out.
        self._committed.get(loan.seat, Counter()).subtract(Counter(spent) - Counter(estimated))
        self._serve()

    def committed(self, seat: int, calls: Iterable[CallRow]) -> None:
        """Note calls of an engine that are in the file."""
        known = self._committed.setdefault(seat, Counter())
        for call in calls:
            known.update(worth(call, self._prices))

    def lost(self, seat: int) -> None:
        """Take the leases of a dead engine back: what is in the file is spent, and the rest of what it drew may be."""
        self._seats.discard(seat)
        self._wants = deque(want for want in self._wants if want[0] != seat)
        durable = +self._committed.pop(seat, Counter())
        for lease in [number for number, loan in self._loans.items() if loan.seat == seat]:
            drawn = Counter(self._loans.pop(lease).drawn)
            # A lease is charged with what it can have paid for; the last of a seat's leases has the rest.
            known = durable if not any(loan.seat == seat for loan in self._loans.values()) else durable & drawn
            durable = durable - known
            self._ledger.settle_lost(lease, dict(known), dict(drawn - known))
        self._serve()

    @property
    def estimated(self) -> Counter[str]:
        """The part of what was spent that nobody measured."""
        return self._estimated + Counter(self._ledger.estimated)

    def report(self) -> Funds:
        """What the run's budget came to, for the run file; leases that are still out will not come back."""
        self.stop()
        for seat in {loan.seat for loan in self._loans.values()}:
            self.lost(seat)
        ledger, estimated = self._ledger, self.estimated
        spent, overshoot = ledger.spent, ledger.overshoot
        return Funds(
            limits=ledger.limits,
            spent={name: spent[name] for name in ledger.limits},
            estimated={name: estimated[name] for name in ledger.limits},
            overshoot={name: overshoot[name] for name in ledger.limits},
            refused=self.refused,
            closed=self.closed,
        )

    def _serve(self) -> None:
        """Lend to everybody who waits and for whom there is enough."""
        waiting, self._wants = self._wants, deque()
        for seat, least in waiting:
            lease = self._ledger.lease(2 * max(1, len(self._seats)), dict(least))
            if not isinstance(lease, Refusal):
                number, ledger = lease
                self._loans[number] = _Loan(seat)
                self._send(seat, Lent(number, ledger.limits))
            elif self._loans:
                self._wants.append((seat, least))
            else:
                self.refused += 1
                reason = f"run budget: {words(lease)}"
                self.closed = self.closed or reason
                self._send(seat, Denied(reason))
        if self._wants:
            self._recall()

    def _recall(self) -> None:
        for loan in self._loans.values():
            if not loan.recalled:
                loan.recalled = True
                self._send(loan.seat, Recall())
