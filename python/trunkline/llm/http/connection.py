"""One connection to a server: a request out, its answer in, and one timer for whatever may be late."""

from __future__ import annotations

import asyncio
import time
from typing import Final, NamedTuple, Protocol, cast

from trunkline.llm.incoming import AnswerReader, Headers
from trunkline.llm.transport import (
    BROKE_OFF,
    CONNECTION_BROKE,
    NO_ANSWER,
    Answer,
    Body,
    TransportError,
    closed,
    late,
    silent,
)

__all__ = ["Bounds", "Connection", "Home", "UnansweredError"]

_JOINED: Final = 16 << 10
"""Up to here it is cheaper to copy a body behind its head than to write twice."""


class Bounds(NamedTuple):
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


class Home(Protocol):
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
        lost: Whether it is closed.

    Args:
        home: Is told when it has nothing to do, and when it is closed.
        bounds: What it allows.
        loop: Where it runs.
    """

    __slots__ = (
        "_bounds",
        "_deadline",
        "_due",
        "_first",
        "_future",
        "_home",
        "_limit",
        "_loop",
        "_moment",
        "_reader",
        "_request",
        "_sent",
        "_timer",
        "_transport",
        "answered",
        "lost",
    )

    def __init__(self, home: Home, bounds: Bounds, loop: asyncio.AbstractEventLoop) -> None:
        self._home = home
        self._bounds = bounds
        self._loop = loop
        self._reader = AnswerReader(bounds.largest)
        self._transport: asyncio.Transport
        self._future: asyncio.Future[Answer] | None = None
        self._request: bytes | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._deadline = self._limit = self._sent = self._first = 0.0
        self._moment = time.monotonic()  # when something came last, or it had nothing more to do
        self.answered = False
        self.lost = False

    @property
    def usable(self) -> bool:
        """Whether it can take a request: it is open, and not idle for so long that the server may have forgotten it."""
        return not self._transport.is_closing() and time.monotonic() - self._moment < self._bounds.keep

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
        if self._transport.is_closing():
            raise UnansweredError(NO_ANSWER)
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._future = future
        self._deadline = deadline
        self._limit = limit
        self._sent = time.monotonic()
        self._watch(deadline, self._sent)
        if not isinstance(body, bytes):
            self._transport.writelines([head, *body])
        elif len(body) > _JOINED:
            self._transport.writelines([head, body])
        else:
            self._request = head + body
            self._home.gather(self)
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

    def data_received(self, data: bytes) -> None:
        """Read on."""
        if self._future is None:
            self.abort()  # nothing was asked
            return
        reader = self._reader
        headed = reader.headed
        try:
            whole = reader.feed(data)
        except TransportError as error:
            self.fail(error)
            return
        now = self._moment = time.monotonic()
        if reader.headed and not headed:
            self._first = now - self._sent
        if whole:
            self._finish()
        elif reader.headed:
            self._watch(now + self._bounds.idle, now)

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
        self._home.gone(self)

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
            self._home.free(self)
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
        self._due = min(moment, now + self._bounds.idle)
        self._timer = self._loop.call_later(self._due - now, self._look)

    def _look(self) -> None:
        """See whether anything is late, else look again when it could be."""
        self._timer = None
        now = time.monotonic()
        if self._future is None:
            due, error = self._moment + self._bounds.keep, closed()
        else:
            due, error = self._deadline, late(self._limit)
            if self._reader.headed and self._moment + self._bounds.idle < due:
                due, error = self._moment + self._bounds.idle, silent(self._bounds.idle)
        if now >= due:
            self.fail(error)
        else:
            self._watch(due, now)
