"""Leases: what an engine may spend of the run's budget without asking again."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING

from trunkline._core import Ledger, Refusal
from trunkline.rollout.purse import Denied, LedgerAccount
from trunkline.runtime.wire import Drawn, Repaid, Want

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trunkline.rollout.budget import Amounts
    from trunkline.rollout.hold import Claim
    from trunkline.runtime.wire import Lent

__all__ = ["Leases"]

_STEPS = 8
"""In so many steps an engine says how much of a lease it draws: what is lost with it is known to within a step."""


class Leases:
    """The run's account, as an engine has it: it spends from one lease at a time, and asks for the next.

    A lease that is too short for somebody is given back as soon as nothing is in flight on it.

    Args:
        limits: The limits of the run's budget; only which currencies have one matters.
        send: Takes each message for the controller.
        flush: Sends what grew, so that what a lease was spent on is in the file before it is given back.
    """

    def __init__(
        self, limits: Amounts, send: Callable[[Want | Drawn | Repaid], None], flush: Callable[[], None]
    ) -> None:
        self.limits = limits
        self._send = send
        self._flush = flush
        self._lease: _Lease | None = None
        self._spent_from: set[_Lease] = set()
        self._waiting: deque[tuple[Mapping[str, int | None], asyncio.Future[Claim]]] = deque()

    async def claim(self, most: Mapping[str, int | None]) -> Claim:
        """See :class:`~trunkline.rollout.purse.Account`: waits for a lease where this one is too short."""
        claim = None if self._waiting else self._now(most)
        if claim is not None:
            return claim
        turn: asyncio.Future[Claim] = asyncio.get_running_loop().create_future()
        self._waiting.append((most, turn))
        if len(self._waiting) == 1:
            self._ask()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                turn.result().settle({})
            raise

    def lent(self, message: Lent) -> None:
        """Take a lease, and serve those who wait."""
        self._lease = _Lease(self, message.lease, Ledger(dict(message.limits)))
        self._spent_from.add(self._lease)
        self._serve()

    def denied(self, reason: str) -> None:
        """Refuse whom the lease was asked for; the next one may need less."""
        if self._waiting:
            _, turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(Denied(reason))
        self._serve()

    def recall(self) -> None:
        """Give the lease back as soon as nothing is in flight on it: somebody else is short."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.retire()

    def close(self) -> None:
        """Give everything back at the end; what is still in flight counts as spent."""
        self._waiting.clear()
        self.recall()
        for lease in list(self._spent_from):
            lease.repay()

    def _serve(self) -> None:
        """Serve those who wait in their order, and ask for more where it is too short."""
        while self._waiting:
            most, turn = self._waiting[0]
            if not turn.done():
                claim = self._now(most)
                if claim is None:
                    self._ask()
                    return
                turn.set_result(claim)
            self._waiting.popleft()

    def _now(self, most: Mapping[str, int | None]) -> Claim | None:
        """Claim something from the lease at hand; None where it is too short."""
        return None if self._lease is None else self._lease.take(most)

    def _ask(self) -> None:
        self.recall()
        self._send(Want({name: amount for name, amount in self._waiting[0][0].items() if amount is not None}))

    def drawn(self, lease: int, most: Amounts) -> None:
        """Say how much of a lease may be drawn from here on."""
        self._send(Drawn(lease, most))

    def repaid(self, lease: _Lease, spent: Amounts, estimated: Amounts) -> None:
        """Give a lease back."""
        self._spent_from.discard(lease)
        self._flush()
        self._send(Repaid(lease.number, spent, estimated))


class _Lease(LedgerAccount):
    """One lease.

    Args:
        leases: Whose it is.
        number: Its number at the controller.
        ledger: What may be spent of it.
    """

    def __init__(self, leases: Leases, number: int, ledger: Ledger) -> None:
        super().__init__("run budget", ledger)
        self.number = number
        self._leases = leases
        self._retired = False
        self._told: Counter[str] = Counter()

    def take(self, most: Mapping[str, int | None]) -> Claim | None:
        """Claim something, if there is enough; the controller hears of it before anything is sent."""
        claim = self.now(most)
        if isinstance(claim, Refusal):
            return None
        self._tell()
        return _Leased(self, claim)

    def retire(self) -> None:
        """Nothing is claimed from it any more."""
        self._retired = True
        self.returned()

    def returned(self) -> None:
        """Something of it was settled."""
        if self._retired and not self.ledger.open:
            self.repay()

    def repay(self) -> None:
        """Give it back."""
        reserved = self.ledger.reserved
        spent = Counter(self.ledger.spent) + Counter(reserved)
        self._leases.repaid(self, dict(spent), dict(self.estimated + Counter(reserved)))

    def _tell(self) -> None:
        """Say how much is drawn, when that is more than was said: a step ahead, so that few turns need a message."""
        drawn = Counter(self.ledger.spent) + Counter(self.ledger.reserved)
        if any(drawn[name] > self._told[name] for name in drawn):
            limits = self.ledger.limits
            ahead = {name: min(drawn[name] + limit // _STEPS, limit) for name, limit in limits.items()}
            self._told = drawn | Counter(ahead)
            self._leases.drawn(self.number, dict(self._told))


class _Leased:
    """A claim on a lease."""

    def __init__(self, lease: _Lease, claim: Claim) -> None:
        self._lease = lease
        self._claim = claim

    def settle(self, spent: Amounts, estimated: Amounts | None = None) -> None:
        """See :class:`~trunkline.rollout.hold.Claim`."""
        self._claim.settle(spent, estimated)
        self._lease.returned()
