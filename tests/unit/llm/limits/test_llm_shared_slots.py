"""A process's part of slots that several share: what it uses, wishes for and owes, and what its windows make of it."""

from __future__ import annotations

import asyncio

import pytest
from multidict import CIMultiDict
from virtual_time import VirtualTime

from trunkline.llm.config import LLM
from trunkline.llm.limits.adaptive_window import Window
from trunkline.llm.limits.rate_limiter import EndpointQueue, Limiter, SharedSlots
from trunkline.llm.limits.token_bucket import ServerRateLimits


class Part:
    """The shared slots of one run and two endpoints."""

    def __init__(self, fair: int = 4, *, limited: bool = False) -> None:
        self.time = VirtualTime()
        self.limiter = Limiter(99, sleep=self.time.sleep, clock=self.time)
        self.gates = [EndpointQueue(Window(fair), ServerRateLimits(self.time)) for _ in range(2)]
        self.shared = SharedSlots(self.limiter, self.gates, fair, limited=limited)
        self.changes = 0
        self.limiter.on_change = self._changed

    def _changed(self) -> None:
        self.changes += 1

    async def ask(self, gate: int, n: int = 1) -> list[asyncio.Task[bool]]:
        tasks = [asyncio.ensure_future(self.limiter.wait(self.gates[gate], 0)) for _ in range(n)]
        await self.time.settle()
        return tasks


async def test_nothing_is_let_in_before_there_is_a_slot_and_that_is_news():
    part = Part()
    assert not part.limiter.enter(part.gates[0])
    (asked,) = await part.ask(0)
    assert (asked.done(), part.changes, part.shared.wishes) == (False, 1, [1])
    part.shared.grant([1])
    await part.time.settle()
    assert asked.done()
    assert (part.shared.held, part.shared.wishes) == ([1], [1])


async def test_a_slot_that_is_owed_goes_when_its_request_is_over_and_to_nobody_who_waits():
    part = Part()
    part.shared.grant([2])
    await part.ask(0, 2)
    (waiting,) = await part.ask(0)
    part.shared.reclaim([1])
    assert part.shared.repaid() == [0]
    part.limiter.leave(part.gates[0])
    await part.time.settle()
    assert (part.shared.repaid(), part.shared.held, waiting.done()) == ([1], [1], False)
    part.limiter.leave(part.gates[0])
    await part.time.settle()
    assert waiting.done()


async def test_a_slot_of_the_run_is_wished_for_only_with_one_of_the_endpoint():
    part = Part(limited=True)
    asked = await part.ask(0, 3)
    assert part.shared.wishes == [0, 3, 0]
    part.shared.grant([0, 2, 0])
    assert part.shared.wishes == [2, 3, 0]
    part.shared.grant([2, 0, 0])
    await part.time.settle()
    assert [one.done() for one in asked] == [True, True, False]
    asked[2].cancel()
    await part.time.settle()
    assert part.shared.wishes == [2, 2, 0]


async def test_what_was_idle_at_two_looks_is_given_back():
    part = Part()
    part.shared.grant([4])
    await part.ask(1)
    part.shared.unused()
    assert part.shared.repaid() == [0], "it may be needed in a moment"
    await part.ask(1)
    part.shared.unused()
    assert (part.shared.repaid(), part.shared.held) == ([2], [2])


async def test_a_window_follows_what_is_held_unless_something_has_narrowed_it():
    part = Part(fair=10)
    free, cut = (gate.window for gate in part.gates)
    cut.refused(0.0, 0.0)
    part.shared.grant([30])
    assert (free.size, cut.size) == (30.0, 7.0)
    await part.ask(1, 9)
    assert part.shared.wishes == [7], "no more than the window lets in"
    part.shared.reclaim([25])
    part.shared.repaid()
    assert (free.size, cut.size) == (10.0, 7.0), "no less than an equal part"


def test_what_a_server_says_is_left_is_believed_in_equal_parts():
    time = VirtualTime()
    told = CIMultiDict({"x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "8"})
    shares = [ServerRateLimits(time, parties=4) for _ in range(4)]
    for quota in shares:
        quota.learn(told, 0, 0)
    for quota in shares:
        assert [quota.acquire(1, 0) for _ in range(3)][:2] == [0.0, 0.0]
        assert quota.acquire(1, 0) == pytest.approx(4.0), "a quarter of a request a second"


async def test_a_process_wishes_for_no_more_than_it_has_descriptors(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trunkline.llm.config.make_room", lambda least, wanted: least + 2)
    llm = LLM("http://h/v1", max_concurrency=40).open(4)
    assert (llm.shared_slots.fair, llm.shared_slots.most) == (10, 12)
    llm.shared_slots.grant([10])
    for endpoint in llm.endpoints:
        endpoint.queue.window.open()
    asked = [asyncio.ensure_future(llm.limiter.wait(llm.endpoints[0].queue, 0)) for _ in range(30)]
    await asyncio.sleep(0)
    assert llm.shared_slots.wishes == [12]
    for one in asked:
        one.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    await llm.close()
