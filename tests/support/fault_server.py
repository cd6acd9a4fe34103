"""A raw-socket HTTP server that misbehaves as it is told, request by request; it shares nothing with the client."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Self

from places import SUPPORT

GOOD = {
    "id": "x",
    "object": "chat.completion",
    "model": "served-model",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}},
}


class Seen(NamedTuple):
    """A request that came, and on which connection, counted from 1."""

    head: bytes
    body: bytes
    connection: int


class Peer:
    """The client's end, as a script sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Seen) -> None:
        self._reader = reader
        self._writer = writer
        self.seen = seen

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(data)
        await self._writer.drain()

    def reset(self) -> None:
        """Close with an RST."""
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def hang_up(self) -> None:
        """Close."""
        self._writer.close()

    def half_close(self) -> None:
        """Send a FIN and keep the other direction, which TLS cannot."""
        if self._writer.can_write_eof():
            self._writer.write_eof()
        else:
            self._writer.close()

    async def silence(self) -> None:
        """Say nothing until the client leaves."""
        await self._reader.read()
        raise ConnectionError


Script = Callable[[Peer], Awaitable[None]]
Answer = bytes | Script


def serving() -> ssl.SSLContext:
    """With what the server shows its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(SUPPORT / "certificate.pem")
    return context


def trusting() -> ssl.SSLContext:
    """What trusts the server's certificate and no other."""
    return ssl.create_default_context(cafile=SUPPORT / "certificate.pem")


class FaultServer:
    """Gives each request the next answer, the last one for ever. An answer is bytes or a script.

    Attributes:
        encrypted: Whether it speaks TLS.
        url: Its base URL.
        seen: The requests that came, in order.
        connections: How many connections there were.
    """

    encrypted = False

    def __init__(self, *answers: Answer, port: int = 0, host: str = "127.0.0.1") -> None:
        self.answers = list(answers)
        self.seen: list[Seen] = []
        self.connections = 0
        self.host = host
        self.port = port
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        scheme = "https" if self.encrypted else "http"
        return f"{scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/v1"

    async def __aenter__(self) -> Self:
        context = serving() if self.encrypted else None
        self._server = await asyncio.start_server(self._connected, self.host, self.port, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Close every socket."""
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)
        self.connections += 1
        number = self.connections
        try:
            while not writer.is_closing():
                await self._serve(reader, writer, number)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"(?i)\r\ncontent-length: *(\d+)", head).group(1))
        seen = Seen(head, await reader.readexactly(length), number)
        self.seen.append(seen)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        peer = Peer(reader, writer, seen)
        await (peer.send(answer) if isinstance(answer, bytes) else answer(peer))


def http(body: object = GOOD, status: int = 200, headers: dict[str, str] | None = None) -> bytes:
    """Encode a whole answer; a body that is no bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Content-Type": "application/json", "Content-Length": str(len(data))} | (headers or {})
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} Said\r\n{lines}\r\n".encode("latin-1") + data


def completion(content: object = "hello", finish: object = "stop", **message: object) -> dict:
    """A completion like :data:`GOOD` with another message."""
    said = {"role": "assistant", "content": content} | message
    return GOOD | {"choices": [{"index": 0, "message": said, "finish_reason": finish}]}


def problem(message: str = "no", code: object = None, kind: object = None) -> dict:
    """An error as OpenAI writes it."""
    return {"error": {"message": message, "type": kind, "code": code, "param": None}}


OK = http()
