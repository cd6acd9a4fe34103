"""Serves the endpoint of a worker on loopback: each rollout has a base URL of its own, which is secret."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from trunkline._internal.resources import make_room
from trunkline._internal.text import describe_error, excerpt
from trunkline.gateway.connection import JSON, TEXT, AgentConnection
from trunkline.gateway.formats import FORMATS
from trunkline.gateway.requests import LARGE, AgentRequests
from trunkline.gateway.types import RequestRefused

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from trunkline.gateway.connection import HttpRequest
    from trunkline.gateway.types import AgentReply, AgentRequest, Format

logger = logging.getLogger(__name__)

_READING: Final = 8
"""Bodies of one rollout that are not small and are read at a time; and of all rollouts, bodies that may be large."""
_SENT_WITHIN: Final = 30.0
"""Seconds in which such a body must come, once it is read."""
_REQUESTS: Final = 256
"""Requests of one rollout at a time."""
_IDLE: Final = 64
"""Connections between two requests, by rollout; of more, the oldest are closed."""
_NEW: Final = 1024
"""Likewise of connections that have asked nothing yet."""
_ROOM: Final = 4096
"""Connections that this process may have open, where its limits allow it."""

_ALIVE: Final = 10.0
"""Seconds between two comment lines of a stream whose reply is being made."""
_COMMENT: Final = b": waiting for the model\n\n"

_MODELS: Final = "/v1/models"
_NOT_SERVED: Final = b"no rollout is served here"


class GatewayCall(Protocol):
    """A request of an agent, which waits for its reply.

    Attributes:
        attempts: How often the client says that it has sent it before.
        key: The key that all its attempts share; empty where the client gives none.
    """

    attempts: int
    key: str

    def waits(self) -> bool:
        """Whether the client still waits for the reply."""
        ...

    def reply(self, reply: AgentReply, delivered: Callable[[], None]) -> None:
        """Write the reply; ``delivered`` is called once it was written to its end."""
        ...

    def refuse(self, refusal: RequestRefused) -> None:
        """Write that there is no reply."""
        ...


class GatewaySession(Protocol):
    """The rollout behind a base URL."""

    refused: int
    """How many requests were not offered, or were no requests."""

    def answer(self, request: AgentRequest, call: GatewayCall) -> None:
        """Reply to a request, now or later; raises RequestRefused."""
        ...


class ConnectionPool:
    """Connections of one rollout, or those that belong to none yet.

    Args:
        most: How many may wait for a next request; of more, the oldest are closed.
    """

    def __init__(self, most: int) -> None:
        self.busy: dict[AgentConnection, None] = {}
        self.idle: dict[AgentConnection, None] = {}
        self._most = most

    def begin(self, connection: AgentConnection) -> None:
        """Note that a connection has a request."""
        self.idle.pop(connection, None)
        self.busy[connection] = None

    def wait(self, connection: AgentConnection) -> None:
        """Have a connection wait for its next request; one agent that opens many takes those of no other."""
        self.busy.pop(connection, None)
        self.idle[connection] = None
        if len(self.idle) > self._most:
            oldest = next(iter(self.idle))
            del self.idle[oldest]
            oldest.cut()

    def leave(self, connection: AgentConnection) -> None:
        """Note that a connection is of this pool no longer."""
        self.busy.pop(connection, None)
        self.idle.pop(connection, None)


class ServedRollout:
    """A rollout that is served."""

    def __init__(self, secret: str, session: GatewaySession) -> None:
        self.session = session
        self.requests = AgentRequests(secret.encode())
        self.calls: dict[WaitingCall, None] = {}
        self.bodies: set[asyncio.Task[None]] = set()
        self.connections = ConnectionPool(_IDLE)
        self.reading = asyncio.Semaphore(_READING)
        self.reading_large = asyncio.Lock()

    @property
    def is_full(self) -> bool:
        """Whether no further request is served now."""
        return len(self.calls) + len(self.bodies) >= _REQUESTS


class WaitingCall:
    """A request of an agent whose reply is being made; see ``GatewayCall``."""

    def __init__(
        self,
        connection: AgentConnection,
        served: ServedRollout,
        form: Format,
        asked: AgentRequest,
        said: Sequence[str | None],
    ) -> None:
        retries, key = said
        self.attempts = _whole(retries)
        self.key = (key or "")[:200]
        self.waits = connection.is_open
        self._connection = connection
        self._served = served
        self._form = form
        self._asked = asked
        self._begun = False
        self._timer: asyncio.TimerHandle | None = None
        served.calls[self] = None
        if asked.stream:
            self._timer = asyncio.get_running_loop().call_later(_ALIVE, self._alive)

    def _alive(self) -> None:
        """Keep a stream open by a comment line."""
        self._begin()
        self._connection.put(_COMMENT)
        self._timer = asyncio.get_running_loop().call_later(_ALIVE, self._alive)

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._connection.begin_stream()

    def end(self) -> bool:
        """Wait no longer; returns whether the client does."""
        self._served.calls.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        return self._connection.is_open()

    def reply(self, reply: AgentReply, delivered: Callable[[], None]) -> None:
        if not self.end():
            return
        asked, form = self._asked, self._form
        if reply.model != asked.model:
            reply = msgspec.structs.replace(reply, model=asked.model)
        try:
            if asked.stream:
                self._begin()
                self._connection.end_stream(form.events(asked, reply), delivered)
            else:
                self._connection.reply(200, msgspec.json.encode(form.write(asked, reply)), JSON, delivered)
        except Exception as problem:  # noqa: BLE001 - a fault of this module ends no rollout
            _log(problem)
            self._connection.cut()

    def refuse(self, refusal: RequestRefused) -> None:
        if not self.end():
            return
        if self._begun:
            said = b"event: error\ndata: " + msgspec.json.encode(self._form.refuse(refusal)) + b"\n\n"
            self._connection.end_stream((said,))
        else:
            self._connection.reply(*_written(self._form, refusal))


def _whole(text: str | None) -> int:
    """The number of attempts that a header says; 0 where it says none."""
    if text:
        with suppress(ValueError):
            return min(max(0, int(text[:9])), 1_000_000)
    return 0


class Gateway:
    """The endpoint of a worker; make and close it in its event loop."""

    def __init__(self) -> None:
        self._sessions: dict[str, ServedRollout] = {}
        self._listening: asyncio.Server | None = None
        self._connections: dict[AgentConnection, ConnectionPool] = {}
        self._new = ConnectionPool(_NEW)
        self._port = 0
        self._large = asyncio.Semaphore(_READING)

    async def start(self) -> None:
        """Listen on a free port of 127.0.0.1."""
        make_room(0, _ROOM)
        self._listening = await asyncio.get_running_loop().create_server(self._connect, "127.0.0.1", 0)
        self._port = int(self._listening.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening, and cut the connections that are left."""
        if self._listening is not None:
            self._listening.close()
        for served in self._sessions.values():
            for task in served.bodies:
                task.cancel()
        for connection in tuple(self._connections):
            connection.cut()
        await asyncio.sleep(0)

    @contextmanager
    def serving(self, secret: str, session: GatewaySession, origin: str = "") -> Iterator[str]:
        """Serve a session; yields its base URL, which ends with the secret, at an address of ``listening``."""
        served = self._sessions[secret] = ServedRollout(secret, session)
        try:
            yield f"{origin or self.origin}/{secret}"
        finally:
            del self._sessions[secret]
            for task in served.bodies:
                task.cancel()
            for connection in tuple(served.connections.busy):
                connection.cut()
            for connection in tuple(served.connections.idle):
                served.connections.leave(connection)
                self.opened(connection)

    @property
    def origin(self) -> str:
        """The address of the server, without a path."""
        return f"http://127.0.0.1:{self._port}"

    @asynccontextmanager
    async def listening(self, listener: socket.socket | None) -> AsyncIterator[str]:
        """Serve on one more socket, which is listening already, if there is one; yields the address."""
        if listener is None:
            yield self.origin
            return
        host, port = listener.getsockname()
        server = await asyncio.get_running_loop().create_server(self._connect, sock=listener)
        try:
            yield f"http://{host}:{port}"
        finally:
            server.close()

    def _connect(self) -> AgentConnection:
        return AgentConnection(self)

    def opened(self, connection: AgentConnection) -> None:
        """Note a new connection."""
        self._connections[connection] = self._new
        self._new.wait(connection)

    def closed(self, connection: AgentConnection) -> None:
        """Note that a connection is closed."""
        self._connections.pop(connection, self._new).leave(connection)

    def served(self, connection: AgentConnection) -> None:
        """Note that a request has its reply."""
        self._connections[connection].wait(connection)

    def refuse(self, connection: AgentConnection, status: int, text: str) -> None:
        """Answer what is no request."""
        connection.refuse(*_written(_format_of(""), RequestRefused(text, status)))

    def _find(self, connection: AgentConnection, target: str) -> tuple[ServedRollout | None, str]:
        """The rollout of a target, and the path behind its secret."""
        path = target.partition("?")[0]
        if "://" in path:
            path = "/" + path.partition("://")[2].partition("/")[2]
        secret, _, route = path[1:].partition("/")
        served = self._sessions.get(secret)
        pool, before = self._new if served is None else served.connections, self._connections[connection]
        if pool is not before:
            before.leave(connection)
            self._connections[connection] = pool
        pool.begin(connection)
        return served, "/" + route.strip("/")

    def admit(self, connection: AgentConnection, target: str, size: int | None) -> None:
        """Read a body that is not small as one of few."""
        served, route = self._find(connection, target)
        if served is None:
            connection.refuse(404, _NOT_SERVED, TEXT)
            return
        if served.is_full:
            served.session.refused += 1
            connection.refuse(*_written(_format_of(route), _too_many()))
            return
        task = asyncio.get_running_loop().create_task(self._read_body(connection, served, _format_of(route), size))
        served.bodies.add(task)
        task.add_done_callback(served.bodies.discard)

    async def _read_body(
        self, connection: AgentConnection, served: ServedRollout, form: Format, size: int | None
    ) -> None:
        """Read a body, large ones one by one, so that many agents together do not fill the memory."""
        large = size is None or size > LARGE
        alone = (served.reading_large, self._large) if large else (nullcontext(), nullcontext())
        try:
            async with served.reading, alone[0], alone[1], asyncio.timeout(_SENT_WITHIN):
                await connection.body()
        except TimeoutError:
            late = RequestRefused(f"the body did not come within {_SENT_WITHIN:.0f} s", 408)
            served.session.refused += 1
            connection.refuse(*_written(form, late))

    def serve(self, connection: AgentConnection, request: HttpRequest) -> None:
        """Serve a request, which is answered at once where it is refused or on record."""
        served, route = self._find(connection, request.target)
        if served is None:
            connection.reply(404, _NOT_SERVED, TEXT)
            return
        form, session = _format_of(route), served.session
        try:
            if request.method == "GET" and (route == _MODELS or route.startswith(f"{_MODELS}/")):
                connection.reply(200, _models(route))
                return
            try:
                asked = _read(request, route, form, served)
            except RequestRefused:
                session.refused += 1
                raise
            call = WaitingCall(connection, served, form, asked, request.said)
            try:
                session.answer(asked, call)
            except BaseException:
                call.end()
                raise
        except RequestRefused as refusal:
            connection.reply(*_written(form, refusal))
        except Exception as problem:  # noqa: BLE001 - a fault of this module ends no rollout
            _log(problem)
            connection.reply(*_written(form, RequestRefused("the request failed here", 500)))


def _log(problem: Exception) -> None:
    logger.error("a request of an agent failed: %s", excerpt(describe_error(problem), 300))


def _read(request: HttpRequest, route: str, form: Format, served: ServedRollout) -> AgentRequest:
    if request.method != "POST" or form.route != route:
        raise RequestRefused(f"{request.method} {excerpt(route, 80)} is not offered here", 404, "not_found")
    if len(served.calls) >= _REQUESTS:
        raise _too_many()
    return served.requests.read(form, request.body)


def _too_many() -> RequestRefused:
    return RequestRefused(f"more than {_REQUESTS} requests at a time: wait for replies", 429, retry=True)


def _format_of(route: str) -> Format:
    """The interface of a path; of a path that none has, the one that its client speaks."""
    known = FORMATS.get(route)
    if known is None:
        known = FORMATS["/v1/messages" if route.startswith("/v1/messages/") else "/v1/chat/completions"]
    return known


def _models(route: str) -> bytes:
    """The models: any name is taken, as the run says which model is asked."""
    model = {"id": route[len(_MODELS) + 1 :] or "model", "object": "model", "created": 0, "owned_by": "trunkline"}
    return msgspec.json.encode(model if len(route) > len(_MODELS) + 1 else {"object": "list", "data": [model]})


def _written(form: Format, refusal: RequestRefused) -> tuple[int, bytes, bytes]:
    """A refusal in the words of the interface, and whether to ask again in those of its official clients."""
    head = JSON + (b"X-Should-Retry: true\r\n" if refusal.retry else b"X-Should-Retry: false\r\n")
    return refusal.status, msgspec.json.encode(form.refuse(refusal)), head
