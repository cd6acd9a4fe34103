"""Connections that a server does not accept, and replies that no request asked for."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress

import pytest

from trunkline.llm.http import direct_transport
from trunkline.llm.http.direct_transport import DirectTransport
from trunkline.llm.http.transport import CONNECT_LATE, TransportError


def answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def read_request(link: socket.socket) -> bytes:
    """One request; empty where the client has closed."""
    data = b""
    while b"\r\n\r\n" not in data:
        got = link.recv(1 << 16)
        if not got:
            return b""
        data += got
    head, _, body = data.partition(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < size:
        body += link.recv(1 << 16)
    return body


def serve(link: socket.socket) -> None:
    with suppress(OSError), link:
        while read_request(link):
            link.sendall(answer(b"served"))


def accept(listener: socket.socket) -> None:
    with suppress(OSError):
        while True:
            threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_connection_that_is_not_accepted_is_given_up(monkeypatch: pytest.MonkeyPatch, size: int):
    monkeypatch.setattr(direct_transport, "_ACCEPTED", 0.2)
    transport = DirectTransport(16, connect=0.5)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        posts = [asyncio.ensure_future(transport.post(url, {}, b"x" * size, 600.0)) for _ in range(16)]
        given_up: set[asyncio.Future[object]] = set()
        # The kernel takes one or two for a server that accepts none; these wait on.
        while len(given_up) < 13:
            given_up |= (await asyncio.wait(posts, return_when=asyncio.FIRST_COMPLETED))[0]
            await asyncio.sleep(0.01)
        for post in given_up:
            error = post.exception()
            assert isinstance(error, TransportError)
            assert (str(error), error.unreachable, error.retry) == (CONNECT_LATE, True, True)
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        ends = await asyncio.gather(*posts, return_exceptions=True)
        assert {one.body for one in ends if not isinstance(one, BaseException)} <= {b"served"}
        while True:  # whatever the kernel makes of the crowd, calls are served by and by
            with suppress(TransportError):
                assert (await transport.post(url, {}, b"x", 600.0)).body == b"served"
                break
        await transport.close()
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("reads", [False, True])
async def test_a_reply_that_nothing_asked_for_is_no_answer(size: int, reads: bool):
    wanted, sent = threading.Event(), threading.Event()

    def talk(listener: socket.socket) -> None:
        with listener.accept()[0] as link:
            read_request(link)
            link.sendall(answer(b"first"))
            wanted.wait()
            link.sendall(answer(b"not asked for"))
            sent.set()
            accept(listener)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=talk, args=(listener,), daemon=True).start()
        transport = DirectTransport(1)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        assert (await transport.post(url, {}, b"x", 60.0)).body == b"first"
        wanted.set()
        sent.wait()  # the event loop reads nothing meanwhile
        if reads:
            await asyncio.sleep(0.05)
        assert (await transport.post(url, {}, b"x" * size, 60.0)).body == b"served"
        await transport.close()
        listener.shutdown(socket.SHUT_RDWR)
