"""Plain HTTP/1.1 transport: pool and heads."""

from __future__ import annotations

import asyncio
import math
import re
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Final

import aiohappyeyeballs
from yarl import URL

from trunkline.llm.http.connection import (
    Connection,
    ConnectionLimits,
    UnacceptedError,
    UnansweredError,
    inflate,
    readable,
)
from trunkline.llm.http.transport import (
    CONNECT_LATE,
    NO_ANSWER,
    UNKNOWN_HOST,
    Answer,
    Body,
    TransportError,
    closed,
    late,
    unconnected,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aiohappyeyeballs import AddrInfoType


__all__ = ["ConnectionPool", "PlainTransport"]


_EYEBALLS: Final = 0.25
"""Seconds until the next address of a name is tried beside one that does not answer (RFC 8305)."""

_REMEMBERED: Final = 300.0
"""Seconds that the addresses of a name are believed."""

_PATIENCE: Final = 1.0
"""Seconds that a new connection may bring nothing while kept ones have nothing to do, or are served before it."""

_CROWDED: Final = 60.0
"""Seconds for which a server is believed to hold a thread for each kept connection, and to have too few of them."""


class ConnectionPool:
    """Connections to one host and port.

    A slot is held from before a connection is made until it is closed, so that descriptors are bounded too.

    Args:
        host: A name, or an address without brackets.
        port: The port.
        size: Most connections at once.
        connect: Seconds to establish one.
        limits: What each allows.
    """

    def __init__(self, host: str, port: int, size: int, connect: float, limits: ConnectionLimits) -> None:
        self._host = host
        self._port = port
        self._size = size
        self._connect = connect
        self._limits = limits
        self._held = 0
        self._idle: dict[Connection, None] = {}  # a set that knows its order
        self._open: set[Connection] = set()
        self._sending: list[Connection] = []
        self._connecting: set[asyncio.Timeout] = set()
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        # Connections whose first request has no answer, and none that was sent after it on another new one has.
        self._unserved: dict[Connection, None] = {}
        self._crowded = -math.inf  # until when connections are not kept while others are unserved
        self._timer: asyncio.TimerHandle | None = None
        self._addresses: tuple[float, Sequence[AddrInfoType]] = (0.0, ())
        self._resolving = asyncio.Lock()
        self._empty = asyncio.Event()
        self._closed = False

    def take(self) -> Connection | None:
        """Take the connection that was used last, if one is idle."""
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.usable:
                return connection
            connection.abort()
        return None

    async def wait(self, deadline: float, limit: float) -> Connection:
        """Make a connection, or wait for one where there are as many as there may be.

        Args:
            deadline: When to give up, on :func:`time.monotonic`.
            limit: Seconds from the beginning to then, for the message.

        Raises:
            TransportError: There is none in time.
        """
        if self._held >= self._size:
            connection = await self._queue(deadline, limit)
            if connection is not None:
                return connection
        else:
            self._held += 1
        try:
            return await self._establish(deadline)
        except BaseException:
            self._release()
            raise

    async def close(self) -> None:
        """Close every connection and wait until they are gone."""
        self._closed = True
        self._idle.clear()
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self._open):
            connection.fail(closed())
        for timeout in self._connecting:
            if not timeout.expired():  # one that expires in this moment ends by itself
                timeout.reschedule(0)  # in the past: they end now
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(closed())
        if self._held:
            await self._empty.wait()
        await asyncio.sleep(0)  # a loop closes the descriptor after it has said so

    def gather(self, connection: Connection) -> None:
        """Let a connection write in a moment, with all that have something to write by then.

        A server on the same machine is woken once for many requests instead of for each, which takes as long as a
        tenth of a small call, and its answers are then read many at a time as well.
        """
        if not self._sending:
            asyncio.get_running_loop().call_soon(self._write)
        self._sending.append(connection)

    def _write(self) -> None:
        sending, self._sending = self._sending, []
        used = [connection for connection in sending if connection.answered and not connection.lost]
        for connection in readable(used) if used else ():
            connection.fail(UnansweredError(NO_ANSWER))
        for connection in sending:
            connection.write()

    def free(self, connection: Connection) -> None:
        """Give an idle connection to who waited longest, or keep it; close it where new ones are not served."""
        if self._unserved and self._crowds(connection):
            connection.abort()
            return
        waiter = self._next()
        if waiter is not None:
            waiter.set_result(connection)
            return
        self._idle[connection] = None
        if self._unserved and self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(_PATIENCE, self._look)

    def _crowds(self, connection: Connection) -> bool:
        """Whether a connection that was served is to be closed, as new ones are not served while it is kept.

        Servers with few threads and one connection a thread (llama.cpp) look like that. Where a new connection is
        answered before another one that was used earlier, the server does take new ones and is slow.
        """
        unserved, now = self._unserved, time.monotonic()
        if connection in unserved:
            while (oldest := next(iter(unserved))) is not connection:
                del unserved[oldest]
            del unserved[connection]
        elif unserved:
            oldest = next(iter(unserved))
            if now - oldest.sent > _PATIENCE and connection.sent > oldest.sent:
                self._crowded = now + _CROWDED
        return bool(unserved) and now < self._crowded

    def _look(self) -> None:
        """Close idle connections where new ones are not served."""
        self._timer = None
        if not self._unserved or not self._idle:
            return
        now = time.monotonic()
        if now - max(next(iter(self._unserved)).sent, next(iter(self._idle)).moment) >= _PATIENCE:
            self._crowded = now + _CROWDED
            for connection in list(self._idle):
                connection.abort()
        else:
            self._timer = asyncio.get_running_loop().call_later(_PATIENCE, self._look)

    def gone(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        self._idle.pop(connection, None)
        self._unserved.pop(connection, None)
        if connection in self._open:
            self._open.remove(connection)
            self._release()

    def _release(self) -> None:
        """Give a slot to who waited longest, or back."""
        waiter = self._next()
        if waiter is not None:
            waiter.set_result(None)
            return
        self._held -= 1
        if self._closed and not self._held:
            self._empty.set()

    def _next(self) -> asyncio.Future[Connection | None] | None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                return waiter
        return None

    async def _queue(self, deadline: float, limit: float) -> Connection | None:
        """Wait for a connection, or for a slot to make one (None)."""
        waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return await waiter
        except BaseException as problem:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._return(waiter.result())  # it came too late for us, but not for the next
            if isinstance(problem, TimeoutError):
                raise late(limit) from None
            raise

    def _return(self, given: Connection | None) -> None:
        if given is None:
            self._release()
        else:
            self.free(given)

    async def _establish(self, deadline: float) -> Connection:
        """Make a connection."""
        if self._closed:
            raise closed()
        left = deadline - time.monotonic()
        timeout = asyncio.timeout(max(0.0, min(self._connect, left)))
        try:
            async with timeout:
                self._connecting.add(timeout)
                try:
                    return await self._connected()
                finally:
                    self._connecting.discard(timeout)
        except TimeoutError:
            self._addresses = (0.0, ())
            raise closed() if self._closed else TransportError(CONNECT_LATE, unreachable=True) from None
        except (socket.gaierror, UnicodeError):
            raise TransportError(UNKNOWN_HOST, unreachable=True) from None
        except OSError as error:
            self._addresses = (0.0, ())
            raise unconnected(error) from None

    async def _connected(self) -> Connection:
        loop = asyncio.get_running_loop()
        addresses = await self._resolve(loop)
        link = await aiohappyeyeballs.start_connection(addresses, happy_eyeballs_delay=_EYEBALLS, loop=loop)
        connection = Connection(self, self._limits, loop)
        try:
            await loop.create_connection(lambda: connection, sock=link)
        except BaseException:
            link.close()
            raise
        if connection.lost:
            raise TransportError(NO_ANSWER)
        self._open.add(connection)
        self._unserved[connection] = None
        if self._closed:
            connection.abort()  # who uses it will notice; its slot is free when it is gone
        return connection

    async def _resolve(self, loop: asyncio.AbstractEventLoop) -> Sequence[AddrInfoType]:
        async with self._resolving:
            until, known = self._addresses
            if time.monotonic() < until:
                return known
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            self._addresses = (time.monotonic() + _REMEMBERED, found)
            return found


_HEADS: Final = 4096
"""Most beginnings of requests that are kept; each tree may have headers of its own."""

_HEADERS: Final = re.compile(r"(?:[^\x00-\x20\x7f-\U0010ffff:]+: [^\x00-\x08\x0a-\x1f\x7f\u0100-\U0010ffff]*\r\n)*")


class _Route:
    """Where a URL leads, and the beginnings of requests to it."""

    __slots__ = ("heads", "line", "pool")

    def __init__(self, pool: ConnectionPool, target: URL) -> None:
        self.pool = pool
        self.line = f"POST {target.raw_path_qs} HTTP/1.1\r\nHost: {target.host_port_subcomponent}\r\n"
        self.heads: dict[tuple[tuple[str, str], ...], bytes] = {}

    def head(self, headers: Mapping[str, str], size: int) -> bytes:
        """Give the head of a request whose body has this size."""
        key = tuple(headers.items())
        known = self.heads.get(key)
        if known is None:
            if len(self.heads) >= _HEADS:
                self.heads.clear()
            known = self.heads[key] = self._build(headers)
        return b"%b%d\r\n\r\n" % (known, size)

    def _build(self, headers: Mapping[str, str]) -> bytes:
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if not _HEADERS.fullmatch(lines) or lines.count("\n") != len(headers) or ":" in "".join(headers):
            raise TransportError("a header holds a character that no header can carry", retry=False)
        agent = "" if "\nuser-agent:" in f"\n{lines.lower()}" else "User-Agent: trunkline\r\n"
        return f"{self.line}{agent}{lines}Content-Length: ".encode("latin-1")


class PlainTransport:
    """Posts over keep-alive connections of its own, parsed by llhttp; see ``docs/design/transport.md``.

    Redirects are not followed, cookies are not kept, no compression is asked for, the environment is not
    read. A request whose connection had answered before and was closed before any byte of this answer came
    is sent once more: that is what a server's idle timeout looks like, and a completion changes nothing on
    the server, so that the worst a second one can do is to cost its tokens again.

    Args:
        concurrency: Most connections at once to one host and port.
        connect: Seconds to establish a connection.
        idle: Seconds of silence in the middle of a body.
        keep: Seconds that a connection is kept without a request.
        largest: Most bytes of a body, after decompression.
    """

    def __init__(
        self,
        concurrency: int = 256,
        *,
        connect: float = 5.0,
        idle: float = 60.0,
        keep: float = 15.0,
        largest: int = 64 << 20,
    ) -> None:
        self._concurrency = concurrency
        self._connect = connect
        self._limits = ConnectionLimits(idle, keep, largest)
        self._routes: dict[str, _Route] = {}
        self._pools: dict[tuple[str, int], ConnectionPool] = {}
        self._closed = False

    async def post(self, url: str, headers: Mapping[str, str], body: Body, limit: float) -> Answer:
        """Send one POST; see :meth:`.transport.Transport.post`."""
        deadline = time.monotonic() + limit
        route = self._routes.get(url) or self._route(url)
        head = route.head(headers, len(body) if isinstance(body, bytes) else sum(map(len, body)))
        pool = route.pool
        connection = pool.take() or await pool.wait(deadline, limit)
        try:
            answer = await _exchange(connection, head, body, deadline, limit)
        except (UnansweredError, UnacceptedError) as error:
            kept = pool.take() if isinstance(error, UnacceptedError) else None
            connection = kept or await pool.wait(deadline, limit)
            answer = await _exchange(connection, head, body, deadline, limit)
        if "content-encoding" not in answer.headers:
            return answer
        encoding = answer.headers["content-encoding"]
        plain = await asyncio.to_thread(inflate, answer.body, encoding, self._limits.largest)
        return answer._replace(body=plain)

    async def close(self) -> None:
        """Close every connection; may be called more than once."""
        self._closed = True
        pools, self._pools = self._pools, {}
        self._routes.clear()
        for pool in pools.values():
            await pool.close()

    def _route(self, url: str) -> _Route:
        if self._closed:
            raise closed()
        try:
            target = URL(url)
        except ValueError:
            target = URL()
        if target.scheme != "http" or target.raw_host is None or target.port is None:
            raise TransportError("it is no valid URL", unreachable=True, retry=False)
        origin = (target.raw_host, target.port)
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pools[origin] = ConnectionPool(*origin, self._concurrency, self._connect, self._limits)
        route = self._routes[url] = _Route(pool, target)
        return route


async def _exchange(connection: Connection, head: bytes, body: Body, deadline: float, limit: float) -> Answer:
    future = connection.send(head, body, deadline, limit)
    try:
        return await future
    except asyncio.CancelledError:
        connection.abandon(future)
        raise
