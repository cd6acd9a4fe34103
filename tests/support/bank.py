"""A run budget and the engines that spend from its leases; messages travel when a test says so."""

from __future__ import annotations

import asyncio
from collections import deque

from trunkline.controller.budget import NOTHING, RunBudget, RunSpending
from trunkline.controller.leases import LeaseServer
from trunkline.protocol import messages
from trunkline.rollout.budget import Budget
from trunkline.store.schema import CallRow
from trunkline.worker.leases import LeaseClient


def call(generated: int, prompt: int = 0, draws: int = 1, endpoint: str = "e") -> CallRow:
    return CallRow(endpoint, draws, prompt, 0, generated, 1, 0, -1, 5, 0)


class Bank:
    """A run budget and engines; messages take as long as the test lets them."""

    def __init__(self, engines: int, budget: Budget, spent: RunSpending = NOTHING) -> None:
        self.run_budget = RunBudget(budget, {}, self._tell, spent)
        self.server = LeaseServer({messages.RUN_BUDGET: self.run_budget})
        self.up: deque[tuple[int, object]] = deque()
        self.down: deque[tuple[int, object]] = deque()
        self.dead: set[int] = set()
        self.unsent: dict[int, list[CallRow]] = {worker_id: [] for worker_id in range(engines)}
        self.clients = [
            LeaseClient(lambda message, worker_id=worker_id: self.up.append((worker_id, message)))
            for worker_id in range(engines)
        ]
        self.engines = [
            client.budget(budget.limits, self._flusher(worker_id)) for worker_id, client in enumerate(self.clients)
        ]
        for worker_id in range(engines):
            self.server.on_ready(worker_id, 1)

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
            case list(calls):
                self.run_budget.committed(worker_id, calls)
            case None:
                self.server.on_lost(worker_id, None)
            case _:
                self.server.on_message(worker_id, message)

    def _down(self, worker_id: int, message: object) -> None:
        if worker_id not in self.dead:
            self.clients[worker_id].take(message)

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
        self.server.on_lost(worker_id, None)
        self.deliver()

    async def claim(self, worker_id: int, most: dict[str, int]):
        """What a turn does: it waits for its claim while messages travel."""
        asked = asyncio.ensure_future(self.engines[worker_id].claim(most))
        for _ in range(6):
            await asyncio.sleep(0)
            self.deliver()
        return asked
