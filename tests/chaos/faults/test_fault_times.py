"""Servers that are slow or silent: each wait has its own bound, and its own words."""

from __future__ import annotations

import asyncio
import time

import pytest
from fault_client import REQUEST, client, fails
from fault_server import OK, FaultServer, Peer

from trunkline.errors import LLMError

LONG = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"


async def silent_at_once(peer: Peer) -> None:
    await peer.silence()


async def silent_in_the_headers(peer: Peer) -> None:
    await peer.send(OK[:20])
    await peer.silence()


async def silent_after_the_headers(peer: Peer) -> None:
    await peer.send(LONG)
    await peer.silence()


async def silent_in_the_body(peer: Peer) -> None:
    await peer.send(LONG + b'{"choices')
    await peer.silence()


async def silent_between_chunks(peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
    await peer.silence()


async def silent_in_a_body_without_end(peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\n\r\n{")
    await peer.silence()


async def drips(peer: Peer) -> None:
    await peer.send(LONG)
    while True:
        await peer.send(b" ")
        await asyncio.sleep(0.01)


async def drips_headers(peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        await peer.send(b"x")
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("script", "bounds", "words"),
    [
        (silent_at_once, {"timeout": 0.05}, "no whole answer within 0.05 s"),
        (silent_in_the_headers, {"timeout": 0.05}, "no whole answer within 0.05 s"),
        (silent_after_the_headers, {"idle": 0.05}, "nothing came for 0.05 s"),
        (silent_in_the_body, {"idle": 0.05}, "nothing came for 0.05 s"),
        (silent_between_chunks, {"idle": 0.05}, "nothing came for 0.05 s"),
        (silent_in_a_body_without_end, {"idle": 0.05}, "nothing came for 0.05 s"),
        (drips, {"timeout": 0.08, "idle": 0.5}, "no whole answer within 0.08 s"),
        (drips_headers, {"timeout": 0.08, "idle": 0.01}, "no whole answer within 0.08 s"),
    ],
)
async def test_a_wait_ends_and_is_named(transport, script, bounds, words):
    async with FaultServer(script) as server, client(transport, server.url, attempts=2, **bounds) as llm:
        start = time.monotonic()
        error = await fails(llm, LLMError, words)
        assert 0.09 <= time.monotonic() - start < 20
    assert (error.attempts, error.retryable, len(server.seen)) == (2, True, 2)


async def test_a_server_may_think_longer_than_it_may_be_silent(transport):
    async def thinks(peer: Peer) -> None:
        await asyncio.sleep(0.15)
        await peer.send(OK)

    async with FaultServer(thinks) as server, client(transport, server.url, idle=0.05) as llm:
        reply = await llm.complete(REQUEST)
    assert reply.attempts == 1
    assert 140_000 <= reply.first <= reply.micros


async def test_a_body_that_goes_on_is_not_silent(transport):
    async def strolls(peer: Peer) -> None:
        for start in range(0, len(OK), 60):
            await peer.send(OK[start : start + 60])
            await asyncio.sleep(0.03)

    async with FaultServer(strolls) as server, client(transport, server.url, idle=0.15) as llm:
        assert (await llm.complete(REQUEST)).attempts == 1


async def test_cancelling_gives_everything_back(transport):
    async with FaultServer(silent_in_the_body) as server, client(transport, server.url) as llm:
        waiting = [asyncio.ensure_future(llm.complete(REQUEST)) for _ in range(20)]
        await asyncio.sleep(0.02)
        for task in waiting:
            task.cancel()
        assert all(
            isinstance(result, asyncio.CancelledError)
            for result in await asyncio.gather(*waiting, return_exceptions=True)
        )
        server.answers = [OK]
        await asyncio.gather(*(llm.complete(REQUEST) for _ in range(20)))


async def test_closing_ends_what_is_in_flight(transport):
    async with FaultServer(silent_at_once) as server, client(transport, server.url, attempts=1) as llm:
        waiting = asyncio.ensure_future(llm.complete(REQUEST))
        await asyncio.sleep(0.02)
        await llm.close()
        with pytest.raises(LLMError):
            await asyncio.wait_for(waiting, 1)
        await llm.close()
        await fails(llm, LLMError, "the client is closed")
