"""Frames over a socket pair, however the bytes arrive."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc

import pytest
from call_logs import delta_with
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline._core import CoreTree
from trunkline.errors import WorkerError
from trunkline.protocol import channel as channels
from trunkline.protocol.channel import Channel, attach, connect
from trunkline.protocol.messages import (
    MAX_FRAME,
    Ack,
    AssignTasks,
    Batch,
    Begin,
    Bye,
    Delta,
    Done,
    Fatal,
    Hello,
    StopRun,
    WorkerReady,
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


def arrive(channel: Channel, data: bytes) -> int:
    """Let some bytes arrive, as far as the channel has room for them; returns how many."""
    room = channel.get_buffer(-1)
    size = min(len(room), len(data))
    assert size, "there is always room for more"
    room[:size] = data[:size]
    channel.buffer_updated(size)
    return size


@given(st.lists(st.binary(max_size=60), max_size=12), st.lists(st.integers(1, 40), min_size=1), st.integers(4, 70))
@settings(max_examples=100)
def test_frames_survive_any_split(payloads: list[bytes], cuts: list[int], room: int):
    got: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channels, "_ROOM", room)  # so that frames come to its end, and beyond
        channel = Channel(lambda payload: got.append(bytes(payload)), lambda _e: None)
        channel.connection_made(FakeTransport())
        data, at, i = framed(payloads), 0, 0
        while at < len(data):
            at, i = at + arrive(channel, data[at : at + cuts[i % len(cuts)]]), i + 1
    assert got == payloads


def test_a_large_frame_has_a_buffer_of_its_size_and_leaves_none_behind():
    sizes: list[int] = []
    channel = Channel(lambda payload: sizes.append(len(payload)), lambda _e: None)
    channel.connection_made(FakeTransport())
    usual = len(channel.get_buffer(-1))
    data = framed([bytes(9), bytes(5_000_000), bytes(7)])
    at, steps = 0, 0
    while at < len(data):
        at, steps = at + arrive(channel, data[at:]), steps + 1
    assert sizes == [9, 5_000_000, 7]
    assert steps <= 5, "the rest of a frame is read at once"
    assert len(channel.get_buffer(-1)) == usual


def test_a_frame_too_large_ends_the_channel():
    lost: list[Exception | None] = []
    channel, transport = Channel(lambda _p: None, lost.append), FakeTransport()
    channel.connection_made(transport)
    arrive(channel, (MAX_FRAME + 1).to_bytes(4, "little"))
    assert transport.aborted
    channel.connection_lost(None)
    assert isinstance(lost[0], WorkerError)
    assert str(MAX_FRAME) in str(lost[0])


@given(st.lists(st.binary(max_size=60), max_size=12), st.lists(st.integers(1, 40), min_size=1), st.integers(1, 20))
@settings(max_examples=100)
def test_a_message_longer_than_a_frame_arrives_as_one(payloads: list[bytes], cuts: list[int], most: int):
    got: list[bytes] = []
    sent: list[bytes] = []

    async def send() -> None:
        channel = Channel(lambda _payload: None, lambda _e: None)
        for payload in payloads:
            channel.send(payload)
        sent.extend(channel._out)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channels, "MAX_FRAME", most)
        asyncio.run(send())
        assert all(len(part) <= max(most, 4) for part in sent)
        channel = Channel(lambda payload: got.append(bytes(payload)), lambda _e: None)
        channel.connection_made(FakeTransport())
        data, at, i = b"".join(sent), 0, 0
        while at < len(data):
            at, i = at + arrive(channel, data[at : at + cuts[i % len(cuts)]]), i + 1
    assert got == payloads


async def test_both_ways_over_a_real_pair_and_eof_last():
    left, right = socket.socketpair()
    events: list[object] = []
    over = asyncio.Event()

    def lost(error: Exception | None) -> None:
        events.append(error)
        over.set()

    a = await connect(left, lambda _p: None, lambda _e: None)
    await connect(right, lambda payload: events.append(bytes(payload)), lost)
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


async def test_a_frame_that_was_damaged_on_its_way_ends_the_channel():
    """A length that lies: what follows is read as a frame, and is none."""
    left, right = socket.socketpair()
    over: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    got: list[object] = []
    await connect(right, lambda payload: got.append(decode_from_worker(payload)), over.set_result)
    data = bytearray(framed([encode(Bye()), encode(WorkerReady(1, "0.1.0", 42, 8))]))
    data[len(framed([encode(Bye())]))] -= 3
    left.sendall(data)
    assert isinstance(await over, Exception)
    assert got == [Bye()], "what came before it counts"
    left.close()


async def test_a_reader_that_is_slow_holds_the_sender_up_and_no_memory_grows():
    left, right = socket.socketpair()
    payload, count, read = bytes(64 * 1024), 2_000, 0
    over = asyncio.Event()

    def receive(piece: memoryview) -> None:
        nonlocal read
        read += len(piece)

    sender = await connect(left, lambda _p: None, lambda _e: None)
    reader = Channel(receive, lambda _e: over.set())
    tracemalloc.start()
    sent = 0

    async def send() -> None:
        nonlocal sent
        for _ in range(count):
            sender.send(payload)
            sent += 1
            await asyncio.sleep(0)
            await sender.drain()
        sender.close()

    sending = asyncio.ensure_future(send())
    await asyncio.sleep(0.1)
    assert sent < 32, "nobody reads: it waits after what the socket and the transport hold"
    await attach(reader, right)
    await asyncio.gather(sending, over.wait())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert read == count * len(payload)
    assert peak < 16 * len(payload), "128 MB went through"


async def test_a_hundred_thousand_messages_arrive_in_order():
    left, right = socket.socketpair()
    over, next_one = asyncio.Event(), 0

    def receive(payload: memoryview) -> None:
        nonlocal next_one
        batch = decode_from_worker(payload)
        assert isinstance(batch, Batch)
        assert batch.batch == next_one
        next_one += 1

    sender = await connect(left, lambda _p: None, lambda _e: None)
    await connect(right, receive, lambda _e: over.set())
    for number in range(100_000):
        sender.send(encode(Batch(number, [Delta(0, number, bytes(number % 700), 1, 0)], [], [])))
        if number % 256 == 0:
            await asyncio.sleep(0)
            await sender.drain()
    sender.close()
    await over.wait()
    assert next_one == 100_000


def test_tasks_round_trip():
    task = Task(id="1", messages=[{"role": "user", "content": "q"}], reference=("a",), metadata={"x": [1, None]})
    assert read_task(write_task(task)) == task


CALLED = delta_with(CoreTree(), [CallRow("http://h/v1", 2, 100, -1, 20, 1, 5, -1, 900, 2**40)])


@pytest.mark.parametrize(
    "message",
    [
        Hello(1, "0.1.0"),
        Begin(b"job"),
        AssignTasks([(3, write_task(Task.ask("q", "a")))]),
        Ack(7),
        StopRun(),
    ],
)
def test_messages_to_workers_round_trip(message: object):
    assert decode_to_worker(encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        WorkerReady(1, "0.1.0", 42, 8),
        Batch(1, [Delta(0, 0, CALLED, 2, 1)], [Done(0, TreeRow(3, 1, "d", 9, 9, 9, 4, 4, 0), [])], ["m"]),
        Fatal("EndpointError", "no"),
        Bye(),
    ],
)
def test_messages_from_workers_round_trip(message: object):
    assert decode_from_worker(encode(message)) == message
