"""A lease server and its clients in one process: a test says when messages travel and time passes."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable

from trunkline.controller.leases import LeaseServer, RequestSlots, leased_limits
from trunkline.llm.config import LLM
from trunkline.llm.types import Limits
from trunkline.protocol import messages
from trunkline.protocol.job import parties
from trunkline.worker.leases import LeaseClient

URLS = ("http://a/v1", "http://b/v1")
BOOKED = 100
"""Tokens that each request is estimated at; they count only where tokens are limited."""


class Timers:
    """A clock with timers; nothing passes by itself."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()

    def __call__(self) -> float:
        return self.now

    def later(self, seconds: float, call: Callable[[], None]) -> Timer:
        timer = Timer(call)
        heapq.heappush(self._due, (self.now + seconds, next(self._numbers), timer))
        return timer

    def pop(self, until: float) -> bool:
        """Call the next timer up to a moment; False if there is none."""
        if not self._due or self._due[0][0] > until:
            self.now = max(self.now, until)
            return False
        self.now, _, timer = heapq.heappop(self._due)
        if not timer.cancelled:
            timer.call()
        return True


class Timer:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Engine:
    """A lease client and its requests."""

    def __init__(self, llm: LLM, number: int, send: Callable[[object], None], time: Timers) -> None:
        self.lease_client = LeaseClient(send, time.later)
        self.llm = self.lease_client.open("", llm, number, lambda slots: None)
        self.gates = [endpoint.queue for endpoint in self.llm.endpoints]
        self.waiting: dict[asyncio.Task[bool], int] = {}
        self.flying: list[int] = []

    def ask(self, gate: int) -> None:
        limiter = self.llm.limiter
        if limiter.enter(self.gates[gate]):
            self.flying.append(gate)
        else:
            self.waiting[asyncio.ensure_future(limiter.wait(self.gates[gate], BOOKED))] = gate

    def look(self) -> None:
        """Let in who was let in."""
        for task in [task for task in self.waiting if task.done()]:
            gate = self.waiting.pop(task)
            if not task.cancelled() and task.result():
                self.flying.append(gate)

    def finish(self, place: int, spent: int = BOOKED) -> None:
        self.llm.limiter.leave(self.gates[self.flying.pop(place)], BOOKED, spent)

    async def close(self) -> None:
        self.lease_client.close()
        for task in self.waiting:
            task.cancel()
        await asyncio.gather(*self.waiting, return_exceptions=True)
        await self.llm.close()


class LeaseSystem:
    """Engines and their lease server, with messages in order per engine and direction."""

    def __init__(
        self, engines: int, most: int, each: int | None = None, rpm: float | None = None, tpm: float | None = None
    ) -> None:
        self.time = Timers()
        limits = Limits(endpoint_concurrency=each, requests_per_minute=rpm, tokens_per_minute=tpm)
        self.llm = LLM(*URLS, max_concurrency=most, limits=limits)
        self.number = parties(self.llm, engines)
        resources = leased_limits(
            {"": self.llm},
            engines,
            lambda worker_id, message: self.down[worker_id].append(message),
            self.time,
            self.time.later,
        )
        assert len(resources) == (2 if rpm or tpm else 1)
        (slots,) = [resource for resource in resources.values() if isinstance(resource, RequestSlots)]
        self.stocks = list(slots.allocators.values())
        self.lease_server = LeaseServer(resources)
        self.engines: dict[int, Engine] = {}
        self.up: dict[int, deque[object]] = {}
        self.down: dict[int, deque[object]] = {}
        self._worker_ids = itertools.count()

    def start(self) -> int:
        worker_id = next(self._worker_ids)
        self.up[worker_id], self.down[worker_id] = deque([messages.WorkerReady(0, "", 0, 1)]), deque()
        self.engines[worker_id] = Engine(self.llm, self.number, self.up[worker_id].append, self.time)
        return worker_id

    def rise(self, worker_id: int) -> None:
        """Deliver a message to the lease server."""
        message = self.up[worker_id].popleft()
        if isinstance(message, messages.WorkerReady):
            self.lease_server.on_ready(worker_id, message.slots)
        elif message is None:
            del self.up[worker_id], self.down[worker_id]
            self.lease_server.on_lost(worker_id, None)
            self.start()
        else:
            self.lease_server.on_message(worker_id, message)

    def fall(self, worker_id: int) -> None:
        """Deliver a message to an engine."""
        message = self.down[worker_id].popleft()
        if worker_id in self.engines:
            self.engines[worker_id].lease_client.take(message)

    async def kill(self, worker_id: int) -> None:
        """An engine dies, and with it its requests; that is known once all it sent was read."""
        engine = self.engines.pop(worker_id)
        engine.lease_client.close()
        self.up[worker_id].append(None)
        await engine.close()

    async def settle(self) -> None:
        """Let requests in that can go."""
        for _ in range(4):
            await asyncio.sleep(0)
        for engine in self.engines.values():
            engine.look()

    async def deliver(self) -> None:
        """Deliver everything."""
        while any(self.up.values()) or any(self.down.values()):
            for worker_id in list(self.up):
                while self.up.get(worker_id):
                    self.rise(worker_id)
            for worker_id in list(self.down):
                while self.down.get(worker_id):
                    self.fall(worker_id)
            await self.settle()

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and every message arrive at once."""
        until = self.time.now + seconds
        while self.time.pop(until):
            await self.settle()
            await self.deliver()

    def check_use(self) -> None:
        """Where somebody could use one more there is none left, and none that another does not use."""
        all_slots = [engine.llm.shared_slots for engine in self.engines.values()]
        for place, stock in enumerate(self.stocks):
            if any(shared.wishes[place] > shared.held[place] for shared in all_slots):
                assert stock.left == 0
                assert all(shared.held[place] <= shared.wishes[place] for shared in all_slots)

    def check(self) -> None:
        """Nothing is lent that there is not, and nobody has more in flight than he holds."""
        for stock in self.stocks:
            assert 0 <= stock.left <= stock.total
        flying = [gate for engine in self.engines.values() for gate in engine.flying]
        limits = self.llm.limits
        assert len(flying) <= self.llm.max_concurrency
        assert all(flying.count(gate) <= (limits.endpoint_concurrency or len(flying)) for gate in range(len(URLS)))
        for worker_id, engine in self.engines.items():
            assert engine.llm.limiter.free >= 0
            if worker_id in self.lease_server._workers:
                assert len(engine.flying) <= self.lease_server.held(worker_id)
