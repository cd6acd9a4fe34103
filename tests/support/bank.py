"""A run budget and the engines that spend from its leases; messages travel when a test says so."""

from __future__ import annotations

import asyncio
from collections import deque

from trunkline.controller.budget import NOTHING, RunBudget, RunSpending
from trunkline.protocol import messages
from trunkline.rollout.budget import Budget
from trunkline.store.schema import CallRow
from trunkline.worker.leases import BudgetLeaseClient


def call(generated: int, prompt: int = 0, draws: int = 1, endpoint: str = "e") -> CallRow:
    return CallRow(endpoint, draws, prompt, 0, generated, 1, 0, -1, 5, 0)


class Bank:
    """A run budget and engines; messages take as long as the test lets them."""

    def __init__(self, engines: int, budget: Budget, spent: RunSpending = NOTHING) -> None:
        self.run_budget = RunBudget(budget, {}, self._tell, spent)
        self.up: deque[tuple[int, object]] = deque()
        self.down: deque[tuple[int, object]] = deque()
        self.dead: set[int] = set()
        self.unsent: dict[int, list[CallRow]] = {worker_id: [] for worker_id in range(engines)}
        self.engines = [
            BudgetLeaseClient(
                budget.limits,
                lambda message, worker_id=worker_id: self.up.append((worker_id, message)),
                self._flusher(worker_id),
            )
            for worker_id in range(engines)
        ]
        for worker_id in range(engines):
            self.run_budget.add_worker(worker_id)

    def _tell(self, worker_id: int, message: object) -> None:
        self.down.append((worker_id, message))

    def _flusher(self, worker_id: int):
        return lambda: self.flush(worker_id)

    def flush(self, worker_id: int) -> None:
        calls, self.unsent[worker_id] = self.unsent[worker_id], []
        self.up.append((worker_id, calls))

    def deliver(self) -> None:
        """Deliver all that is under way, and what follows from it."""
        while self.up or self.down:
            while self.up:
                self._up(*self.up.popleft())
            while self.down:
                self._down(*self.down.popleft())

    def _up(self, worker_id: int, message: object) -> None:
        match message:
            case messages.LeaseRequest(least):
                self.run_budget.want(worker_id, least)
            case messages.LeaseDrawn(lease, most):
                self.run_budget.drawn(lease, most)
            case messages.LeaseReturn(lease, spent, estimated):
                self.run_budget.repaid(lease, spent, estimated)
            case list(calls):
                self.run_budget.committed(worker_id, calls)
            case None:
                self.run_budget.lost(worker_id)

    def _down(self, worker_id: int, message: object) -> None:
        if worker_id in self.dead:
            return
        match message:
            case messages.LeaseGrant():
                self.engines[worker_id].granted(message)
            case messages.LeaseDenied(reason):
                self.engines[worker_id].denied(reason)
            case messages.LeaseRevoke():
                self.engines[worker_id].revoke()

    def carry(self, worker_id: int, *, up: bool) -> None:
        """Deliver the next message of, or for, one engine; the others' take longer."""
        queue, deliver = (self.up, self._up) if up else (self.down, self._down)
        for place, (whose, message) in enumerate(queue):
            if whose == worker_id:
                del queue[place]
                deliver(worker_id, message)
                return

    def die(self, worker_id: int) -> None:
        """An engine dies while messages are under way; the budget hears of it behind all that it had sent."""
        self.dead.add(worker_id)
        self.up.append((worker_id, None))

    def kill(self, worker_id: int) -> None:
        """An engine dies: what it sent is delivered, what it kept is lost."""
        self.deliver()
        self.dead.add(worker_id)
        self.run_budget.lost(worker_id)
        self.deliver()

    async def claim(self, worker_id: int, most: dict[str, int]):
        """What a turn does: it waits for its claim while messages travel."""
        asked = asyncio.ensure_future(self.engines[worker_id].claim(most))
        for _ in range(6):
            await asyncio.sleep(0)
            self.deliver()
        return asked
