"""How many calls of the interpreter a request costs: a count, which no machine changes."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from contextlib import suppress

import uvloop

from trunkline.llm.http.direct_transport import DirectTransport

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
MOST = 52
"""Calls of Python and C functions of a request that goes alone, so that it pays for its passes alone; 49 today."""


def serve(listener: socket.socket) -> None:
    with suppress(OSError), listener.accept()[0] as link:
        data = b""
        while got := link.recv(1 << 16):
            data += got
            if data.endswith(b"\r\n\r\nx"):
                link.sendall(ANSWER)
                data = b""


def count(requests: int) -> int:
    """Count the calls of so many requests, one after the other on one connection that is there."""
    calls = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    async def scene() -> None:
        transport = DirectTransport(1)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=serve, args=(listener,), daemon=True).start()
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
            await transport.post(url, {"Authorization": "Bearer x"}, b"x", 60.0)
            sys.setprofile(note)
            for _ in range(requests):
                await transport.post(url, {"Authorization": "Bearer x"}, b"x", 60.0)
            sys.setprofile(None)
            await transport.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scene())
    return calls


def test_a_request_costs_no_more_calls_of_the_interpreter_than_it_may():
    assert (count(120) - count(20)) / 100 <= MOST
