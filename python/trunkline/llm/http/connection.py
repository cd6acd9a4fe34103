"""The sockets of an exchange table."""

from __future__ import annotations

import asyncio
import fcntl
import select
import struct
import termios
import time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, cast

from trunkline.llm.http.transport import NO_ANSWER, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trunkline._core import ExchangeTable
    from trunkline.llm.http.origin import HttpOrigin
    from trunkline.llm.http.transport import Body


__all__ = ["LONG", "ArrivedAnswer", "Connection", "ConnectionDriver", "FailedRequest", "receives_at_once"]

ArrivedAnswer = tuple[int, int, dict[bytes, bytes], bytes, float]
"""Token, status, headers by their names in lower case, body, and seconds from sending to the head of the answer."""

FailedRequest = tuple[int, str, str]
"""Token, the name of the fault, and its detail; see ``trunkline._core.ExchangeTable.tick``."""

LONG: Final = 16 << 10
"""Up to here it is cheaper to copy a body behind its head than to write twice."""

NOWHERE: Final = 0xFFFF_FFFF
"""No number of a connection."""

TURNS: Final = 1 << 63
"""The first token of requests of a turn source."""

_SHARED: Final = 256 << 10
"""Bytes of a buffer that all connections receive into."""

_DIALS: Final = 256
"""Connections that are begun in a pass of the event loop, unless an eighth of all that wait is more: what is needed to
make one is not there for all at once."""

_OWN: Final = 64 << 10
"""Bytes of one that a connection has for itself."""


def receives_at_once(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a loop asks for a buffer, fills it and hands it over in one step, so that connections can share it.

    These do, also under TLS; a loop that has reads under way cannot.
    """
    return isinstance(loop, asyncio.SelectorEventLoop) or type(loop).__module__ == "uvloop"


Writes: TypeAlias = "list[tuple[int, int, bytes | None, bool]]"
Actions: TypeAlias = "tuple[list[tuple[int, int]], Writes, list[int], list[int], float | None]"
"""What is to be done with sockets; see ``trunkline._core.ExchangeTable.act``."""


class TurnSource(Protocol):
    """Sends requests of its own over the connections of a table."""

    def land(self, now: float) -> tuple[Sequence[ArrivedAnswer], Sequence[FailedRequest]]:
        """Take what has come out of the table; returns what others have sent."""

    def act(self, now: float) -> Actions:
        """Take what is to be done out of the table."""

    def request(self, token: int) -> memoryview:
        """Make a request that is too long to be made before it is written."""

    def refused(self, token: int, error: BaseException) -> None:
        """No connection could be made for a request."""


class Connection(asyncio.BufferedProtocol):
    """One connection, which carries one request at a time.

    Attributes:
        slot: Its number.
        made: Whether it was made, so that the two that follow are there.
        transport: Where it writes.
        descriptor: The socket's.

    Args:
        driver: Who reads what it brings.
        slot: Its number.
        buffer: What it receives into.
    """

    __slots__ = ("_buffer", "_driver", "_feed", "descriptor", "made", "slot", "transport")

    def __init__(self, driver: ConnectionDriver, slot: int, buffer: memoryview) -> None:
        self._driver = driver
        self._buffer = buffer
        self.slot = slot
        self.made = False
        self._feed = driver.table.feed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a request."""
        self.transport = cast("asyncio.Transport", transport)
        if self.slot == NOWHERE:
            self.transport.abort()
            return
        self.made = True
        self.descriptor: int = transport.get_extra_info("socket").fileno()
        self._driver.opened(self.slot, self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Read on."""
        if self._feed(self.slot, self._buffer[:nbytes], time.monotonic()):
            # A server that answers before it has read the request leaves bytes of it in the way of the next.
            if self.transport.get_write_buffer_size():
                self._driver.table.unsent(self.slot)
            if not self._driver.woken:
                self._driver.wake()

    def eof_received(self) -> None:
        """The other side sends nothing more."""
        self._driver.table.eof(self.slot, time.monotonic())
        self._driver.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Be forgotten."""
        slot, self.slot = self.slot, NOWHERE
        self._driver.lost(slot, exc)

    def write(self, head: bytes, body: Body) -> None:
        """Write a request, unless the connection is closing."""
        transport = self.transport
        if transport.is_closing():
            return
        if not isinstance(body, bytes):
            transport.writelines([head, *body])
        elif len(body) > LONG:
            transport.writelines([head, body])
        else:
            transport.write(head + body)

    def unacknowledged(self) -> int:
        """Bytes of requests that the other side has not acknowledged; 0 where the system does not say."""
        try:
            (queued,) = struct.unpack("i", fcntl.ioctl(self.descriptor, termios.TIOCOUTQ, bytes(4)))
        except OSError:
            return 0
        return int(queued) + self.transport.get_write_buffer_size()


class ConnectionDriver:
    """Opens, reads, writes and closes the connections of an exchange table, in passes.

    What connections bring goes into the table at once. What follows from it is done once, in a moment, for all of
    them: a server on the same machine is woken once for many requests instead of for each, which takes as long as a
    tenth of a small call, and its answers are then read many at a time as well. There is one timer, for the earliest
    moment anything could be late: an answer that comes in time moves nothing.

    Args:
        table: What is driven.
        body: Gives the body of a request, or None if its answer is not wanted any more.
        deliver: Gets the answers that arrived and the requests that failed, once a pass.
        refuse: Gets the token of a request for which no connection could be made, and why.
    """

    __slots__ = (
        "_body",
        "_buffer",
        "_deliver",
        "_dialing",
        "_due",
        "_empty",
        "_open",
        "_origins",
        "_refuse",
        "_timer",
        "_undialed",
        "table",
        "turns",
        "woken",
    )

    def __init__(
        self,
        table: ExchangeTable,
        body: Callable[[int], Body | None],
        deliver: Callable[[Sequence[ArrivedAnswer], Sequence[FailedRequest]], None],
        refuse: Callable[[int, BaseException], None],
    ) -> None:
        self.table = table
        self._body = body
        self.turns: TurnSource | None = None
        self._deliver = deliver
        self._refuse = refuse
        self._buffer = memoryview(bytearray(_SHARED))
        self._origins: list[HttpOrigin] = []
        self._open: dict[int, Connection] = {}
        self._dialing: dict[int, asyncio.Task[None]] = {}
        self._undialed: dict[int, int] = {}
        self.woken = False
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._empty: asyncio.Event | None = None

    def add(self, origin: HttpOrigin) -> int:
        """Add somewhere to connect to, and give its number."""
        self._origins.append(origin)
        return self.table.add_origin(encrypted=origin.encrypted)

    def wake(self) -> None:
        """Run a pass in a moment."""
        if not self.woken:
            self.woken = True
            asyncio.get_running_loop().call_soon(self.run)

    def run(self) -> None:
        """Run a pass: take out of the table what is to be done, do it, and hand over what has arrived or failed."""
        self.woken = False
        now = time.monotonic()
        source = self.turns or self.table
        arrived, failed = source.land(now)
        if arrived or failed:
            self._deliver(arrived, failed)
        opens, writes, checks, closes, due = source.act(now)
        if writes:
            self._write(writes, now)
        if opens:
            under_way = bool(self._undialed)
            self._undialed.update(opens)
            if not under_way:
                self._dial_some()
        for slot in checks:
            if slot in self._open:
                self.table.unacknowledged(slot, self._open[slot].unacknowledged(), now)
                self.wake()
        for slot in closes:
            connection = self._open.get(slot)
            if connection is not None:
                connection.transport.abort()
            elif slot in self._dialing:
                self._dialing[slot].cancel()
            elif self._undialed.pop(slot, None) is not None:
                self.table.unopened(slot, now)
                self.wake()
        if due is None:
            self._stop()
        elif self._timer is None or due < self._due:
            self._stop()
            self._due = due
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due - now), self._look)

    def opened(self, slot: int, connection: Connection) -> None:
        """A connection was made."""
        self._open[slot] = connection
        self.table.opened(slot, time.monotonic())
        self.wake()

    def lost(self, slot: int, error: Exception | None) -> None:
        """A connection is closed."""
        if self._open.pop(slot, None) is None:
            return
        self.table.lost(slot, None if error is None else type(error).__name__, time.monotonic())
        self.wake()
        self._look_whether_empty()

    async def close(self) -> None:
        """Close every connection and wait until they are gone."""
        self._empty = asyncio.Event()
        self.table.close(time.monotonic())
        self.run()
        self._look_whether_empty()
        await self._empty.wait()
        self.run()
        await asyncio.sleep(0)  # a loop closes the descriptor after it has said so

    def _write(self, writes: Writes, now: float) -> None:
        connections = self._open
        spoiled = self._readable({connections[slot].descriptor: slot for slot, _, _, used in writes if used})
        for slot, token, head, _ in writes:
            if slot in spoiled:
                self.table.unasked(slot, now)
                self.wake()
            elif head is not None and token < TURNS:
                body = self._body(token)
                if body is not None:
                    connections[slot].write(head, body)
            elif not (transport := connections[slot].transport).is_closing():
                transport.write(self._long(token) if head is None else head)

    def _long(self, token: int) -> memoryview:
        assert self.turns is not None
        return self.turns.request(token)

    def _readable(self, places: Mapping[int, int]) -> set[int]:
        """Those connections, by their descriptors, that have brought something, or are closed, before a request."""
        if not places:
            return set()
        poll = select.poll()
        for descriptor in places:
            poll.register(descriptor, select.POLLIN)
        return {places[descriptor] for descriptor, _ in poll.poll(0)}

    def _dial_some(self) -> None:
        """Begin to make some connections, and the others in the passes of the loop that follow."""
        count = max(_DIALS, len(self._undialed) // 8)
        for slot in tuple(islice(self._undialed, count)):
            self._dial(slot, self._origins[self._undialed.pop(slot)])
        if self._undialed:
            asyncio.get_running_loop().call_soon(self._dial_some)

    def _dial(self, slot: int, origin: HttpOrigin) -> None:
        loop = asyncio.get_running_loop()
        connection = Connection(self, slot, self._buffer if receives_at_once(loop) else memoryview(bytearray(_OWN)))
        task = self._dialing[slot] = loop.create_task(origin.connect(connection))
        task.add_done_callback(partial(self._dialed, slot, connection))

    def _dialed(self, slot: int, connection: Connection, task: asyncio.Task[None]) -> None:
        """The making of a connection has ended."""
        if self._dialing.get(slot) is task:
            del self._dialing[slot]
        error = None if task.cancelled() else task.exception()
        if connection.made and connection.slot == slot and (task.cancelled() or error):
            # Some loops close what was made and say nothing about it.
            connection.transport.abort()
            connection.connection_lost(None)
        elif not connection.made:
            connection.slot = NOWHERE  # should it be made after all
            token = self.table.unopened(slot, time.monotonic())
            if token is not None:
                self._refuse(token, error or TransportError(NO_ANSWER))
            self.wake()
        self._look_whether_empty()

    def _look(self) -> None:
        self._timer = None
        self.run()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_whether_empty(self) -> None:
        if self._empty is not None and not self._open and not self._dialing and not self._undialed:
            self._empty.set()
