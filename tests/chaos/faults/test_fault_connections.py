"""Connections that do not come about, and answers that break off or are no HTTP."""

from __future__ import annotations

import asyncio
import socket

import pytest
from fault_client import REQUEST, client, fails
from fault_server import GOOD, OK, FaultServer, Peer, http

from trunkline.errors import EndpointError, LLMError
from trunkline.llm.http.direct_transport import DirectTransport
from trunkline.llm.http.transport import TransportError

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
HEAD, BODY = OK.split(b"\r\n\r\n", 1)


async def reset_at_once(peer: Peer) -> None:
    peer.reset()


async def reset_in_the_headers(peer: Peer) -> None:
    await peer.send(HEAD[:20])
    await asyncio.sleep(0.01)
    peer.reset()


async def reset_after_the_headers(peer: Peer) -> None:
    await peer.send(HEAD + b"\r\n\r\n")
    await asyncio.sleep(0.01)
    peer.reset()


async def reset_in_the_body(peer: Peer) -> None:
    await peer.send(OK[:-10])
    await asyncio.sleep(0.01)
    peer.reset()


async def closed_at_once(peer: Peer) -> None:
    peer.hang_up()


async def closed_in_the_headers(peer: Peer) -> None:
    await peer.send(HEAD[:20])
    peer.hang_up()


async def shorter_than_it_said(peer: Peer) -> None:
    await peer.send(http(headers={"Content-Length": str(len(BODY) + 10)}))
    peer.hang_up()


async def half_closed_in_the_body(peer: Peer) -> None:
    await peer.send(OK[:-10])
    peer.half_close()
    await peer.silence()


async def half_closed_in_the_headers(peer: Peer) -> None:
    await peer.send(HEAD[:20])
    peer.half_close()
    await peer.silence()


async def half_closed_at_once(peer: Peer) -> None:
    peer.half_close()
    await peer.silence()


async def chunks_that_end_early(peer: Peer) -> None:
    await peer.send(CHUNKED + b"5\r\nhello\r\n")
    peer.hang_up()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (reset_at_once, ""),
        (reset_in_the_headers, ""),
        (reset_after_the_headers, ""),
        (reset_in_the_body, ""),
        (closed_at_once, "closed before an answer"),
        (closed_in_the_headers, ""),
        (shorter_than_it_said, "broke off"),
        (half_closed_at_once, "closed before an answer"),
        (half_closed_in_the_headers, ""),
        (half_closed_in_the_body, "broke off"),
        (chunks_that_end_early, "broke off"),
    ],
)
async def test_a_connection_that_breaks_is_asked_again_on_another(transport, script, words):
    async with FaultServer(script, OK) as server, client(transport, server.url) as llm:
        assert (await llm.complete(REQUEST)).attempts == 2
        assert (len(server.seen), server.connections) == (2, 2)
    async with FaultServer(script) as server, client(transport, server.url) as llm:
        error = await fails(llm, LLMError, "gave no answer", words, "(after 3 attempts)")
        assert (error.attempts, error.retryable, len(server.seen)) == (3, True, 3)


@pytest.mark.parametrize(
    "said",
    [
        CHUNKED + b"zz\r\nhello\r\n",
        CHUNKED + b"-5\r\nhello\r\n",
        CHUNKED + b"fffffffffffffffff\r\nhello\r\n",
        CHUNKED + b"5\r\nhello!!\r\n0\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.9\r\n\r\n",
        b"\x00\x01\x02\x03",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\x00b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n: nameless\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 7\r\n\r\nhello",
    ],
)
async def test_what_is_no_http_is_asked_again(transport, said):
    async def speak(peer: Peer) -> None:
        await peer.send(said)
        await peer.silence()

    async with FaultServer(speak, OK) as server, client(transport, server.url) as llm:
        assert (await llm.complete(REQUEST)).attempts == 2
        server.answers = [speak]
        error = await fails(llm, LLMError, "gave no answer", "the answer is not HTTP")
        assert (error.attempts, error.retryable) == (3, True)
    assert len(server.seen) == 5


async def test_a_switch_to_another_protocol_is_no_answer(transport):
    switch = b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nhello"

    async def speak(peer: Peer) -> None:
        await peer.send(switch)
        peer.hang_up()

    async with FaultServer(speak) as server, client(transport, server.url) as llm:
        with pytest.raises(LLMError):
            await llm.complete(REQUEST)


@pytest.mark.parametrize("pieces", [1, 7, 10_000])
async def test_an_answer_may_come_in_pieces(transport, pieces):
    async def dribble(peer: Peer) -> None:
        for start in range(0, len(OK), max(1, len(OK) // pieces)):
            await peer.send(OK[start : start + max(1, len(OK) // pieces)])
            await asyncio.sleep(0)

    async with FaultServer(dribble) as server, client(transport, server.url) as llm:
        for _ in range(2):
            assert (await llm.complete(REQUEST)).choices[0].content == "hello"
    assert server.connections == 1


async def test_chunks_extensions_and_trailers_are_read(transport):
    chunks = b"5;name=value\r\n" + BODY[:5] + b"\r\n%x\r\n" % (len(BODY) - 5) + BODY[5:] + b"\r\n0\r\nX-Sum: 5\r\n\r\n"
    async with FaultServer(CHUNKED + chunks) as server, client(transport, server.url) as llm:
        for _ in range(2):
            assert (await llm.complete(REQUEST)).choices[0].content == "hello"
    assert server.connections == 1


async def test_a_fin_right_after_a_whole_answer_does_no_harm(transport):
    async def answer(peer: Peer) -> None:
        await peer.send(OK)
        peer.half_close()
        await peer.silence()

    async with FaultServer(answer) as server, client(transport, server.url) as llm:
        for _ in range(3):
            assert (await llm.complete(REQUEST)).attempts == 1
            await asyncio.sleep(0.01)
    assert server.connections == 3


async def test_a_body_may_end_with_the_connection(transport):
    async def answer(peer: Peer) -> None:
        await peer.send(b"HTTP/1.0 200 OK\r\n\r\n" + BODY)
        peer.half_close()

    async with FaultServer(answer) as server, client(transport, server.url) as llm:
        for _ in range(2):
            assert (await llm.complete(REQUEST)).choices[0].content == "hello"
    assert server.connections == 2


async def test_bytes_after_an_answer_never_become_the_next_one(transport):
    """A server, or someone between, that sends two answers to one request must not answer the next request."""
    poison = http(GOOD | {"model": "poison"})

    async def answer(peer: Peer) -> None:
        await peer.send(OK + poison)

    async with FaultServer(answer, OK) as server, client(transport, server.url) as llm:
        for _ in range(2):
            assert (await llm.complete(REQUEST)).served == "served-model"
    assert server.connections == 2


async def test_a_server_that_restarts_is_found_again(transport):
    async with FaultServer(OK) as server, client(transport, server.url) as llm:
        await asyncio.gather(*(llm.complete(REQUEST) for _ in range(8)))
        await server.stop()
        async with FaultServer(OK, port=server.port) as again:
            replies = await asyncio.gather(*(llm.complete(REQUEST) for _ in range(8)))
            assert {reply.choices[0].content for reply in replies} == {"hello"}
            assert len(again.seen) == 8


async def test_a_server_that_is_gone_for_good_ends_rollouts_only(transport):
    async with FaultServer(OK) as server, client(transport, server.url) as llm:
        await llm.complete(REQUEST)
        await server.stop()
        error = await fails(llm, LLMError, "gave no answer")
        assert (error.attempts, error.retryable) == (3, True)


async def test_a_kept_connection_that_resets_costs_one_more_request(transport):
    """The lean transport sends it again by itself; with aiohttp that is an attempt."""
    async with FaultServer(OK, reset_at_once, OK) as server, client(transport, server.url) as llm:
        await llm.complete(REQUEST)
        assert (await llm.complete(REQUEST)).attempts == (1 if transport is DirectTransport else 2)
    assert len(server.seen) == 3


async def test_a_server_that_reads_nothing_and_half_closes_is_not_waited_for():
    """It sends a FIN while most of the request still waits to be sent: nobody will read that, and nobody answers."""
    over = asyncio.Event()

    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()
        writer.write_eof()
        await over.wait()
        writer.transport.abort()

    async with await asyncio.start_server(ignore, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/chat/completions"
        transport = DirectTransport(8)
        try:
            with pytest.raises(TransportError, match="closed before an answer"):
                await transport.post(url, {}, bytes(16 << 20), 5.0)
        finally:
            over.set()
            await transport.close()


async def test_nobody_listens(transport):
    async with FaultServer(OK) as server:
        pass
    async with client(transport, server.url, attempts=9) as llm:
        error = await fails(llm, EndpointError, "Connection refused", "(after 4 attempts)", "is a server running there")
    assert server.url in str(error)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70 + ".invalid"])
async def test_a_name_that_is_unknown(transport, host):
    async with client(transport, f"http://{host}/v1") as llm:
        error = await fails(llm, EndpointError, host[:20])
    assert "its host name is unknown" in str(error)


async def test_a_listener_that_never_accepts_is_late(transport):
    """Its backlog is full, so the handshake gets no answer."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        await asyncio.sleep(0.01)
        try:
            async with client(transport, f"http://127.0.0.1:{address[1]}/v1", connect=0.1, attempts=1) as llm:
                error = await fails(llm, EndpointError, "not established in time")
            assert error.exit_code == 3
        finally:
            for filler in fillers:
                filler.close()
