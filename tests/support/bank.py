"""A treasury and the engines that spend from its leases; messages travel when a test says so."""

from __future__ import annotations

import asyncio
from collections import deque

from trunkline.controller.budget import NOTHING, RunBudget, RunSpending
from trunkline.protocol import messages as wire
from trunkline.rollout.budget import Budget
from trunkline.store.schema import CallRow
from trunkline.worker.leases import BudgetLeaseClient


def call(generated: int, prompt: int = 0, draws: int = 1, endpoint: str = "e") -> CallRow:
    return CallRow(endpoint, draws, prompt, 0, generated, 1, 0, -1, 5, 0)


class Bank:
    """A treasury and engines; messages take as long as the test lets them."""

    def __init__(self, engines: int, budget: Budget, spent: RunSpending = NOTHING) -> None:
        self.treasury = RunBudget(budget, {}, self._tell, spent)
        self.up: deque[tuple[int, object]] = deque()
        self.down: deque[tuple[int, object]] = deque()
        self.dead: set[int] = set()
        self.unsent: dict[int, list[CallRow]] = {seat: [] for seat in range(engines)}
        self.engines = [
            BudgetLeaseClient(
                budget.limits, lambda message, seat=seat: self.up.append((seat, message)), self._flusher(seat)
            )
            for seat in range(engines)
        ]
        for seat in range(engines):
            self.treasury.add_worker(seat)

    def _tell(self, seat: int, message: object) -> None:
        self.down.append((seat, message))

    def _flusher(self, seat: int):
        return lambda: self.flush(seat)

    def flush(self, seat: int) -> None:
        calls, self.unsent[seat] = self.unsent[seat], []
        self.up.append((seat, calls))

    def deliver(self) -> None:
        """Deliver all that is under way, and what follows from it."""
        while self.up or self.down:
            while self.up:
                self._up(*self.up.popleft())
            while self.down:
                self._down(*self.down.popleft())

    def _up(self, seat: int, message: object) -> None:
        match message:
            case wire.LeaseRequest(least):
                self.treasury.want(seat, least)
            case wire.LeaseDrawn(lease, most):
                self.treasury.drawn(lease, most)
            case wire.LeaseReturn(lease, spent, estimated):
                self.treasury.repaid(lease, spent, estimated)
            case list(calls):
                self.treasury.committed(seat, calls)
            case None:
                self.treasury.lost(seat)

    def _down(self, seat: int, message: object) -> None:
        if seat in self.dead:
            return
        match message:
            case wire.LeaseGrant():
                self.engines[seat].granted(message)
            case wire.LeaseDenied(reason):
                self.engines[seat].denied(reason)
            case wire.LeaseRevoke():
                self.engines[seat].revoke()

    def carry(self, seat: int, *, up: bool) -> None:
        """Deliver the next message of, or for, one engine; the others' take longer."""
        queue, deliver = (self.up, self._up) if up else (self.down, self._down)
        for place, (whose, message) in enumerate(queue):
            if whose == seat:
                del queue[place]
                deliver(seat, message)
                return

    def die(self, seat: int) -> None:
        """An engine dies while messages are under way; the treasury hears of it behind all that it had sent."""
        self.dead.add(seat)
        self.up.append((seat, None))

    def kill(self, seat: int) -> None:
        """An engine dies: what it sent is delivered, what it kept is lost."""
        self.deliver()
        self.dead.add(seat)
        self.treasury.lost(seat)
        self.deliver()

    async def claim(self, seat: int, most: dict[str, int]):
        """What a turn does: it waits for its claim while messages travel."""
        asked = asyncio.ensure_future(self.engines[seat].claim(most))
        for _ in range(6):
            await asyncio.sleep(0)
            self.deliver()
        return asked
