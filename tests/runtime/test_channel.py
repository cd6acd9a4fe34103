"""Frames over a socket pair, however the bytes arrive."""

from __future__ import annotations

import asyncio
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.errors import WorkerError
from trunkline.runtime.channel import Channel, connect
from trunkline.runtime.wire import (
    MAX_FRAME,
    Ack,
    Batch,
    Begin,
    Bye,
    Delta,
    Done,
    Fatal,
    Hello,
    Ready,
    Stop,
    Work,
    decode_from_worker,
    decode_to_worker,
    encode,
    read_task,
    write_task,
)
from trunkline.store.schema import CallRow, TreeRow
from trunkline.types import Task


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def framed(payloads: list[bytes]) -> bytes:
    return b"".join(len(p).to_bytes(4, "little") + p for p in payloads)


@given(st.lists(st.binary(max_size=60), max_size=12), st.lists(st.integers(1, 40), min_size=1))
@settings(deadline=None, max_examples=60)
def test_frames_survive_any_split(payloads: list[bytes], cuts: list[int]):
    got: list[bytes] = []
    channel = Channel(got.append, lambda _e: None)
    channel.connection_made(FakeTransport())
    data, at, i = framed(payloads), 0, 0
    while at < len(data):
        step = cuts[i % len(cuts)]
        channel.data_received(data[at : at + step])
        at, i = at + step, i + 1
    assert got == payloads


def test_a_frame_too_large_ends_the_channel():
    lost: list[Exception | None] = []
    channel, transport = Channel(lambda _p: None, lost.append), FakeTransport()
    channel.connection_made(transport)
    channel.data_received((MAX_FRAME + 1).to_bytes(4, "little"))
    assert transport.aborted
    channel.connection_lost(None)
    assert isinstance(lost[0], WorkerError)
    assert str(MAX_FRAME) in str(lost[0])
    with pytest.raises(WorkerError, match="exceeds"):
        channel.send(bytes(MAX_FRAME + 1))


async def test_both_ways_over_a_real_pair_and_eof_last():
    left, right = socket.socketpair()
    events: list[object] = []
    over = asyncio.Event()

    def lost(error: Exception | None) -> None:
        events.append(error)
        over.set()

    a = await connect(left, lambda _p: None, lambda _e: None)
    await connect(right, events.append, lost)
    sent = [bytes([i % 251]) * (i * 997) for i in range(120)]
    for payload in sent:
        a.send(payload)
        await a.drain()
    a.close()
    await over.wait()
    assert events == [*sent, None]


async def test_an_error_while_receiving_reaches_the_owner():
    left, right = socket.socketpair()
    over: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def receive(payload: bytes) -> None:
        decode_from_worker(payload)

    a = await connect(left, lambda _p: None, lambda _e: None)
    await connect(right, receive, over.set_result)
    a.send(b"\xc1 is no message")
    assert "MessagePack" in str(await over)
    a.close()


def test_tasks_round_trip():
    task = Task(id="1", messages=[{"role": "user", "content": "q"}], reference=("a",), metadata={"x": [1, None]})
    assert read_task(write_task(task)) == task


CALL = CallRow("http://h/v1", 2, 100, -1, 20, 1, 5, -1, 900, 2**40)


@pytest.mark.parametrize(
    "message",
    [
        Hello(1, "0.1.0"),
        Begin(b"job"),
        Work([(3, write_task(Task.ask("q", "a")))]),
        Ack(7),
        Stop(),
    ],
)
def test_messages_to_workers_round_trip(message: object):
    assert decode_to_worker(encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        Ready(1, "0.1.0", 42, 8),
        Batch(1, [Delta(0, 0, b"d", 2, 1, [CALL])], [Done(0, TreeRow(3, 1, "d", 9, 9, 9, 4, 4, 0), [])], ["m"]),
        Fatal("EndpointError", "no"),
        Bye(),
    ],
)
def test_messages_from_workers_round_trip(message: object):
    assert decode_from_worker(encode(message)) == message
