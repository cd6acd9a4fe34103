"""A worker's leases: the run's budget, slots for requests, and rates."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING, Protocol

from trunkline._core import Ledger, Refusal
from trunkline.protocol import messages
from trunkline.protocol.job import slot_kinds
from trunkline.rollout.task_budget import BudgetDenied, LedgerAccount

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trunkline._internal.aio import Timer
    from trunkline.llm.config import LLM
    from trunkline.llm.http.client import HttpLLM
    from trunkline.llm.types import Limits
    from trunkline.rollout.budget import Amounts
    from trunkline.rollout.task_budget import Claim


class LeaseHolder(Protocol):
    """What a worker leases of one resource."""

    def granted(self, message: messages.LeaseGrant) -> None:
        """Use what was granted, or refuse what it was wanted for."""

    def revoked(self, amounts: Amounts) -> None:
        """Return so much as soon as it is free."""


_MOMENT = 0.25
"""Seconds between two looks for what is not used."""


class LeaseClient:
    """Requests, holds and returns a worker's leases, by the resources' names in messages."""

    def __init__(
        self,
        send: Callable[[messages.FromWorker], None],
        later: Callable[[float, Callable[[], None]], Timer] | None = None,
    ) -> None:
        self._send = send
        self._later = later
        self._holders: dict[str, LeaseHolder] = {}
        self._slots: list[SlotLeases] = []
        self._rates: list[RateLeases] = []
        self._moment: Timer | None = None

    def budget(self, limits: Amounts, flush: Callable[[], None]) -> BudgetLeases:
        """Return the run's account; ``flush`` sends the batch that has the calls which a lease has paid for."""
        self._holders[messages.RUN_BUDGET] = budget = BudgetLeases(limits, self._send, flush)
        return budget

    def open(self, name: str, llm: LLM, parties: int, resized: Callable[[int], None]) -> HttpLLM:
        """Open an LLM whose limits are leased; ``resized`` is called when the number of slots has changed."""
        later = self._later or asyncio.get_running_loop().call_later
        rates = None
        if llm.limits.requests_per_minute is not None or llm.limits.tokens_per_minute is not None:
            rates = RateLeases(messages.rates_of(name), llm.limits, self._send)
        opened = llm.open(parties, lease=rates)
        slots = SlotLeases(messages.slots_of(name), opened, list(slot_kinds(llm)), self._send, resized, later)
        slots.alone = parties == 1
        self._holders[messages.slots_of(name)] = slots
        self._slots.append(slots)
        if rates is not None:
            self._holders[messages.rates_of(name)] = rates
            self._rates.append(rates)
            rates.waiting = lambda: sum(endpoint.queue.waiting for endpoint in opened.endpoints)
            rates.on_grant = opened.limiter.refunded
        if self._moment is None:
            self._moment = later(_MOMENT, self._tick)
        return opened

    def take(self, message: messages.LeaseGrant | messages.LeaseRevoke) -> None:
        holder = self._holders[message.resource]
        match message:
            case messages.LeaseGrant():
                holder.granted(message)
            case messages.LeaseRevoke():
                holder.revoked(message.amounts)

    def close(self) -> None:
        if self._moment is not None:
            self._moment.cancel()
        for slots in self._slots:
            slots.close()

    def _tick(self) -> None:
        """Return what was not used for a moment."""
        self._moment = (self._later or asyncio.get_running_loop().call_later)(_MOMENT, self._tick)
        for rates in self._rates:
            rates.unused()
        for slots in self._slots:
            slots.unused()


_STEPS = 8
"""Parts of a lease in which a worker tells how much it draws: the loss with a dead worker is known to within one."""


class BudgetLeases:
    """The run's ``Account`` in a worker; it spends from one lease at a time.

    A lease that is too short for a claim is returned as soon as nothing is in flight on it, after ``flush`` has sent
    the calls that it has paid for; another one is requested.
    """

    def __init__(self, limits: Amounts, send: Callable[[messages.FromWorker], None], flush: Callable[[], None]) -> None:
        self.limits = limits
        self._send = send
        self._flush = flush
        self._lease: _HeldLease | None = None
        self._spent_from: set[_HeldLease] = set()
        self._waiting: deque[tuple[Mapping[str, int | None], asyncio.Future[Claim]]] = deque()

    async def claim(self, most: Mapping[str, int | None]) -> Claim:
        """Set aside the most that something can cost; waits for a lease where the present one is too short."""
        claim = None if self._waiting else self._now(most)
        if claim is not None:
            return claim
        turn: asyncio.Future[Claim] = asyncio.get_running_loop().create_future()
        self._waiting.append((most, turn))
        if len(self._waiting) == 1:
            self._request()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                turn.result().settle({})
            raise

    def granted(self, message: messages.LeaseGrant) -> None:
        """Serve waiting claims from a new lease, or refuse the first one; the next may need less."""
        if not message.denied:
            self._lease = _HeldLease(message.lease, Ledger(message.amounts), self.repay, self._send)
            self._spent_from.add(self._lease)
        elif self._waiting:
            _, turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(BudgetDenied(message.denied))
        self._serve()

    def revoked(self, amounts: Amounts) -> None:
        self._retire()

    def give_back(self) -> None:
        """Return every lease at the end; what is still in flight counts as spent."""
        self._waiting.clear()
        self._retire()
        for lease in list(self._spent_from):
            self.repay(lease)

    def _retire(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.retire()

    def _serve(self) -> None:
        """Serve waiting claims in their order; request another lease where this one is too short."""
        while self._waiting:
            most, turn = self._waiting[0]
            if not turn.done():
                claim = self._now(most)
                if claim is None:
                    self._request()
                    return
                turn.set_result(claim)
            self._waiting.popleft()

    def _now(self, most: Mapping[str, int | None]) -> Claim | None:
        return None if self._lease is None else self._lease.take(most)

    def _request(self) -> None:
        self._retire()
        least = {name: amount for name, amount in self._waiting[0][0].items() if amount is not None}
        self._send(messages.LeaseRequest(messages.RUN_BUDGET, least))

    def repay(self, lease: _HeldLease) -> None:
        """Return a lease, behind the calls that it has paid for; what is in flight counts as spent."""
        self._spent_from.discard(lease)
        self._flush()
        reserved = Counter(lease.ledger.reserved)
        spent, estimated = dict(Counter(lease.ledger.spent) + reserved), dict(lease.estimated + reserved)
        self._send(messages.LeaseReturn(messages.RUN_BUDGET, lease=lease.number, used=spent, estimated=estimated))


class _HeldLease(LedgerAccount):
    """One lease on the budget."""

    def __init__(
        self,
        number: int,
        ledger: Ledger,
        repay: Callable[[_HeldLease], None],
        send: Callable[[messages.FromWorker], None],
    ) -> None:
        super().__init__("run budget", ledger)
        self.number = number
        self._repay = repay
        self._send = send
        self._retired = False
        self._told: Counter[str] = Counter()

    def take(self, most: Mapping[str, int | None]) -> Claim | None:
        claim = self.now(most)
        if isinstance(claim, Refusal):
            return None
        self._tell()
        return claim

    def retire(self) -> None:
        """Accept no more claims, and return the lease once nothing is in flight on it."""
        self._retired = True
        self.settled()

    def settled(self) -> None:
        if self._retired and not self.ledger.open:
            self._repay(self)

    def _tell(self) -> None:
        """Tell how much is drawn where it is more than was told: a step ahead, so that few turns need a message."""
        drawn = Counter(self.ledger.spent) + Counter(self.ledger.reserved)
        if any(drawn[name] > self._told[name] for name in drawn):
            limits = self.ledger.limits
            ahead = {name: min(drawn[name] + limit // _STEPS, limit) for name, limit in limits.items()}
            self._told = drawn | Counter(ahead)
            self._send(messages.LeaseDrawn(messages.RUN_BUDGET, self.number, dict(self._told)))


_PATIENCE = 60.0
"""Seconds to wait for a grant, which wakes the waiting request earlier."""

_RECENT = 8
"""Requests over which the tokens of one are averaged, to estimate those of waiting requests."""


class RateLeases:
    """Spends granted requests and tokens; a ``trunkline.llm.limits.token_bucket.RateLease``.

    What replies took less than was booked for them is used for the next requests; what they took beyond it is owed,
    and is part of the next lease request. ``waiting`` returns how many requests wait to be sent.
    """

    def __init__(self, name: str, limits: Limits, send: Callable[[messages.FromWorker], None]) -> None:
        self._name = name
        rates = {"requests": limits.requests_per_minute, "tokens": limits.tokens_per_minute}
        self._has = {kind: 0 for kind, rate in rates.items() if rate is not None}
        self._send = send
        self._asked = False
        self._usual = 0.0
        self._used = self._recent = 0
        self.waiting: Callable[[], int] = lambda: 0
        self.on_grant: Callable[[], object] = lambda: None

    def acquire(self, requests: int, tokens: int) -> float:
        """See ``trunkline.llm.limits.token_bucket.RateLease.acquire``."""
        if requests > 0:
            if any(self._lacks(requests, tokens).values()):
                self._request(requests, tokens)
                return _PATIENCE
            self._usual += (tokens - self._usual) / _RECENT if self._used or self._usual else tokens
            self._used += requests
        self._add({"requests": -requests, "tokens": -tokens})
        if requests > 0 and self.waiting() > 1 and any(self._lacks(1, int(self._usual)).values()):
            self._request(1, int(self._usual))
        return 0.0

    def granted(self, message: messages.LeaseGrant) -> None:
        self._asked = False
        self._add(message.amounts)
        self.on_grant()

    def revoked(self, amounts: Amounts) -> None:
        """Rates are not revoked."""

    def unused(self) -> None:
        """Return what is more than was used since the last call; tell what is owed."""
        self._recent = used = self._used
        self._used = 0
        if self._asked:
            return  # A request waits.
        keep = {"requests": used, "tokens": int(used * self._usual)}
        excess = {kind: has if has < 0 else max(0, has - keep[kind]) for kind, has in self._has.items()}
        if any(excess.values()):
            self._add({kind: -amount for kind, amount in excess.items()})
            self._send(messages.LeaseReturn(self._name, unused=excess))

    def _add(self, amounts: Amounts) -> None:
        for kind in self._has:
            self._has[kind] += amounts[kind]

    def _lacks(self, requests: int, tokens: int) -> Amounts:
        needs = {"requests": requests, "tokens": tokens}
        return {kind: max(0, needs[kind] - has) for kind, has in self._has.items()}

    def _request(self, requests: int, tokens: int) -> None:
        """Request what a request lacks, and what those behind it will: as many as wait, or as there were lately."""
        if self._asked:
            return
        self._asked = True
        behind = max(0, self.waiting() - 1, self._recent)
        want = self._lacks(requests + behind, tokens + int(behind * self._usual))
        self._send(messages.LeaseRequest(self._name, self._lacks(requests, tokens), want))


_GATHER = 0.02
"""Least seconds between two messages about slots."""


class SlotLeases:
    """Requests slots when requests wait for them; returns those revoked or, unless ``alone``, not used for a moment."""

    def __init__(
        self,
        name: str,
        llm: HttpLLM,
        kinds: list[str],
        send: Callable[[messages.FromWorker], None],
        resized: Callable[[int], None],
        later: Callable[[float, Callable[[], None]], Timer],
    ) -> None:
        self._name = name
        assert llm.shared_slots is not None
        self._limiter = llm.limiter
        self._shared_slots = llm.shared_slots
        self._kinds = kinds
        self._send = send
        self._resized = resized
        self._later = later
        self._told = self._shared_slots.held
        self._rest: Timer | None = None
        self._stirred = False
        self.alone = False
        self._limiter.on_change = self._stir

    def granted(self, message: messages.LeaseGrant) -> None:
        self._shared_slots.grant([message.amounts[kind] for kind in self._kinds])
        self._resized(self._shared_slots.held[0])
        self._stir()

    def revoked(self, amounts: Amounts) -> None:
        self._shared_slots.reclaim([amounts[kind] for kind in self._kinds])
        self._look()

    def unused(self) -> None:
        if not self.alone:
            self._shared_slots.unused()
            self._look()

    def close(self) -> None:
        self._limiter.on_change = lambda: None
        if self._rest is not None:
            self._rest.cancel()

    def _stir(self) -> None:
        """Look at the end of this tick of the loop, but a moment after the last time."""
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
        """Return slots that are back, and request those that are lacking."""
        back = self._shared_slots.repaid()
        wishes, held = self._shared_slots.wishes, self._shared_slots.held
        if any(back):
            self._told = wishes
            self._send(messages.LeaseReturn(self._name, unused=self._amounts(back), want=self._amounts(wishes)))
            self._resized(held[0])
        # The controller must know that more is wanted, not of every request less.
        if any(
            wish > have and not wish <= told < 2 * wish
            for wish, have, told in zip(wishes, held, self._told, strict=True)
        ):
            self._told = wishes
            self._send(messages.LeaseRequest(self._name, {}, self._amounts(wishes)))

    def _amounts(self, slots: list[int]) -> Amounts:
        return dict(zip(self._kinds, slots, strict=True))
