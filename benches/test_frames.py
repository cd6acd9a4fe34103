"""Frames between two processes over a socket pair, one way.

A process sends, this one receives; each loop tick of the sender queues 64 frames (one write). What is counted: frames
that were received and handed out, a second of wall time from the first byte to the last. The floor is the same bytes
through the same kind of socket pair without frames or loop: blocking `sendall` of as many bytes at a time, `recv_into`
one buffer. `messages` is the whole way of a batch: a delta of so many bytes encoded, sent, received and decoded.
"""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import time
from collections.abc import Callable

import pytest
import uvloop

from trunkline.protocol.channel import connect
from trunkline.protocol.messages import Batch, Delta, decode_from_worker, encode

TOGETHER = 64
ROUNDS = 5
SIZES = {64: 200_000, 4096: 60_000, 65536: 6_000}


def elsewhere(work: Callable[[socket.socket], None]) -> tuple[socket.socket, int]:
    """Do something with the other end of a socket pair in another process; returns this end and its pid."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if not pid:
        try:
            ours.close()
            work(theirs)
        finally:
            os._exit(0)
    theirs.close()
    return ours, pid


def floor(size: int, count: int) -> float:
    """Frames a second, were there none: their bytes alone."""
    chunk = bytes(TOGETHER * (size + 4))

    def send(sock: socket.socket) -> None:
        for _ in range(count // TOGETHER):
            sock.sendall(chunk)

    sock, pid = elsewhere(send)
    buffer, began, read = memoryview(bytearray(256 * 1024)), time.perf_counter(), 0
    while some := sock.recv_into(buffer):
        began = began if read else time.perf_counter()
        read += some
    seconds = time.perf_counter() - began
    sock.close()
    os.waitpid(pid, 0)
    return read / (size + 4) / seconds


def frames(size: int, count: int, *, whole: bool) -> float:
    """Frames a second through channels; ``whole`` encodes and decodes a batch of that size each."""
    batch = Batch(1, [Delta(7, 3, bytes(size), 1, 0)], [], [])

    def send(sock: socket.socket) -> None:
        async def main() -> None:
            gone = asyncio.Event()
            channel = await connect(sock, lambda _payload: None, lambda _error: gone.set())
            payload = bytes(size)
            for number in range(count):
                channel.send(encode(batch) if whole else payload)
                if number % TOGETHER == TOGETHER - 1:
                    await asyncio.sleep(0)
                    await channel.drain()
            channel.close()
            await gone.wait()

        uvloop.run(main())

    async def receive(sock: socket.socket) -> float:
        over, seen, began = asyncio.Event(), 0, 0.0

        def take(payload: memoryview) -> None:
            nonlocal seen, began
            began = began or time.perf_counter()
            if whole:
                decode_from_worker(payload)
            seen += 1
            if seen == count:
                over.set()

        channel = await connect(sock, take, lambda _error: over.set())
        await over.wait()
        seconds = time.perf_counter() - began
        channel.abort()
        assert seen == count
        return seen / seconds

    sock, pid = elsewhere(send)
    rate = uvloop.run(receive(sock))
    os.waitpid(pid, 0)
    return rate


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size} B")
def test_frames_a_second(benchmark, size: int):
    count = SIZES[size]
    found: list[tuple[float, float, float]] = []

    def once() -> None:
        found.append((floor(size, count), frames(size, count, whole=False), frames(size, count, whole=True)))

    benchmark.pedantic(once, rounds=ROUNDS)
    bare, framed, messages = (statistics.median(rates) for rates in zip(*found, strict=True))
    print(
        f"\n{size} B: {framed:,.0f} frames/s ({framed * size / 1e9:.2f} GB/s), {messages:,.0f} messages/s encoded and "
        f"decoded; the bytes alone {bare:,.0f}/s: {framed / bare:.2f} and {messages / bare:.2f} of that"
    )
    benchmark.extra_info.update(frames=framed, messages=messages, floor=bare)
