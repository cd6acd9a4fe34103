"""Slots on loan: never more than there are, all come back, and nobody waits forever while there is one."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from limit_leases import LeaseSystem

from trunkline.controller.leases import LeaseServer, SlotAllocator, leased_limits, max_min_shares
from trunkline.llm.config import LLM
from trunkline.llm.types import Limits
from trunkline.protocol.messages import LeaseGrant, LeaseRequest, LeaseReturn, rates_of, slots_of

PICK = st.integers(0, 10**6)


@given(st.integers(0, 60), st.lists(st.integers(0, 30), min_size=1, max_size=9))
def test_nobody_gets_less_than_an_equal_part_who_wants_it_and_nothing_is_left_while_somebody_wants(total, wishes):
    shares = max_min_shares(total, dict(enumerate(wishes)))
    assert sum(shares.values()) == min(total, sum(wishes))
    for worker_id, wish in enumerate(wishes):
        assert min(wish, total // len(wishes)) <= shares[worker_id] <= wish
        if shares[worker_id] < wish:
            assert max(shares.values()) <= shares[worker_id] + 1, "who got more gave it up"


def test_a_slot_changes_hands_only_when_it_is_given_back():
    stock = SlotAllocator(4)
    stock.join(0, 4)
    assert stock.settle() == {0: 4}
    stock.join(1, 2)
    assert stock.settle() == {0: -2}
    assert stock.settle() == {}, "it was told once"
    stock.give_back(0, 1)
    assert (stock.settle(), stock.left) == ({1: 1}, 0)
    stock.leave(0)
    assert (stock.settle(), stock.left) == ({1: 1}, 2)


def test_more_engines_than_slots_take_turns():
    stock = SlotAllocator(1)
    for worker_id in range(3):
        stock.join(worker_id, 1)
    served = []
    (holder,) = stock.settle()
    for _ in range(9):
        served.append(holder)
        stock.give_back(holder, 1)
        stock.ask(holder, 1)
        holder = next(worker_id for worker_id, slots in stock.settle().items() if slots > 0)
    assert [served.count(worker_id) for worker_id in range(3)] == [3, 3, 3]


async def test_the_first_slots_come_without_asking_and_the_one_who_needs_more_gets_what_others_leave():
    system = LeaseSystem(2, 8)
    busy, idle = system.start(), system.start()
    await system.deliver()
    for _ in range(12):
        system.engines[busy].ask(0)
    await system.settle()
    assert len(system.engines[busy].flying) == 4
    await system.pass_time(1.0)
    assert len(system.engines[busy].flying) == 8
    for _ in range(6):
        system.engines[idle].ask(0)
    await system.pass_time(1.0)
    assert not system.engines[idle].flying, "all are in use"
    for _ in range(4):
        system.engines[busy].finish(0)
    await system.pass_time(1.0)
    assert [len(system.engines[worker_id].flying) for worker_id in (busy, idle)] == [4, 4]
    for engine in system.engines.values():
        await engine.close()


async def test_an_engine_that_is_gone_leaves_its_slots_to_others():
    system = LeaseSystem(2, 4)
    first, second = system.start(), system.start()
    await system.deliver()
    for worker_id in (first, second):
        for _ in range(4):
            system.engines[worker_id].ask(1)
    await system.settle()
    await system.kill(first)
    assert len(system.engines[second].flying) == 2, "not before it is known to be gone"
    await system.pass_time(1.0)
    assert len(system.engines[second].flying) == 4
    for engine in system.engines.values():
        await engine.close()


class Lending(RuleBasedStateMachine):
    """Requests come and go, messages take their time, engines die."""

    @initialize(
        engines=st.integers(2, 4),
        most=st.integers(1, 8),
        each=st.none() | st.integers(1, 5),
        rpm=st.sampled_from([None, None, 600.0]),
        tpm=st.sampled_from([None, None, 60_000.0]),
    )
    def begin(self, engines: int, most: int, each: int | None, rpm: float | None, tpm: float | None) -> None:
        self.runner = asyncio.Runner()
        self.runner.run(self._begin(engines, most, each, rpm, tpm))

    async def _begin(self, engines: int, most: int, each: int | None, rpm: float | None, tpm: float | None) -> None:
        self.system = LeaseSystem(engines, most, each, rpm, tpm)
        for _ in range(self.system.number):
            self.system.start()

    def _engine(self, pick: int):
        worker_ids = sorted(self.system.engines)
        return self.system.engines[worker_ids[pick % len(worker_ids)]]

    def _do(self, step) -> None:
        async def then() -> None:
            found = step()
            if found is not None:
                await found
            await self.system.settle()

        self.runner.run(then())

    @rule(pick=PICK, gate=st.integers(0, 1), n=st.integers(1, 5))
    def ask(self, pick: int, gate: int, n: int) -> None:
        if self.system.engines:
            self._do(lambda: [self._engine(pick).ask(gate) for _ in range(n)] and None)

    @rule(pick=PICK, place=PICK, n=st.integers(1, 3), spent=st.sampled_from([10, 100, 300]))
    def finish(self, pick: int, place: int, n: int, spent: int) -> None:
        if self.system.engines:
            engine = self._engine(pick)
            for _ in range(min(n, len(engine.flying))):
                self._do(lambda: engine.finish(place % len(engine.flying), spent))

    @rule(pick=PICK)
    def give_up(self, pick: int) -> None:
        if self.system.engines and (waiting := list(self._engine(pick).waiting)):
            self._do(lambda: waiting[pick % len(waiting)].cancel() and None)

    @rule(pick=PICK)
    def rise(self, pick: int) -> None:
        if ready := [worker_id for worker_id, messages in self.system.up.items() if messages]:
            self._do(lambda: self.system.rise(ready[pick % len(ready)]))

    @rule(pick=PICK)
    def fall(self, pick: int) -> None:
        if ready := [worker_id for worker_id, messages in self.system.down.items() if messages]:
            self._do(lambda: self.system.fall(ready[pick % len(ready)]))

    @rule(seconds=st.sampled_from([0.0, 0.02, 0.25, 0.6]))
    def wait(self, seconds: float) -> None:
        until = self.system.time.now + seconds
        while self.system.time.pop(until):
            self._do(lambda: None)

    @rule(pick=PICK)
    @precondition(lambda self: hasattr(self, "system") and len(self.system.engines) > 1)
    def kill(self, pick: int) -> None:
        worker_ids = sorted(self.system.engines)
        self._do(lambda: self.system.kill(worker_ids[pick % len(worker_ids)]))

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "system"):
            self.system.check()

    def teardown(self) -> None:
        if hasattr(self, "system"):
            try:
                self.runner.run(self._end())
            finally:
                self.runner.close()

    async def _end(self) -> None:
        """Whoever waits gets in, and when all is done everything comes back."""
        system = self.system
        await system.deliver()
        # A worker that joins keeps a share it does not use for half a second, one worker after another.
        await system.pass_time(0.5 * (len(system.engines) + 1))
        system.check_use()
        for _ in range(400):
            if not any(engine.waiting or engine.flying for engine in system.engines.values()):
                break
            for engine in system.engines.values():
                if engine.flying:
                    engine.finish(0)
            await system.pass_time(0.3)
            system.check()
        assert not any(engine.waiting for engine in system.engines.values()), "somebody waits forever"
        await system.pass_time(2.0)
        if system.number > 1:
            assert [stock.left for stock in system.stocks] == [stock.total for stock in system.stocks]
        for engine in system.engines.values():
            await engine.close()


TestLending = Lending.TestCase
TestLending.settings = settings(max_examples=60, stateful_step_count=40)


@pytest.mark.parametrize("engines", [2, 3])
async def test_two_endpoints_with_one_slot_each_are_both_used(engines: int):
    system = LeaseSystem(engines, 2, 1)
    for _ in range(system.number):
        system.start()
    await system.deliver()
    assert system.number == 1, "a worker without a slot has nothing to do"
    (engine,) = system.engines.values()
    for gate in (0, 0, 1, 1):
        engine.ask(gate)
    await system.pass_time(0.1)
    assert sorted(engine.flying) == [0, 1]
    await engine.close()


def test_each_llm_has_slots_and_rates_of_its_own_and_a_dead_worker_returns_them_once():
    sent: list[tuple[int, object]] = []
    spec = LLM("http://a/v1", max_concurrency=4, limits=Limits(requests_per_minute=60))
    resources = leased_limits({"a": spec, "b": spec, "live": object()}, 2, lambda *message: sent.append(message))
    assert list(resources) == [slots_of("a"), rates_of("a"), slots_of("b"), rates_of("b")]
    server = LeaseServer(resources)
    for worker_id in (0, 1):
        server.on_ready(worker_id, 1)
    assert sent == [(worker_id, LeaseGrant(slots_of(llm), {"run": 2})) for worker_id in (0, 1) for llm in ("a", "b")]
    del sent[:]
    server.on_message(0, LeaseReturn(slots_of("a"), unused={"run": 2}, want={"run": 0}))
    server.on_message(1, LeaseRequest(slots_of("a"), {}, {"run": 4}))
    assert sent == [(1, LeaseGrant(slots_of("a"), {"run": 2}))]
    assert (server.held(0), server.held(1)) == (2, 6)
    server.on_lost(1, None)
    for _ in range(2):
        server.on_message(1, LeaseReturn(slots_of("a"), unused={"run": 4}, want={"run": 4}))
    assert (server.held(0), server.held(1)) == (2, 0)
    assert [resources[slots_of(llm)].allocators["run"].left for llm in ("a", "b")] == [4, 2]
