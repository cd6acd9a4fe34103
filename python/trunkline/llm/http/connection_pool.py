"""The connections to one server: the warmest one first, never more than allowed, first come first served."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Final

import aiohappyeyeballs

from trunkline.llm.connection import Bounds, Connection
from trunkline.llm.transport import CONNECT_LATE, NO_ANSWER, UNKNOWN_HOST, TransportError, closed, late, unconnected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohappyeyeballs import AddrInfoType

__all__ = ["Pool"]

_EYEBALLS: Final = 0.25
"""Seconds until the next address of a name is tried beside one that does not answer (RFC 8305)."""

_REMEMBERED: Final = 300.0
"""Seconds that the addresses of a name are believed."""


class Pool:
    """Connections to one host and port.

    A slot is held from before a connection is made until it is closed, so that descriptors are bounded too.

    Args:
        host: A name, or an address without brackets.
        port: The port.
        size: Most connections at once.
        connect: Seconds to establish one.
        bounds: What each allows.
    """

    def __init__(self, host: str, port: int, size: int, connect: float, bounds: Bounds) -> None:
        self._host = host
        self._port = port
        self._size = size
        self._connect = connect
        self._bounds = bounds
        self._held = 0
        self._idle: dict[Connection, None] = {}  # a set that knows its order
        self._open: set[Connection] = set()
        self._sending: list[Connection] = []
        self._connecting: set[asyncio.Timeout] = set()
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
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
        for connection in sending:
            connection.write()

    def free(self, connection: Connection) -> None:
        """Give an idle connection to who waited longest, or keep it."""
        waiter = self._next()
        if waiter is not None:
            waiter.set_result(connection)
        else:
            self._idle[connection] = None

    def gone(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        self._idle.pop(connection, None)
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
        connection = Connection(self, self._bounds, loop)
        try:
            await loop.create_connection(lambda: connection, sock=link)
        except BaseException:
            link.close()
            raise
        if connection.lost:
            raise TransportError(NO_ANSWER)
        self._open.add(connection)
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
