"""Turns that the turn engine sends: slots are given back and taken up, whatever becomes of requests."""

from __future__ import annotations

import asyncio
import random

import pytest
import uvloop
from engine_table import answer, bench, held, soon, until
from fault_server import FaultServer, Peer, http, problem

from trunkline.errors import EndpointError
from trunkline.rollout.sampling.inflight import WeightGate


async def test_a_failed_request_gives_its_slot_to_those_that_wait():
    async with (
        FaultServer(http(problem("boom"), 500), answer) as server,
        bench(server.url, n=3, slots=1) as made,
    ):
        found = await soon(made.ask_all())
        assert [type(one).__name__ for one in found] == ["ReplyChoice"] * 3
        assert sorted(made.calls()) == [(1, 1, server.url)] * 2 + [(1, 2, server.url)]


async def test_a_request_that_is_given_up_gives_its_slot_to_those_that_wait():
    gate = asyncio.Event()
    async with FaultServer(held(gate), answer) as server, bench(server.url, n=3, slots=1) as made:
        first, *others = map(made.ask, range(3))
        await until(lambda: server.seen)
        first.cancel()
        await soon(asyncio.wait(others))
        assert made.turns()[0] == "user"
        assert len(server.seen) == 3


async def test_those_that_wait_for_a_slot_and_are_given_up_take_none():
    gate = asyncio.Event()
    async with FaultServer(held(gate)) as server, bench(server.url, n=4, slots=1) as made:
        asked = list(map(made.ask, range(4)))
        await until(lambda: server.seen)
        asked[1].cancel()
        asked[2].cancel()
        gate.set()
        await soon(asyncio.wait(asked))
        assert len(server.seen) == 2
        assert len(made.calls()) == 2


async def test_all_are_given_up():
    gate = asyncio.Event()
    async with FaultServer(held(gate)) as server, bench(server.url, n=4, slots=2) as made:
        asked = list(map(made.ask, range(4)))
        await until(lambda: len(server.seen) == 2)
        for one in asked:
            one.cancel()
        await soon(asyncio.wait(asked))
        made.assert_at_rest()
        server.answers[:] = [answer]
        found = await soon(made.ask_all())
        assert not any(isinstance(one, Exception) for one in found)


async def test_a_wrong_key_is_sent_at_most_four_times_and_ends_all_that_wait():
    async with FaultServer(http(problem("no such key"), 401)) as server, bench(server.url, n=20, slots=16) as made:
        found = await soon(made.ask_all())
        assert {type(one) for one in found} == {EndpointError}
        assert len(server.seen) <= 4


async def test_an_endpoint_that_fails_is_probed_and_serves_again():
    fails = [http(problem("down"), 503)] * 3
    async with FaultServer(*fails, answer) as server, bench(server.url, n=6, slots=2, attempts=12) as made:
        found = await soon(made.ask_all())
        assert not any(isinstance(one, Exception) for one in found)
        found = await soon(made.ask_all())
        assert not any(isinstance(one, Exception) for one in found)


async def test_what_is_asked_in_the_pass_of_a_hold_is_asked_under_the_next_weights():
    weights, quiet = WeightGate("1"), asyncio.Event()
    async with FaultServer(answer) as server, bench(server.url, n=2, weights=weights) as made:
        asked = asyncio.gather(made.ask(0), made.ask(1))
        await asyncio.sleep(0)
        weights.hold(abort=False, quiet=quiet.set)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert quiet.is_set()
        assert not server.seen
        weights.change("2")
        await soon(asked)
        core = made.table.core
        assert {core.node(core.rollout(number).leaf).namespace for number in range(2)} == {
            made.table.compiled.under("2").namespace
        }


async def test_the_engine_forgets_agents_of_earlier_weights():
    weights = WeightGate("0")
    async with FaultServer(answer) as server, bench(server.url, weights=weights) as made:
        for version in range(1, 5):
            await soon(made.ask_all())
            weights.hold(abort=False, quiet=lambda: None)
            weights.change(str(version))
        engine = made.table.draws.engine
        assert [number for number in range(5) if engine.forget(number)] == [0]


LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.mark.parametrize("loop", LOOPS)
def test_many_turns_with_failures_and_cancellations_leave_nothing_behind(loop: str):
    """Rollouts ask again and again; some are cancelled, and some requests fail."""
    luck = random.Random(loop)

    async def moody(peer: Peer) -> None:
        mood = luck.random()
        if mood < 0.1:
            await peer.send(http(problem("boom"), 500))
        elif mood < 0.2:
            peer.reset()
        elif mood < 0.25:
            await peer.send(http(b"oops"))
        else:
            await answer(peer)

    async def play() -> None:
        async with FaultServer(moody) as server, bench(server.url, n=12, slots=3, attempts=40, siblings=True) as made:
            for _ in range(12):
                asked = list(map(made.ask, range(12)))
                for _ in range(luck.randrange(3)):
                    await asyncio.sleep(0)
                for one in luck.sample(asked, 3):
                    one.cancel()
                await soon(asyncio.wait(asked))
                assert not any(isinstance(one.exception(), EndpointError) for one in asked if not one.cancelled())

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(play())


async def test_slots_that_are_leased_are_taken_and_given_back():
    async with FaultServer(answer) as server, bench(server.url, n=8, slots=4, parties=2) as made:
        shared = made.llm.shared_slots
        assert shared is not None
        asked = list(map(made.ask, range(8)))
        await until(lambda: shared.wishes[0] == 8)
        assert not server.seen
        shared.grant([3])
        await until(lambda: len(made.calls()) == 8)
        await soon(asyncio.wait(asked))
        shared.reclaim([2])
        assert (shared.held[0], shared.repaid()[0]) == (1, 2)
        await soon(made.ask_all())
        shared.grant([3])


async def test_slots_that_are_owed_are_given_back_by_those_in_flight():
    gate = asyncio.Event()
    async with FaultServer(held(gate)) as server, bench(server.url, n=6, slots=3, parties=2) as made:
        shared = made.llm.shared_slots
        assert shared is not None
        shared.grant([3])
        asked = list(map(made.ask, range(6)))
        await until(lambda: len(server.seen) == 3)
        shared.reclaim([2])
        asked[0].cancel()
        await until(asked[0].done)
        assert shared.repaid()[0] == 1
        gate.set()
        await soon(asyncio.wait(asked))
        assert shared.repaid()[0] == 1
        assert shared.held[0] == 1
        shared.grant([2])


async def test_a_server_that_refuses_connections_ends_all_that_wait():
    async with FaultServer(answer) as server:
        url = server.url
    async with bench(url, n=6, slots=2) as made:
        found = await soon(made.ask_all())
        assert {type(one) for one in found} == {EndpointError}
