"""What is out, for how long, and how it is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from trunkline.llm.types import ToolCall
from trunkline.rollout.sampling.inflight import TurnGate


@contextmanager
def calling(gate: TurnGate, *names: str, since: float = 0.0) -> Iterator[None]:
    """The tool calls of a turn run."""
    gate.calls[names] = [ToolCall("", name, "{}") for name in names], since
    try:
        yield
    finally:
        del gate.calls[names]


def test_the_oldest_of_each_kind_is_told():
    now = 100.0
    gate = TurnGate(lambda: now)
    assert (gate.requests, gate.tools, gate.idle) == ((0, 0.0), (0, "", 0.0), True)
    with gate.request():
        now = 101.0
        with calling(gate, "visit", "search", since=now):
            now = 104.0
            with gate.request(), calling(gate, "count", since=now):
                assert gate.requests == (2, 4.0)
                assert gate.tools == (3, "visit", 3.0)
        assert gate.tools == (0, "", 0.0)
        assert not gate.idle
    assert gate.idle


async def test_nothing_begins_once_it_drains_and_what_is_out_is_waited_for():
    gate, back = TurnGate(), asyncio.Event()

    async def request() -> str:
        await gate.enter()
        with gate.request():
            await back.wait()
        return "a reply"

    first = asyncio.create_task(request())
    await asyncio.sleep(0)
    draining = asyncio.create_task(gate.drained(60.0))
    await asyncio.sleep(0)
    second = asyncio.create_task(request())
    await asyncio.sleep(0.1)
    assert not draining.done()
    back.set()
    await asyncio.wait_for(draining, 10)
    assert first.result() == "a reply"
    assert not second.done()
    assert gate.requests[0] == 0
    second.cancel()


async def test_a_drain_ends_with_its_time_whatever_is_out():
    gate = TurnGate()
    with calling(gate, "sleep"):
        await asyncio.wait_for(gate.drained(0.05), 10)
        assert not gate.idle


async def test_a_call_that_fails_is_out_no_more():
    gate = TurnGate()
    with pytest.raises(ValueError, match="x"), gate.request(), calling(gate, "a"):
        raise ValueError("x")
    assert gate.idle


async def test_a_drain_does_not_wait_for_what_is_never_sent():
    gate = TurnGate()
    with gate.request(), gate.request():
        out = 2
        draining = asyncio.create_task(gate.drained(60.0, lambda: 2 - out))
        await asyncio.sleep(0.1)
        assert not draining.done()
        out = 0
        await asyncio.wait_for(draining, 10)


def test_a_name_that_a_model_made_up_is_told_in_a_form_that_can_be_printed():
    gate = TurnGate()
    with calling(gate, "\x1b[2J\ud800" + "x" * 10**6):
        _, name, _ = gate.tools
    assert name.startswith("\\x1b[2J\\ud800xxx")
    assert len(name) == 60
