"""The actor without Ray: what it is told, and what it has to say."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest
from atlas import CAPITALS, agent, tasks
from foreign import capital_cities, serving
from hypothesis import given
from hypothesis import strategies as st

from trunkline._core import __version__
from trunkline.backends.ray import Actor, portion
from trunkline.errors import WorkerError
from trunkline.llm.config import LLM
from trunkline.protocol.job import Job, pack_job
from trunkline.protocol.messages import (
    PROTOCOL,
    Ack,
    AssignTasks,
    Batch,
    Begin,
    Bye,
    Fatal,
    Hello,
    StopRun,
    WorkerReady,
    decode_from_worker,
    encode,
    write_task,
)
from trunkline.strategies.chain import Chain


def begin(url: str) -> list[bytes]:
    job = Job(agent=agent(), strategy=Chain(1), reward=None, llm=LLM(url), seed=1)
    return [encode(Hello(PROTOCOL, __version__)), encode(Begin(pack_job(job)))]


async def test_what_is_told_is_done_and_what_comes_of_it_collected(caplog: pytest.LogCaptureFixture):
    caplog.set_level(
        logging.WARNING, "trunkline"
    )  # It takes the level of its controller; afterwards this one is put back.
    actor = Actor()
    with serving(capital_cities) as server:
        collecting = asyncio.ensure_future(actor.collect())
        await asyncio.sleep(0)
        assert not collecting.done()
        await actor.tell(begin(server.url))
        assert [type(decode_from_worker(one)) for one in await collecting] == [WorkerReady]
        await actor.tell([encode(AssignTasks([(i, write_task(task)) for i, task in enumerate(tasks())]))])
        done: set[int] = set()
        while len(done) < len(CAPITALS):
            for payload in await actor.collect():
                batch = decode_from_worker(payload)
                assert isinstance(batch, Batch)
                done |= {one.task for one in batch.done}
                await actor.tell([encode(Ack(batch.batch))])
        await actor.tell([encode(StopRun())])
        assert isinstance(decode_from_worker((await actor.collect())[-1]), Bye)
    await actor.leave()


async def test_a_controller_of_another_build_is_refused():
    actor = Actor()
    await actor.tell([encode(Hello(PROTOCOL, "0.0.0"))])
    (refusal,) = [decode_from_worker(one) for one in await actor.collect()]
    assert isinstance(refusal, Fatal)
    assert "0.0.0" in refusal.message


async def test_what_makes_no_sense_is_an_error_of_the_call():
    actor = Actor()
    with pytest.raises(WorkerError, match="does not take Begin now"):
        await actor.tell(begin("http://127.0.0.1:9/v1")[1:])
    with pytest.raises(msgspec.MsgspecError):
        await actor.tell([b"\xc1"])


@given(st.lists(st.integers(0, 12), min_size=1))
def test_portions_are_all_of_it_in_order_and_no_larger_than_they_must_be(megabytes: list[int]):
    payloads = [bytes(size) for size in (1024 * 1024 * size for size in megabytes)]
    left, seen = payloads, []
    while left:
        part = portion(left)
        assert part
        assert len(part) == 1 or sum(map(len, part)) <= 8 * 1024 * 1024
        seen += part
        left = left[len(part) :]
    assert [len(one) for one in seen] == [len(one) for one in payloads]
