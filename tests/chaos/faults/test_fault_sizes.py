"""Answers that are far too large: memory stays bounded, whatever they say or do not say of their size."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest
from fault_client import REQUEST, client, fails, resident
from fault_server import GOOD, OK, FaultServer, Peer, http

from trunkline.errors import LLMError

LARGEST = 1_000_000
PIECE = b" " * 65_536
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def announced(peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 200000000\r\n\r\n")
    for _ in range(200_000_000 // len(PIECE)):
        await peer.send(PIECE)


async def chunked(peer: Peer) -> None:
    await peer.send(CHUNKED)
    for _ in range(200_000_000 // len(PIECE)):
        await peer.send(b"10000\r\n" + PIECE + b"\r\n")


async def without_end(peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
    for _ in range(200_000_000 // len(PIECE)):
        await peer.send(PIECE)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (announced, "200,000,000 bytes, more than 1,000,000"),
        (chunked, "more than 1,000,000 bytes"),
        (without_end, "more than 1,000,000 bytes"),
    ],
)
async def test_a_body_of_200_mb_is_not_read(transport, script, words):
    async with FaultServer(script) as server, client(transport, server.url, largest=LARGEST) as llm:
        before = resident()
        error = await fails(llm, LLMError, words)
        assert (error.attempts, error.retryable) == (1, False)
        assert resident() - before < 30_000_000
    assert len(server.seen) == 1


async def test_a_body_as_large_as_allowed_is_read(transport):
    whole = http(GOOD | {"pad": "x" * 300_000})
    size = len(whole.split(b"\r\n\r\n", 1)[1])
    async with FaultServer(whole) as server:
        async with client(transport, server.url, largest=size) as llm:
            for _ in range(2):
                assert (await llm.complete(REQUEST)).attempts == 1
            assert server.connections == 1
        async with client(transport, server.url, largest=size - 1) as llm:
            await fails(llm, LLMError, "more than")


@pytest.fixture(scope="module")
def bomb() -> bytes:
    return http(gzip.compress(b" " * 200_000_000, 1), headers={"Content-Encoding": "gzip"})


async def test_a_bomb_is_not_blown_up(transport, bomb):
    async with FaultServer(bomb) as server, client(transport, server.url, largest=LARGEST) as llm:
        before = resident()
        error = await fails(llm, LLMError, "more than 1,000,000 bytes")
        assert (error.attempts, error.retryable) == (1, False)
        assert resident() - before < 30_000_000


async def test_a_megabyte_of_headers_is_refused(transport):
    async def one(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nX-Big: " + b"a" * 1_000_000 + b"\r\nContent-Length: 0\r\n\r\n")

    async def many(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\n" + b"X: yyyyyyyyyyyyyyyy\r\n" * 50_000 + b"Content-Length: 0\r\n\r\n")

    async def interim(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 102 Wait\r\n\r\n" * 50_000 + OK)

    for flood in (one, many, interim) if transport.__name__ == "DirectTransport" else (one, many):
        async with FaultServer(flood, OK) as server, client(transport, server.url) as llm:
            assert (await llm.complete(REQUEST)).attempts == 2
            server.answers = [flood]
            await fails(llm, LLMError, "gave no answer")


async def test_a_body_in_tiny_chunks_costs_no_more_than_its_bytes(transport):
    body = http(GOOD | {"pad": "x" * 20_000}).split(b"\r\n\r\n", 1)[1]
    tiny = CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    async with FaultServer(tiny) as server, client(transport, server.url) as llm:
        tracemalloc.start()
        try:
            assert (await llm.complete(REQUEST)).choices[0].content == "hello"
            assert tracemalloc.get_traced_memory()[1] < 2_000_000
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("size", [0, 3, 70_000, 3_000_000])
async def test_a_body_in_pieces_arrives_as_one(transport, size):
    pieces = [b"[", *(bytes([65 + place % 26]) * size for place in range(4)), b"", b"]"]
    made = transport(2)
    async with FaultServer(OK) as server:
        for body in (pieces, b"".join(pieces), pieces):
            assert (await made.post(server.url, {}, body, 20.0)).status == 200
        assert [len(one.body) for one in server.seen] == [4 * size + 2] * 3
        assert {one.body for one in server.seen} == {b"".join(pieces)}
    await made.close()
