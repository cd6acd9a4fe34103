"""Turns that the turn engine sends: equal greedy requests are one, and what was set aside is settled once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest
from draws_table import Table, open_table
from engine_table import Bench, answer, bench, choices, held, soon, until
from fault_server import FaultServer, Peer, http, problem

from trunkline.errors import BadRequest, LLMError
from trunkline.llm.request import Sampling
from trunkline.rollout.sampling.turns import TurnRequest
from trunkline.rollout.task_budget import Reservation

GREEDY = Sampling(temperature=0.0)


class CountedClaim:
    """A claim that notes what it was settled for."""

    def __init__(self) -> None:
        self.settled: list[Mapping[str, int]] = []

    def settle(self, spent: Mapping[str, int], estimated: Mapping[str, int] | None = None) -> None:
        self.settled.append(spent)


class Purse:
    """A budget that refuses nothing, and remembers its claims."""

    orders_turns = False

    def __init__(self) -> None:
        self.claims: list[CountedClaim] = []

    async def turn(self, *_: object) -> Reservation:
        self.claims.append(claim := CountedClaim())
        return Reservation([claim], {"calls": 1, "tokens": 500}, {})

    def calls(self) -> list[int]:
        """Calls that each claim was settled for; each is settled once."""
        assert all(len(claim.settled) == 1 for claim in self.claims)
        return [claim.settled[0].get("calls", 0) for claim in self.claims]


def limit(*tables: Table) -> Purse:
    """Let all rollouts of some trees pay from one budget."""
    purse: Any = Purse()
    for table in tables:
        for rollout in table.rollouts:
            rollout.task_budget = purse
    return purse


async def ask(*tables: Table) -> list[Any]:
    """Let all rollouts of some trees ask at once; turns or errors."""
    asked = [rollout.ask(table.compiled) for table in tables for rollout in table.rollouts]
    return await soon(asyncio.gather(*asked, return_exceptions=True))


def others(made: Bench, *tasks: str) -> list[Table]:
    """Trees of other tasks with two rollouts each, which ask the same LLM."""
    table = made.table
    return [open_table(made.llm, 2, table.draws, sampling=table.compiled.agent.sampling, task=task) for task in tasks]


@pytest.mark.parametrize("engine", [True, False])
async def test_equal_greedy_requests_of_several_trees_are_sent_once(engine: bool):
    async with FaultServer(answer) as server, bench(server.url, n=3, sampling=GREEDY, engine=engine) as made:
        tables = [made.table, *others(made, "q", "other")]
        found = await ask(*tables)
        assert len({one.content for one in found}) == 1
        assert len(server.seen) == 1
        replies = [reply for table in tables for reply in table.sink.replies]
        assert [reply.attempts for reply in replies] == [1] + [0] * 6
        assert {(reply.endpoint, reply.agent, len(reply.choices)) for reply in replies} == {(server.url, "agent", 1)}
        assert {(reply.queue, reply.first) for reply in replies[1:]} == {(0, -1)}
        await ask(*others(made, "q"))
        assert len(server.seen) == 2, "what is not in flight any more is sent again: this is no cache"


@pytest.mark.parametrize("engine", [True, False])
async def test_equal_greedy_requests_fail_together_and_are_sent_again_once(engine: bool):
    fails = http(problem("boom"), 500)
    async with FaultServer(fails, answer) as server, bench(server.url, sampling=GREEDY, engine=engine) as made:
        tables = [made.table, *others(made, "q")]
        purse = limit(*tables)
        found = await ask(*tables)
        assert len({one.content for one in found}) == 1
        assert len(server.seen) == 2
        assert sorted(reply.attempts for table in tables for reply in table.sink.replies) == [0, 0, 2]
        assert sorted(purse.calls()) == [0, 0, 1]


@pytest.mark.parametrize("first", [0, 1])
async def test_an_equal_request_goes_on_for_those_that_still_wait(first: int):
    gate = asyncio.Event()
    async with FaultServer(held(gate)) as server, bench(server.url, n=2, sampling=GREEDY) as made:
        purse = limit(made.table)
        asked = list(map(made.ask, range(2)))
        await until(lambda: server.seen)
        asked[first].cancel()
        await asyncio.sleep(0)
        gate.set()
        await soon(asyncio.wait(asked))
        assert asked[1 - first].result().content
        assert len(server.seen) == 1
        assert sum(purse.calls()) == 1


async def test_an_equal_request_that_nothing_waits_for_is_given_up():
    gate = asyncio.Event()
    async with FaultServer(held(gate), answer) as server, bench(server.url, n=3, sampling=GREEDY) as made:
        purse = limit(made.table)
        asked = list(map(made.ask, range(3)))
        await until(lambda: server.seen)
        for one in asked:
            one.cancel()
        await soon(asyncio.wait(asked))
        await until(lambda: not made.table.draws.engine.in_flight()[0])
        assert sorted(purse.calls()) == [0, 0, 1], "what was sent counts as if it cost the most that it can"


@pytest.mark.parametrize("siblings", [True, False])
async def test_turns_are_paid_for_as_their_usage_says(siblings: bool):
    async with FaultServer(answer) as server, bench(server.url, n=3, siblings=siblings) as made:
        purse = limit(made.table)
        await made.ask_all()
        assert purse.calls() == [1, 1, 1]
        spent = [claim.settled[0] for claim in purse.claims]
        assert [one["prompt"] for one in spent] == ([90, 0, 0] if siblings else [90, 90, 90])
        assert [one["generated"] for one in spent] == [10, 10, 10]
        assert len(server.seen) == (1 if siblings else 3)


async def test_a_turn_that_waits_for_a_slot_and_is_given_up_costs_nothing():
    gate = asyncio.Event()
    async with FaultServer(held(gate)) as server, bench(server.url, n=2, slots=1) as made:
        purse = limit(made.table)
        asked = list(map(made.ask, range(2)))
        await until(lambda: server.seen)
        asked[1].cancel()
        gate.set()
        await soon(asyncio.wait(asked))
        assert purse.calls() == [1, 0]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sampling", [GREEDY, Sampling()])
async def test_whatever_happens_each_claim_is_settled_once(seed: int, sampling: Sampling):
    luck = random.Random(seed)

    async def moody(peer: Peer) -> None:
        mood = luck.random()
        if mood < 0.1:
            await peer.send(http(problem("boom"), 500))
        elif mood < 0.2:
            peer.reset()
        elif mood < 0.3:
            await peer.send(http(choices(peer.seen.body, "one")))
        else:
            await answer(peer)

    async with (
        FaultServer(moody) as server,
        bench(server.url, n=8, slots=3, attempts=40, siblings=True, sampling=sampling) as made,
    ):
        purse = limit(made.table)
        for _ in range(12):
            asked = list(map(made.ask, range(8)))
            for _ in range(luck.randrange(4)):
                await asyncio.sleep(0)
            if luck.random() < 0.5:
                await until(lambda: server.seen)
            for one in luck.sample(asked, 4):
                one.cancel()
            await soon(asyncio.wait(asked))
            await until(lambda: not made.table.draws.engine.in_flight()[0] and not made.table.desk.sent)
            assert len(purse.calls()) == len(purse.claims)


@pytest.mark.parametrize("held_back", [True, False])
async def test_an_equal_request_outlives_the_tree_that_asked_first(held_back: bool):
    gate = asyncio.Event()
    async with FaultServer(held(gate)) as server, bench(server.url, slots=1, sampling=GREEDY) as made:
        before = open_table(made.llm, 1, made.table.draws, task="before")
        tables = [open_table(made.llm, n, made.table.draws, sampling=GREEDY, task=f"{n}") for n in (1, 2)]
        purse = limit(before, *tables)
        first = [asyncio.create_task(before.rollouts[0].ask(before.compiled))] if held_back else []
        if held_back:
            await until(lambda: server.seen)
        asked = [asyncio.create_task(one.ask(table.compiled)) for table in tables for one in table.rollouts]
        await until(lambda: held_back or server.seen)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asked[0].cancel()
        await asyncio.wait(asked[:1])
        tables[0].core.close(0, "cancelled")
        tables[0].desk.close()
        gate.set()
        await soon(asyncio.wait([*first, *asked]))
        assert [one.result().content for one in asked[1:]]
        assert len(server.seen) == 1 + held_back
        assert sorted(purse.calls()) == [0, 0, *[1] * (1 + held_back)]


@pytest.mark.parametrize(("engine", "cancelled"), [(True, True), (True, False), (False, False)])
async def test_a_reply_that_brings_a_program_no_turn_is_told_as_a_call(engine: bool, cancelled: bool):
    async def too_many(peer: Peer) -> None:
        reply = choices(peer.seen.body)
        call = {"id": "", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        reply["choices"][0]["message"]["tool_calls"] = [call] * 1001
        await peer.send(http(reply))

    async with FaultServer(answer if cancelled else too_many) as server, bench(server.url, engine=engine) as made:
        table = made.table
        asked = asyncio.create_task(table.desk.ask_later(TurnRequest(table.compiled, 0, 1, 0)))
        if cancelled:
            told = table.draws.dispatcher.turned

            def turned(*found: Any) -> None:
                told(*found)
                asked.cancel()

            table.draws.dispatcher.turned = turned  # type: ignore[method-assign]
        await soon(asyncio.wait([asked]))
        with pytest.raises(asyncio.CancelledError if cancelled else LLMError):
            asked.result()
        assert [(reply.attempts, reply.generated) for reply in table.sink.replies] == [(1, 10)]


@pytest.mark.parametrize("engine", [True, False])
async def test_equal_greedy_requests_that_a_server_refuses_are_not_sent_again(engine: bool):
    refuses = http(problem("no such parameter"), 400)
    async with FaultServer(refuses) as server, bench(server.url, sampling=GREEDY, engine=engine) as made:
        tables = [made.table, *others(made, "q")]
        found = await ask(*tables)
        assert [type(one) for one in found] == [BadRequest] * 3
        assert len(server.seen) == 1
        assert [reply.attempts for table in tables for reply in table.sink.replies] == [1]
