"""A reply is told of in the step that puts its turns on the tree: nothing can come between a turn and its call."""

from __future__ import annotations

import asyncio

import pytest
from draws_desk import ANSWER, Table, ask_all, completion, open_table

from trunkline.errors import EndpointError
from trunkline.llm.protocol import Reply, Request
from trunkline.llm.request import Sampling


def turns(table: Table) -> int:
    """Model turns on a tree."""
    return sum(table.core.rollout(number).usage[0] for number in range(table.core.rollouts))


def told(table: Table) -> int:
    """Draws of the replies that were told of."""
    return sum(len(reply.choices) for reply in table.outlet.replies)


class Gated:
    """An LLM whose draws are answered when somebody says so; it gives its name as a server's client does."""

    siblings = False

    def __init__(self) -> None:
        self.gates: list[asyncio.Event] = []
        self.problem: Exception | None = None

    async def complete(self, request: Request) -> Reply:
        gate = asyncio.Event()
        self.gates.append(gate)
        await gate.wait()
        if self.problem is not None:
            raise self.problem
        assert request.take is not None
        reply = request.take(completion(["x"]), 0, 1, 5)
        reply.endpoint, reply.queue = "http://h/v1", 7
        return reply

    async def close(self) -> None: ...


async def test_a_draw_is_told_of_while_its_siblings_are_still_out():
    llm = Gated()
    table = open_table(llm, 3)
    asking = asyncio.ensure_future(ask_all(table))
    while len(llm.gates) < 3:
        await asyncio.sleep(0)
    for done, gate in enumerate(reversed(llm.gates), 1):
        gate.set()
        while turns(table) < done:
            assert told(table) == turns(table), "in every step of the loop"
            await asyncio.sleep(0)
        assert told(table) == turns(table) == done
        assert [(reply.endpoint, reply.queue) for reply in table.outlet.replies] == [("http://h/v1", 7)] * done
    await asking


@pytest.mark.parametrize("cancelled", [False, True])
async def test_what_was_paid_before_an_end_is_told(cancelled: bool):
    llm = Gated()
    table = open_table(llm, 3)
    asking = asyncio.ensure_future(ask_all(table))
    while len(llm.gates) < 3:
        await asyncio.sleep(0)
    llm.gates[0].set()
    while turns(table) < 1:
        await asyncio.sleep(0)
    if cancelled:
        asking.cancel()
    else:
        llm.problem = EndpointError("no such key")
        llm.gates[1].set()
    with pytest.raises(BaseException):  # noqa: B017, PT011 - a group, or the cancellation
        await asking
    assert told(table) == turns(table) == 1


class Own:
    """An LLM of somebody's that makes its replies itself, and does not say who answered."""

    async def complete(self, request: Request) -> Reply:
        return Reply([ANSWER], 90, -1, 10, 1, 5)

    async def close(self) -> None: ...


async def test_a_reply_without_an_endpoint_is_named_after_its_class():
    table = open_table(Own(), 2)
    await ask_all(table)
    assert [reply.endpoint for reply in table.outlet.replies] == ["Own", "Own"]


async def test_equal_draws_are_told_of_one_by_one_and_one_was_sent():
    table = open_table(Own(), 3, sampling=Sampling(temperature=0))
    await ask_all(table)
    assert [(reply.endpoint, reply.attempts) for reply in table.outlet.replies] == [("Own", 1), ("Own", 0), ("Own", 0)]
    assert told(table) == turns(table) == 3
