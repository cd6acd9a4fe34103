"""Worker side of budget, slots and rates."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from typing import TYPE_CHECKING

from trunkline._core import Ledger, Refusal
from trunkline.protocol.messages import (
    LeaseDrawn,
    LeaseRequest,
    LeaseReturn,
    RateGrant,
    RateRequest,
    RateReturn,
    SlotGrant,
    SlotRequest,
    SlotReturn,
    SlotRevoke,
)
from trunkline.rollout.task_budget import BudgetDenied, LedgerAccount

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trunkline._internal.aio import Timer
    from trunkline.llm.config import EndpointSpec
    from trunkline.llm.http.client import HttpLLM
    from trunkline.llm.limits.rate_limiter import Limiter, SharedSlots
    from trunkline.llm.types import Limits
    from trunkline.protocol.messages import FromWorker, LeaseGrant
    from trunkline.rollout.budget import Amounts
    from trunkline.rollout.task_budget import Claim


__all__ = ["BudgetLeaseClient", "RateLeaseClient", "SlotLeaseClient"]


_STEPS = 8
"""In so many steps an engine says how much of a lease it draws: what is lost with it is known to within a step."""


class BudgetLeaseClient:
    """The run's account, as an engine has it: it spends from one lease at a time, and asks for the next.

    A lease that is too short for somebody is given back as soon as nothing is in flight on it.

    Args:
        limits: The limits of the run's budget; only which currencies have one matters.
        send: Takes each message for the controller.
        flush: Sends what grew, so that what a lease was spent on is in the file before it is given back.
    """

    def __init__(
        self,
        limits: Amounts,
        send: Callable[[LeaseRequest | LeaseDrawn | LeaseReturn], None],
        flush: Callable[[], None],
    ) -> None:
        self.limits = limits
        self._send = send
        self._flush = flush
        self._lease: _HeldLease | None = None
        self._spent_from: set[_HeldLease] = set()
        self._waiting: deque[tuple[Mapping[str, int | None], asyncio.Future[Claim]]] = deque()

    async def claim(self, most: Mapping[str, int | None]) -> Claim:
        """See :class:`~trunkline.rollout.task_budget.Account`: waits for a lease where this one is too short."""
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

    def granted(self, message: LeaseGrant) -> None:
        """Take a lease, and serve those who wait."""
        self._lease = _HeldLease(self, message.lease, Ledger(dict(message.limits)))
        self._spent_from.add(self._lease)
        self._serve()

    def denied(self, reason: str) -> None:
        """Refuse whom the lease was asked for; the next one may need less."""
        if self._waiting:
            _, turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(BudgetDenied(reason))
        self._serve()

    def revoke(self) -> None:
        """Give the lease back as soon as nothing is in flight on it: somebody else is short."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.retire()

    def close(self) -> None:
        """Give everything back at the end; what is still in flight counts as spent."""
        self._waiting.clear()
        self.revoke()
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
        self.revoke()
        self._send(LeaseRequest({name: amount for name, amount in self._waiting[0][0].items() if amount is not None}))

    def drawn(self, lease: int, most: Amounts) -> None:
        """Say how much of a lease may be drawn from here on."""
        self._send(LeaseDrawn(lease, most))

    def repaid(self, lease: _HeldLease, spent: Amounts, estimated: Amounts) -> None:
        """Give a lease back."""
        self._spent_from.discard(lease)
        self._flush()
        self._send(LeaseReturn(lease.number, spent, estimated))


class _HeldLease(LedgerAccount):
    """One lease.

    Args:
        client: Whose it is.
        number: Its number at the controller.
        ledger: What may be spent of it.
    """

    def __init__(self, client: BudgetLeaseClient, number: int, ledger: Ledger) -> None:
        super().__init__("run budget", ledger)
        self.number = number
        self._client = client
        self._retired = False
        self._told: Counter[str] = Counter()

    def take(self, most: Mapping[str, int | None]) -> Claim | None:
        """Claim something, if there is enough; the controller hears of it before anything is sent."""
        claim = self.now(most)
        if isinstance(claim, Refusal):
            return None
        self._tell()
        return _LeasedClaim(self, claim)

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
        self._client.repaid(self, dict(spent), dict(self.estimated + Counter(reserved)))

    def _tell(self) -> None:
        """Say how much is drawn, when that is more than was said: a step ahead, so that few turns need a message."""
        drawn = Counter(self.ledger.spent) + Counter(self.ledger.reserved)
        if any(drawn[name] > self._told[name] for name in drawn):
            limits = self.ledger.limits
            ahead = {name: min(drawn[name] + limit // _STEPS, limit) for name, limit in limits.items()}
            self._told = drawn | Counter(ahead)
            self._client.drawn(self.number, dict(self._told))


class _LeasedClaim:
    """A claim on a lease."""

    def __init__(self, lease: _HeldLease, claim: Claim) -> None:
        self._lease = lease
        self._claim = claim

    def settle(self, spent: Amounts, estimated: Amounts | None = None) -> None:
        """See :class:`~trunkline.rollout.task_budget.Claim`."""
        self._claim.settle(spent, estimated)
        self._lease.returned()


_PATIENCE = 60.0
"""Seconds to wait for what was asked for; who waits is woken as soon as it is there."""

_RECENT = 8
"""Requests over which the tokens of one are averaged, to know what those that wait will come to."""


class RateLeaseClient:
    """Grants requests and tokens as long as they last, and asks for more before they are used up.

    It is a :class:`trunkline.llm.limits.token_bucket.RateLease`. What replies took less than was set aside for them is
    used for the next requests; what they took beyond it is owed, and is part of what is asked for.

    Args:
        limits: The run's limits; only which rates have one matters.
        send: Takes each message for the controller.

    Attributes:
        waiting: Tells how many requests wait to be sent.
    """

    def __init__(self, limits: Limits, send: Callable[[RateRequest | RateReturn], None]) -> None:
        self._counted = (limits.requests_per_minute is not None, limits.tokens_per_minute is not None)
        self._has = [0 if counted else math.inf for counted in self._counted]
        self._send = send
        self._asked = False
        self._usual = 0.0
        self._used = self._recent = 0
        self.waiting: Callable[[], int] = int

    def acquire(self, requests: int, tokens: int) -> float:
        """Take so much if it is there; see :meth:`trunkline.llm.limits.token_bucket.RateLease.acquire`."""
        if requests > 0:
            if self._lacks(requests, tokens) != (0, 0):
                self._ask(requests, tokens)
                return _PATIENCE
            self._usual += (tokens - self._usual) / _RECENT if self._used or self._usual else tokens
            self._used += requests
        self._has[0] -= requests
        self._has[1] -= tokens
        if requests > 0 and self.waiting() > 1 and self._lacks(1, int(self._usual)) != (0, 0):
            self._ask(1, int(self._usual))
        return 0.0

    def allot(self, requests: int, tokens: int) -> None:
        """Take what was asked for."""
        self._asked = False
        self._has[0] += requests
        self._has[1] += tokens

    def unused(self) -> None:
        """Give back what is more than was used since the last call; say what is owed."""
        self._recent = used = self._used
        self._used = 0
        if self._asked:
            return  # Somebody waits.
        keep = (used, int(used * self._usual))
        excess = [
            int(has) if has < 0 else int(max(0, has - most)) if counted else 0
            for counted, has, most in zip(self._counted, self._has, keep, strict=True)
        ]
        if any(excess):
            self._has = [has - less for has, less in zip(self._has, excess, strict=True)]
            self._send(RateReturn(excess[0], excess[1]))

    def _lacks(self, requests: int, tokens: int) -> tuple[int, int]:
        lacks = [math.ceil(max(0, need - has)) for need, has in zip((requests, tokens), self._has, strict=True)]
        return lacks[0], lacks[1]

    def _ask(self, requests: int, tokens: int) -> None:
        """Ask for what a request lacks, and for those behind it, unless something was asked for already.

        As many are expected as wait, or as there were lately.
        """
        if self._asked:
            return
        self._asked = True
        behind = max(0, self.waiting() - 1, self._recent)
        least = self._lacks(requests, tokens)
        most = self._lacks(requests + behind, tokens + int(behind * self._usual))
        self._send(RateRequest(least, most))


_GATHER = 0.02
"""Seconds at least from one message about slots to the next."""

_MOMENT = 0.25
"""Seconds from one look for what nobody uses to the next."""


class SlotLeaseClient:
    """Asks for slots when requests wait for them, and gives back what is reclaimed, or not used for a moment.

    Args:
        llm: Whose limits are shared.
        parties: How many engines share them.
        send: Takes each message for the controller.
        resized: Called with the number of slots that are held, whenever it has changed.
        later: Calls a function after so many seconds; the running loop's ``call_later`` when None.
    """

    def __init__(
        self,
        llm: EndpointSpec,
        parties: int,
        send: Callable[[FromWorker], None],
        resized: Callable[[int], None],
        later: Callable[[float, Callable[[], None]], Timer] | None = None,
    ) -> None:
        limits = llm.limits
        rated = limits.requests_per_minute is not None or limits.tokens_per_minute is not None
        self._rates = RateLeaseClient(limits, send) if rated else None
        self.llm: HttpLLM = llm.open(parties, lease=self._rates)
        assert self.llm.shared_slots is not None
        self._shared_slots: SharedSlots = self.llm.shared_slots
        self._limiter: Limiter = self.llm.limiter
        self._alone = parties == 1
        self._send = send
        self._resized = resized
        self._later = later or asyncio.get_running_loop().call_later
        self._told = self._shared_slots.held
        self._rest: Timer | None = None
        self._stirred = False
        self._limiter.on_change = self._stir
        if self._rates is not None:
            self._rates.waiting = lambda: sum(endpoint.queue.waiting for endpoint in self.llm.endpoints)
        self._moment = self._later(_MOMENT, self._tick)

    def take(self, message: SlotGrant | SlotRevoke | RateGrant) -> None:
        """Take a message of the controller."""
        match message:
            case SlotGrant(slots):
                self._shared_slots.grant(slots)
                self._resized(self._shared_slots.held[0])
                self._stir()
            case SlotRevoke(slots):
                self._shared_slots.reclaim(slots)
                self._look()
            case RateGrant(requests, tokens) if self._rates is not None:
                self._rates.allot(requests, tokens)
                self._limiter.refunded()

    def close(self) -> None:
        """Ask for nothing any more."""
        self._limiter.on_change = lambda: None
        self._moment.cancel()
        if self._rest is not None:
            self._rest.cancel()

    def _stir(self) -> None:
        """Look soon: at the end of this tick, but a moment after the last time."""
        self._stirred = True
        if self._rest is None:
            self._rest = self._later(0, self._rested)

    def _rested(self) -> None:
        self._rest = None
        if self._stirred:
            self._stirred = False
            self._look()
            self._rest = self._later(_GATHER, self._rested)

    def _look(self) -> None:
        """Return what is back, and ask for what is lacking."""
        back = self._shared_slots.repaid()
        wishes, held = self._shared_slots.wishes, self._shared_slots.held
        if any(back):
            self._told = wishes
            self._send(SlotReturn(back, wishes))
            self._resized(held[0])
        # What the controller knows is that more is wanted; it need not know of every request less.
        if any(
            wish > have and not wish <= told < 2 * wish
            for wish, have, told in zip(wishes, held, self._told, strict=True)
        ):
            self._told = wishes
            self._send(SlotRequest(wishes))

    def _tick(self) -> None:
        """Give back what was not used for a moment."""
        self._moment = self._later(_MOMENT, self._tick)
        if self._rates is not None:
            self._rates.unused()
        if not self._alone:
            self._shared_slots.unused()
            self._look()
