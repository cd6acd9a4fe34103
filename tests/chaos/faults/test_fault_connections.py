"""Connections that do not come about, and answers that break off or are no HTTP."""

from __future__ import annotations

import asyncio
import socket

import fault_server
import pytest
from fault_client import REQUEST, client, fails
from fault_server import GOOD, OK, FaultServer, Peer, http

from trunkline.errors import EndpointError, LLMError
from trunkline.llm.http import connection, origin
from trunkline.llm.http.aiohttp_transport import AioTransport
from trunkline.llm.http.connection import Connection
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


async def test_bytes_on_an_idle_connection_close_it(transport):
    if transport is AioTransport:
        pytest.skip("aiohttp takes them for the next answer")

    async def answer(peer: Peer) -> None:
        await peer.send(OK)
        await asyncio.sleep(0.01)
        await peer.send(http(GOOD | {"model": "poison"}))

    async with FaultServer(answer, OK) as server, client(transport, server.url) as llm:
        await llm.complete(REQUEST)
        await asyncio.sleep(0.05)
        assert (await llm.complete(REQUEST)).served == "served-model"
    assert server.connections == 2


async def test_a_transport_that_holds_back_what_is_written_holds_up_no_other_request(transport):
    """A body that fills the kernel and the buffers of the event loop, so that it says to pause."""
    reading = asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if first := not seen:
            seen.append(writer)
            await reading.wait()
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        assert await reader.readexactly(length) == body if first else b"{}"
        writer.write(OK)
        await reader.read()
        writer.close()

    body, seen = bytes(range(256)) * (40_000), []
    context = fault_server.serving() if FaultServer.encrypted else None
    async with await asyncio.start_server(late, "127.0.0.1", 0, ssl=context) as server:
        scheme = "https" if FaultServer.encrypted else "http"
        url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        posts = transport(8)
        large = asyncio.ensure_future(posts.post(url, {}, body, 60.0))
        while not seen:
            await asyncio.sleep(0.001)
        assert (await posts.post(url, {}, b"{}", 60.0)).status == 200
        assert not large.done()
        reading.set()
        assert (await large).status == 200
        await posts.close()


@pytest.mark.parametrize("used", [True, False])
async def test_a_connection_that_is_lost_in_the_middle_of_writing(used, monkeypatch):
    """As a loop may do that writes at once and finds the connection broken."""
    async with FaultServer(OK) as server:
        posts = DirectTransport(8)
        if used:
            await posts.post(server.url, {}, b"{}", 5.0)
        write, broken = Connection.write, []

        def breaking(self: Connection, head: bytes, body: bytes) -> None:
            if broken:
                write(self, head, body)
                return
            broken.append(self)
            self.transport.abort()
            self.connection_lost(BrokenPipeError())

        monkeypatch.setattr(Connection, "write", breaking)
        if used:
            assert (await posts.post(server.url, {}, b"{}", 5.0)).status == 200
        else:
            with pytest.raises(TransportError, match=r"the connection broke \(BrokenPipeError\)"):
                await posts.post(server.url, {}, b"{}", 5.0)
            assert (await posts.post(server.url, {}, b"{}", 5.0)).status == 200
        await posts.close()
    assert server.connections == 2


@pytest.mark.parametrize("shared", [True, False])
async def test_what_many_connections_bring_in_turns_is_never_mixed(transport, shared, monkeypatch):
    """All connections receive into one buffer, where the event loop allows that."""
    assert connection.receives_at_once(asyncio.get_running_loop())
    monkeypatch.setattr(connection, "receives_at_once", lambda loop: shared)

    async def dribble(peer: Peer) -> None:
        said = http(peer.seen.body * 3_000)
        for start in range(0, len(said), 40_000):
            await peer.send(said[start : start + 40_000])
            await asyncio.sleep(0)

    async with FaultServer(dribble) as server:
        posts = transport(16)
        for _ in range(3):
            answers = await asyncio.gather(*(posts.post(server.url, {}, b"%064d" % n, 60.0) for n in range(16)))
            assert [answer.body for answer in answers] == [b"%064d" % n * 3_000 for n in range(16)]
        await posts.close()


@pytest.mark.parametrize("kind", [DirectTransport, AioTransport])
async def test_a_certificate_that_is_not_trusted(kind, monkeypatch):
    monkeypatch.setattr(FaultServer, "encrypted", True)
    async with FaultServer(OK) as server, client(kind, server.url) as llm:
        error = await fails(llm, EndpointError, "TLS certificate not trusted; see SSL_CERT_FILE")
        assert (error.exit_code, server.seen) == (3, [])


async def test_a_certificate_for_another_name(monkeypatch):
    monkeypatch.setattr(FaultServer, "encrypted", True)
    monkeypatch.setattr(origin, "_context", fault_server.trusting)
    async with FaultServer(OK, host="127.0.0.2") as server, client(DirectTransport, server.url) as llm:
        await fails(llm, EndpointError, "TLS certificate not trusted")


@pytest.mark.parametrize("kind", [DirectTransport, AioTransport])
async def test_a_server_that_speaks_no_tls(kind):
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await reader.read()
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with client(kind, f"https://127.0.0.1:{port}/v1") as llm:
            await fails(llm, EndpointError, "TLS failed; is it https there?")


@pytest.mark.parametrize("kind", [DirectTransport, AioTransport])
async def test_a_server_that_never_ends_its_handshake_is_late(kind):
    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(hold, "127.0.0.1", 0) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with client(kind, url, connect=0.1, timeout=0.5, attempts=1) as llm:
            await fails(llm, EndpointError, "not established in time")


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
