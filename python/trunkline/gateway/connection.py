"""A connection of an agent: HTTP/1.1 on asyncio's protocols, with no more than a gateway needs."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol, cast

import msgspec

from trunkline._core import RequestReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MOST_BYTES: Final = 64 << 20
"""Of a body."""
_SMALL: Final = 64 << 10
"""Bytes of a body that is read as it comes; a larger one waits until it may be."""
_MOST_AHEAD: Final = 256 << 10
"""Bytes of later requests that are read while one is served."""
_LINGERS: Final = 10.0
"""Seconds in which the rest of a refused request is read: a connection that is cut at once may lose the refusal."""

JSON: Final = b"Content-Type: application/json\r\n"
TEXT: Final = b"Content-Type: text/plain; charset=utf-8\r\n"
_STREAM: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"
_LINES: Final = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n".encode() for one in HTTPStatus}

_WANTED: Final = ("x-stainless-retry-count", "idempotency-key")
_PART, _HEAD, _WHOLE = range(3)
"""What the reader has of a request."""


class HttpRequest(msgspec.Struct, frozen=True, gc=False):
    """A request that was read.

    Attributes:
        method: Its method.
        target: Its target, as it was sent.
        body: Its body.
        keeps: Whether the connection may serve another one.
        said: Its ``x-stainless-retry-count`` and ``idempotency-key``; None for one that is absent.
    """

    method: str
    target: str
    body: bytes
    keeps: bool
    said: tuple[str | None, ...]


_BROKEN: Final = HttpRequest("", "", b"", keeps=False, said=())
"""Stands for what is no request, or is refused before its end."""


class ConnectionHandler(Protocol):
    """What serves the requests of connections."""

    def opened(self, connection: AgentConnection) -> None:
        """Note a new connection."""
        ...

    def closed(self, connection: AgentConnection) -> None:
        """Note that a connection is closed."""
        ...

    def admit(self, connection: AgentConnection, target: str, size: int | None) -> None:
        """Have a body that is not small read by ``AgentConnection.body`` once it may be, or refuse it."""
        ...

    def serve(self, connection: AgentConnection, request: HttpRequest) -> None:
        """Serve a request, now or later."""
        ...

    def served(self, connection: AgentConnection) -> None:
        """Note that a request has its reply."""
        ...

    def refuse(self, connection: AgentConnection, status: int, text: str) -> None:
        """Answer what is no request."""
        ...


class AgentConnection(asyncio.Protocol):
    """Reads requests, and writes their replies, one after the other.

    Args:
        handler: What serves them.
    """

    def __init__(self, handler: ConnectionHandler) -> None:
        self._handler = handler
        self._reader = RequestReader(MOST_BYTES, _WANTED)
        self._transport: asyncio.Transport | None = None
        self._request: HttpRequest | None = None
        self._pieces: Iterator[bytes] | None = None
        self._sent: Callable[[], None] | None = None
        self._body: asyncio.Future[None] | None = None
        self._full = self._held = self._passing = self._continued = self._ahead = False

    def is_open(self) -> bool:
        """Whether the peer may still be there."""
        return self._transport is not None and not self._transport.is_closing()

    def cut(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._handler.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = self._pieces = self._sent = None
        self._body_ends()
        self._handler.closed(self)

    def data_received(self, data: bytes) -> None:
        if self._request is not _BROKEN:
            self._read(data)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if self._pieces is not None:
            try:
                self._write(self._pieces)
            except BaseException:
                self.cut()
                raise

    async def body(self) -> None:
        """Read a body that waits to be read, and return once its request is being served, or cannot be."""
        if self.is_open():
            self._body = body = asyncio.get_running_loop().create_future()
            self._hold(on=False)
            self._read(b"")
            await body

    def refuse(self, status: int, body: bytes, head: bytes = JSON) -> None:
        """Answer what is not read to its end, unless it is served by now; nothing more is."""
        if self._request in (None, _BROKEN):
            self._request = _BROKEN
            self.reply(status, body, head)

    def reply(self, status: int, body: bytes, head: bytes = JSON, sent: Callable[[], None] | None = None) -> None:
        """Answer the request.

        Args:
            status: The status.
            body: The body.
            head: Header lines, each with its end.
            sent: Is called once all of it is written, if the peer is still there.
        """
        request = self._request
        assert request is not None
        close = b"" if request.keeps else b"Connection: close\r\n"
        top = b"%b%b%bContent-Length: %d\r\n\r\n" % (_LINES[status], head, close, len(body))
        self._sent = sent
        self._write(iter((top if request.method == "HEAD" else top + body,)))

    def begin_stream(self) -> None:
        """Begin to answer the request by pieces."""
        assert self._request is not None
        ends = b"Transfer-Encoding: chunked\r\n\r\n" if self._request.keeps else b"Connection: close\r\n\r\n"
        if self._transport is not None and self.is_open():
            self._transport.write(_STREAM + ends)

    def put(self, piece: bytes) -> None:
        """Write a piece of a stream."""
        if self._transport is not None and self.is_open() and not self._full:
            self._transport.write(self._framed(piece))

    def end_stream(self, pieces: Iterable[bytes], sent: Callable[[], None] | None = None) -> None:
        """Write the rest of a stream; ``sent`` is as for ``reply``."""
        self._sent = sent
        self._write(self._chunks(pieces))

    def _chunks(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        yield from map(self._framed, pieces)
        if self._request is not None and self._request.keeps:
            yield _LAST_CHUNK

    def _framed(self, piece: bytes) -> bytes:
        assert self._request is not None
        return b"%x\r\n%b\r\n" % (len(piece), piece) if self._request.keeps else piece

    def _write(self, pieces: Iterator[bytes]) -> None:
        """Write what is left of a reply, as far as the peer takes it."""
        self._pieces = None
        if self._transport is None or self._transport.is_closing():
            return
        for piece in pieces:
            self._transport.write(piece)
            if self._full:
                self._pieces = pieces
                return
        request, self._request = self._request, None
        assert request is not None
        if self._sent is not None and not self._transport.is_closing():
            self._sent()
        self._sent = None
        if request is _BROKEN:
            self._linger()
        elif not request.keeps:
            self._transport.close()
        else:
            self._handler.served(self)
            self._hold(on=False)
            if self._ahead and not self._passing:
                self._read(b"")

    def _linger(self) -> None:
        assert self._transport is not None
        self._request = _BROKEN
        self._hold(on=False)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        asyncio.get_running_loop().call_later(_LINGERS, self.cut)

    def _hold(self, *, on: bool) -> None:
        """Read nothing more, or read on."""
        if on is not self._held and self._transport is not None and not self._transport.is_closing():
            self._held = on
            if on:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _read(self, data: bytes) -> None:
        """Take bytes, and have the requests served that are whole by them."""
        self._passing = True
        self._ahead = self._request is not None
        reader = self._reader
        try:
            state = reader.feed(data)
            while self._request is None and state == _WHOLE and self.is_open():
                state = reader.feed(b"") if self._has_served(HttpRequest(*reader.take())) else _PART
            if self._request is not None:
                held = reader.held
                self._ahead |= held > 0
                if held > _MOST_AHEAD:
                    self._hold(on=True)
            elif state == _HEAD:
                self._read_body()
        except ValueError as problem:
            if self._request is None:
                self._request = _BROKEN
                self._handler.refuse(self, *problem.args)
            self._body_ends()
        finally:
            self._passing = False

    def _has_served(self, request: HttpRequest) -> bool:
        """Have a request served; returns whether it has its reply already."""
        self._request, self._continued = request, False
        self._handler.serve(self, request)
        self._body_ends()
        return self._request is None

    def _read_body(self) -> None:
        """Read the body of a head, at once where it is small."""
        reader, size = self._reader, self._reader.size
        may = self._body is not None
        if not may and (size is None or size > _SMALL):
            if not self._held:
                self._hold(on=True)
                self._handler.admit(self, reader.target, size)
        elif reader.expects and not self._continued and self._transport is not None:
            self._continued = True
            self._transport.write(_CONTINUE)

    def _body_ends(self) -> None:
        body, self._body = self._body, None
        if body is not None and not body.done():
            body.set_result(None)
