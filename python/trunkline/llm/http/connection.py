"""One connection and its llhttp parser."""

from __future__ import annotations

import asyncio
import fcntl
import select
import struct
import termios
import time
import zlib
from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from trunkline.llm.http.transport import (
    BROKE_OFF,
    CONNECT_LATE,
    CONNECTION_BROKE,
    NO_ANSWER,
    NOT_HTTP,
    Answer,
    Body,
    TransportError,
    closed,
    late,
    silent,
    too_large,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


__all__ = [
    "AnswerReader",
    "Connection",
    "ConnectionLimits",
    "ConnectionOwner",
    "Headers",
    "UnacceptedError",
    "UnansweredError",
    "inflate",
    "readable",
]


HEAD_LIMIT: Final = 64 << 10
"""Most bytes of a head, and most that may come between two pieces of a body (sizes of chunks, trailers)."""


class Headers(Mapping[str, str]):
    """The headers of an answer, looked up without regard to case; of equal names the first counts.

    Args:
        raw: Values by name in lower case.
    """

    __slots__ = ("raw",)

    def __init__(self, raw: dict[bytes, bytes]) -> None:
        self.raw = raw

    def __getitem__(self, name: str) -> str:
        return self.raw[name.lower().encode("latin-1", "replace")].decode("latin-1")

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower().encode("latin-1", "replace") in self.raw

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self.raw)

    def __len__(self) -> int:
        return len(self.raw)


class AnswerReader:
    """Reads the answers that one connection brings, each after a :meth:`start`.

    Attributes:
        status: The HTTP status, once ``headed``.
        headers: The headers, once ``headed``.
        begun: Whether any byte of the answer is there.
        headed: Whether its head is there; interim answers (1xx) do not count.
        whole: Whether all of it is there.
        reusable: Whether another answer may follow on the connection; known when ``whole``.

    Args:
        largest: Most bytes of a body.
    """

    __slots__ = (
        "_bulk",
        "_dry",
        "_head",
        "_largest",
        "_length",
        "_missing",
        "_parser",
        "_piece",
        "_problem",
        "_size",
        "_spent",
        "begun",
        "headed",
        "headers",
        "reusable",
        "status",
        "whole",
    )

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._parser: HttpResponseParser
        self._spent = True
        self.start()

    def start(self) -> None:
        """Expect the next answer."""
        if self._spent:
            self._parser = HttpResponseParser(self)
            self._spent = False
        self.begun = self.headed = self.whole = self.reusable = False
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self._head = self._dry = self._size = self._missing = 0
        self._length: int | None = None
        self._piece = b""
        self._bulk: BytesIO | None = None
        self._problem: TransportError | None = None

    def release(self) -> None:
        """Let the parser go, which holds this object as this holds it."""
        del self._parser

    @property
    def body(self) -> bytes:
        """What there is of the body."""
        return self._piece if self._bulk is None else self._bulk.getvalue()

    def feed(self, data: bytes) -> bool:
        """Take bytes.

        Returns:
            Whether the answer is whole.

        Raises:
            TransportError: It is no HTTP, or too large.
        """
        self.begun = True
        if self._missing:
            return self._feed_rest(data)
        self._dry += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            if not self.whole:
                raise self._problem or TransportError(NOT_HTTP) from None
            self.reusable = False  # the answer is fine, but what follows it was not asked for
        if self.whole:
            return True
        if self._dry > HEAD_LIMIT:
            raise _overlong_head()
        if self.headed and self._length is not None:
            # What is left is body and nothing else, so it need not be copied through the parser. That one
            # stays in the middle of the body, and the next answer gets another.
            self._missing = self._length - self._size
            self._spent = True
        return False

    def end(self) -> bool:
        """The other side sends nothing more.

        Returns:
            Whether the answer is whole: it is, if its head leaves the length of its body open.
        """
        self.whole = self.headed and self._length is None and b"transfer-encoding" not in self.headers
        return self.whole

    def _feed_rest(self, data: bytes) -> bool:
        self._missing -= len(data)
        if self._missing < 0:
            self.reusable = False
            data = data[: self._missing]
            self._missing = 0
        self.on_body(data)
        self.whole = not self._missing
        return self.whole

    # What llhttp calls. An error raised there comes out of feed_data as one of its own, hence `_problem`.

    def on_message_begin(self) -> None:
        """A status line begins."""
        if self.whole:
            raise ValueError

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or one trailer of a chunked body, which is passed over."""
        self._head += len(name) + len(value)
        if self._head > HEAD_LIMIT:
            self._problem = _overlong_head()
            raise self._problem
        if not self.headed:
            self.headers.setdefault(name.lower(), value)

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self.status = self._parser.get_status_code()
        if self.status < 100:
            raise ValueError
        if self.status < 200:
            self.headers = {}
            return
        self.headed = True
        self.reusable = self._parser.should_keep_alive()
        length = self.headers.get(b"content-length")
        if length is not None:
            self._length = int(length)
            if self._length > self._largest:
                self._problem = too_large(self._largest, self._length)
                raise self._problem

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self._dry = 0
        self._size += len(data)
        if self._size > self._largest:
            self._problem = too_large(self._largest)
            raise self._problem
        if self._bulk is not None:
            self._bulk.write(data)
        elif self._piece:
            # Not a list of pieces: a server chooses how many there are, and each would cost its own object.
            self._bulk = BytesIO()
            self._bulk.write(self._piece)
            self._bulk.write(data)
        else:
            self._piece = data

    def on_message_complete(self) -> None:
        """The answer is whole, or it was an interim one."""
        self.whole = self.headed


def _overlong_head() -> TransportError:
    return TransportError(f"the answer has more than {HEAD_LIMIT:,} bytes of headers")


def inflate(data: bytes, encoding: str, largest: int) -> bytes:
    """Undo a compression that was not asked for.

    Args:
        data: The body as received.
        encoding: The value of Content-Encoding.
        largest: Most bytes of the result.

    Raises:
        TransportError: It is another encoding, broken, or too large.
    """
    named = encoding.strip().lower()
    if named in {"", "identity"}:
        return data
    if named not in {"gzip", "x-gzip", "deflate"}:
        raise TransportError("the answer is compressed in a way that was not asked for", retry=False)
    # Some servers leave the zlib header of "deflate" away. With it, the low half of the first byte is 8.
    bare = named == "deflate" and data[:1] != b"" and data[0] & 15 != 8
    stream = zlib.decompressobj(-zlib.MAX_WBITS if bare else zlib.MAX_WBITS | 32)
    try:
        plain = stream.decompress(data, largest + 1)
    except zlib.error:
        raise TransportError(BROKE_OFF) from None
    if len(plain) > largest:
        raise too_large(largest)
    if not stream.eof or stream.unused_data:
        raise TransportError(BROKE_OFF)
    return plain


_ACCEPTED: Final = 3.0
"""Seconds until a new connection whose request was not even acknowledged is given up."""

_JOINED: Final = 16 << 10
"""Up to here it is cheaper to copy a body behind its head than to write twice."""


class ConnectionLimits(NamedTuple):
    """What a connection allows.

    Attributes:
        idle: Seconds of silence in the middle of a body.
        keep: Seconds that it is kept without a request.
        largest: Most bytes of a body.
    """

    idle: float
    keep: float
    largest: int


class UnansweredError(TransportError):
    """A connection that had answered before was closed before any byte of this answer came."""


class UnacceptedError(TransportError):
    """The other side acknowledged no byte of the first request, as where its queue of new connections is full."""


class ConnectionOwner(Protocol):
    """Who keeps connections while they have nothing to do, and lets them write together."""

    def gather(self, connection: Connection) -> None:
        """It has a request to write, soon."""
        ...

    def free(self, connection: Connection) -> None:
        """It can take another request."""
        ...

    def gone(self, connection: Connection) -> None:
        """It is closed."""
        ...


class Connection(asyncio.Protocol):
    """One connection, which carries one request at a time.

    Timers are cheap because there is one for each connection, set for the earliest moment anything could be
    late and looked at only then: an answer that comes in time moves nothing.

    Attributes:
        answered: Whether it has brought an answer and may bring another.
        descriptor: The socket's.
        lost: Whether it is closed.
        sent: When its last request was sent, on :func:`time.monotonic`.
        moment: When something came last, or it had nothing more to do.

    Args:
        owner: Is told when it has nothing to do, and when it is closed.
        limits: What it allows.
        loop: Where it runs.
    """

    __slots__ = (
        "_deadline",
        "_due",
        "_first",
        "_future",
        "_limit",
        "_limits",
        "_loop",
        "_owner",
        "_reader",
        "_request",
        "_timer",
        "_transport",
        "_unproven",
        "answered",
        "descriptor",
        "lost",
        "moment",
        "sent",
    )

    def __init__(self, owner: ConnectionOwner, limits: ConnectionLimits, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._limits = limits
        self._loop = loop
        self._reader = AnswerReader(limits.largest)
        self._transport: asyncio.Transport
        self._future: asyncio.Future[Answer] | None = None
        self._request: bytes | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._deadline = self._limit = self._first = 0.0
        self._unproven = 0  # bytes of the first request, until some were acknowledged
        self.sent = self.moment = time.monotonic()
        self.answered = False
        self.lost = False

    @property
    def usable(self) -> bool:
        """Whether it can take a request: it is open, and not idle for so long that the server may have forgotten it."""
        return not self._transport.is_closing() and time.monotonic() - self.moment < self._limits.keep

    def send(self, head: bytes, body: Body, deadline: float, limit: float) -> asyncio.Future[Answer]:
        """Send a request.

        A short one is written at the end of this pass of the event loop, with those of other connections. A long one
        goes at once, so that the other side can empty what the kernel holds while the next one is made.

        Args:
            head: Its head, to the end of the empty line.
            body: Its body.
            deadline: When the answer must be whole, on :func:`time.monotonic`.
            limit: Seconds from its beginning to then, for the message.

        Returns:
            The answer, or a :class:`TransportError`. Whoever stops waiting for it calls :meth:`abandon`.

        Raises:
            UnansweredError: The connection closed while it was on its way to who uses it now.
        """
        gathered = isinstance(body, bytes) and len(body) <= _JOINED
        if self._transport.is_closing() or (self.answered and not gathered and readable([self])):
            raise UnansweredError(NO_ANSWER)
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._future = future
        self._deadline = deadline
        self._limit = limit
        self.sent = time.monotonic()
        if self.answered:
            self._watch(deadline, self.sent)
        else:
            self._unproven = len(head) + (len(body) if isinstance(body, bytes) else sum(map(len, body)))
            self._watch(min(deadline, self.sent + _ACCEPTED), self.sent)
        if not isinstance(body, bytes):
            self._transport.writelines([head, *body])
        elif len(body) > _JOINED:
            self._transport.writelines([head, body])
        else:
            self._request = head + body
            self._owner.gather(self)
        return future

    def write(self) -> None:
        """Write a request that was gathered, unless nobody waits for its answer any more."""
        request, self._request = self._request, None
        if request is None or self._future is None or self._future.done() or self._transport.is_closing():
            return
        self._transport.write(request)

    def abandon(self, future: asyncio.Future[Answer]) -> None:
        """Close the connection if it still works for this answer, which nobody waits for any more."""
        if self._future is future:
            self._future = None
            self.abort()

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def fail(self, error: TransportError) -> None:
        """Close the connection; who waits for an answer gets the error."""
        future, self._future = self._future, None
        if future is not None and not future.done():
            future.set_exception(error)
        self.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self.descriptor: int = transport.get_extra_info("socket").fileno()

    def data_received(self, data: bytes) -> None:
        """Read on."""
        if self._future is None:
            self.abort()  # nothing was asked
            return
        if self._request is not None:
            self.fail(UnansweredError(NO_ANSWER))  # nor is it what this request asks, which is not sent yet
            return
        reader = self._reader
        headed = reader.headed
        try:
            whole = reader.feed(data)
        except TransportError as error:
            self.fail(error)
            return
        now = self.moment = time.monotonic()
        if reader.headed and not headed:
            self._first = now - self.sent
        if whole:
            self._finish()
        elif reader.headed:
            self._watch(now + self._limits.idle, now)

    def eof_received(self) -> None:
        """The other side sends nothing more, so nothing more is sent to it: it may have stopped reading too."""
        if self._future is not None and self._reader.end():
            self._finish()
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Say what became of the answer, and be forgotten."""
        self.lost = True
        self.fail(self._loss(exc))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._reader.release()
        self._owner.gone(self)

    def _unacknowledged(self) -> int:
        """Bytes of requests that the other side has not acknowledged; 0 where the system does not say."""
        try:
            (queued,) = struct.unpack("i", fcntl.ioctl(self.descriptor, termios.TIOCOUTQ, bytes(4)))
        except OSError:
            return 0
        return int(queued) + self._transport.get_write_buffer_size()

    def _loss(self, exc: Exception | None) -> TransportError:
        if self._reader.begun:
            return TransportError(BROKE_OFF)
        if self.answered:
            return UnansweredError(NO_ANSWER)
        return TransportError(NO_ANSWER if exc is None else f"{CONNECTION_BROKE} ({type(exc).__name__})")

    def _finish(self) -> None:
        """Hand over the answer, after the connection, so that the next request finds it."""
        reader = self._reader
        future, self._future = self._future, None
        answer = Answer(reader.status, Headers(reader.headers), reader.body, self._first)
        # A server that answers before it has read the request leaves bytes of it in the way of the next.
        if reader.reusable and not self._transport.get_write_buffer_size():
            reader.start()
            self.answered = True
            self._owner.free(self)
        else:
            self.abort()
        if future is not None and not future.done():
            future.set_result(answer)

    def _watch(self, moment: float, now: float) -> None:
        """Look at the time at this moment or before; at least now and then, as much can become late meanwhile."""
        if self._timer is not None:
            if self._due <= moment:
                return
            self._timer.cancel()
        self._due = min(moment, now + self._limits.idle)
        self._timer = self._loop.call_later(self._due - now, self._look)

    def _look(self) -> None:
        """See whether anything is late, else look again when it could be."""
        self._timer = None
        now = time.monotonic()
        if self._future is None:
            due, error = self.moment + self._limits.keep, closed()
        else:
            due, error = self._deadline, late(self._limit)
            if self._unproven and not self.answered and not self._reader.begun and now < due:
                if now < self.sent + _ACCEPTED:
                    self._watch(min(due, self.sent + _ACCEPTED), now)
                    return
                if self._unacknowledged() >= self._unproven:
                    self.fail(UnacceptedError(CONNECT_LATE, unreachable=True))
                    return
                self._unproven = 0
            if self._reader.headed and self.moment + self._limits.idle < due:
                due, error = self.moment + self._limits.idle, silent(self._limits.idle)
        if now >= due:
            self.fail(error)
        else:
            self._watch(due, now)


def readable(connections: Sequence[Connection]) -> list[Connection]:
    """Those of some connections that have brought something, or are closed, before a request is written to them."""
    places = {connection.descriptor: connection for connection in connections}
    poll = select.poll()
    for descriptor in places:
        poll.register(descriptor, select.POLLIN)
    return [places[descriptor] for descriptor, _ in poll.poll(0)]
