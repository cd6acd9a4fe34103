"""Serves the endpoint of a worker on loopback: each rollout has a base URL of its own, which is secret."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec
from aiohttp import web

from trunkline._internal.resources import make_room
from trunkline._internal.text import HIDDEN, describe_error, excerpt
from trunkline.gateway.formats import FORMATS
from trunkline.gateway.types import RequestRefused, SeenMessages

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from trunkline.gateway.types import AgentReply, AgentRequest, Format

logger = logging.getLogger(__name__)
_silent = logging.getLogger(f"{__name__}.http")
_silent.disabled = True

_MOST_BYTES: Final = 64 << 20
"""Of a request's body."""

_MOST_VALUES: Final = 1_000_000
"""Of a body of more than ``_LARGE`` bytes, told by commas and brackets; each value costs time and much memory."""
_LARGE: Final = 4 << 20
_READING: Final = 8
"""Bodies of one rollout that are read at a time; and of all rollouts, bodies that may be large."""
_SENT_WITHIN: Final = 30.0
"""Seconds in which a body that may be large must come, once it is read."""
_REQUESTS: Final = 256
"""Requests of one rollout at a time."""
_IDLE: Final = 256
"""Connections without a request; of more, the oldest are closed."""
_ROOM: Final = 4096
"""Connections that this process may have open, where its limits allow it."""

_ALIVE: Final = 10.0
"""Seconds between two comment lines of a stream whose reply is being made."""

_MODELS: Final = "/v1/models"
_JSON: Final = "application/json"


class RepeatedRequest(NamedTuple):
    """Tells a request that is sent again from a new one.

    Attributes:
        attempts: How often the client says that it has sent it before.
        key: The key that all its attempts share; empty where the client gives none.
        connected: Whether the client still waits for the reply.
    """

    attempts: int = 0
    key: str = ""
    connected: Callable[[], bool] = lambda: True


class GatewayAnswer(Protocol):
    """A reply, and whether the agent has it."""

    reply: AgentReply

    def delivered(self) -> None:
        """Note that the reply was written to its end."""
        ...


class GatewaySession(Protocol):
    """The rollout behind a base URL."""

    refused: int
    """How many requests were not offered, or were no requests."""

    async def answer(self, request: AgentRequest, repetition: RepeatedRequest) -> GatewayAnswer:
        """Return the reply to a request; raises RequestRefused."""
        ...


class _Served:
    """A rollout that is served, with how many requests it has."""

    def __init__(self, session: GatewaySession) -> None:
        self.session = session
        self.requests = 0
        self.reading = asyncio.Semaphore(_READING)
        self.reading_large = asyncio.Lock()
        self.seen = SeenMessages()


class Gateway:
    """The endpoint of a worker; make and close it in its event loop."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Served] = {}
        self._runner: web.AppRunner | None = None
        self._listening: asyncio.Server | None = None
        self._busy: set[asyncio.Transport | None] = set()
        self._port = 0
        self._large = asyncio.Semaphore(_READING)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Listen on a free port of 127.0.0.1."""
        app = web.Application(middlewares=[self._guard], client_max_size=_MOST_BYTES)
        app.router.add_route("*", "/{secret}/{path:.*}", self._serve)
        # What is no HTTP is answered with status 400; aiohttp would also log it, with its traceback.
        self._runner = web.AppRunner(app, access_log=None, logger=_silent, shutdown_timeout=1.0)
        await self._runner.setup()
        make_room(0, _ROOM)
        self._listening = await asyncio.get_running_loop().create_server(self._connected, "127.0.0.1", 0)
        self._port = int(self._listening.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening, and cut the requests that are left."""
        for task in tuple(self._tasks):
            task.cancel()
        if self._listening is not None:
            self._listening.close()
        if self._runner is not None:
            await self._runner.cleanup()

    @contextmanager
    def serving(self, secret: str, session: GatewaySession, origin: str = "") -> Iterator[str]:
        """Serve a session; yields its base URL, which ends with the secret, at an address of :meth:`listening`."""
        self._sessions[secret] = _Served(session)
        try:
            yield f"{origin or self.origin}/{secret}"
        finally:
            del self._sessions[secret]

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
        server = await asyncio.get_running_loop().create_server(self._connected, sock=listener)
        try:
            yield f"http://{host}:{port}"
        finally:
            server.close()

    def _connected(self) -> asyncio.Protocol:
        """Serve a new connection; one agent that opens many takes those of no other that asks."""
        assert self._runner is not None
        assert self._runner.server is not None
        idle = [one for one in self._runner.server.connections if one.transport and one.transport not in self._busy]
        for one in idle[: max(0, len(idle) - _IDLE)]:
            one.force_close()
        return self._runner.server()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        # aiohttp may not be left to cut requests itself: where one ends just then, it logs a traceback.
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        transport = request.transport
        self._busy.add(transport)
        try:
            return await handler(request)
        except ConnectionError:
            return web.Response(status=499)  # the agent has hung up: nothing can be sent
        except web.HTTPException as error:
            return _refused(_format_of(request.path), RequestRefused(f"no such path: {error.reason}", error.status))
        except Exception as problem:  # noqa: BLE001 - a fault of this module ends no rollout
            logger.error("a request of an agent failed: %s", excerpt(describe_error(problem), 300))  # noqa: TRY400
            return _refused(_format_of(request.path), RequestRefused("the request failed here", 500))
        finally:
            self._busy.discard(transport)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        served = self._sessions.get(request.match_info["secret"])
        if served is None:
            return web.Response(status=404, text="no rollout is served here")
        served.requests += 1
        try:
            return await self._route(request, served)
        finally:
            served.requests -= 1

    async def _route(self, request: web.Request, served: _Served) -> web.StreamResponse:
        session = served.session
        route = "/" + request.match_info["path"].strip("/")
        form = _format_of(route)
        try:
            if request.method == "GET" and (route == _MODELS or route.startswith(f"{_MODELS}/")):
                return _models(route)
            if request.method != "POST" or form.route != route:
                raise RequestRefused(f"{request.method} {excerpt(route, 80)} is not offered here", 404, "not_found")
            if served.requests > _REQUESTS:
                raise RequestRefused(f"more than {_REQUESTS} requests at a time: wait for replies", 429, retry=True)
            async with served.reading:
                body = _decoded(await self._read(request, served), request.match_info["secret"])
            asked = form.read(body, served.seen)
        except RequestRefused as refusal:
            session.refused += 1
            return _refused(form, refusal)
        return await self._answer(request, session, form, asked)

    async def _read(self, request: web.Request, served: _Served) -> bytes:
        """Read a body; those that may be large one by one, so that many agents together do not fill the memory."""
        try:
            if (request.content_length or _MOST_BYTES) <= _LARGE:
                return await request.read()
            async with served.reading_large, self._large, asyncio.timeout(_SENT_WITHIN):
                return await request.read()
        except TimeoutError:
            raise RequestRefused(f"the body did not come within {_SENT_WITHIN:.0f} s", 408) from None
        except web.HTTPRequestEntityTooLarge:
            raise RequestRefused(f"the body is larger than {_MOST_BYTES:,} bytes: shorten it", 413) from None
        except web.RequestPayloadError as problem:
            raise _no_object(problem) from None

    async def _answer(
        self, request: web.Request, session: GatewaySession, form: Format, asked: AgentRequest
    ) -> web.StreamResponse:
        """Wait for the reply, and write it; a stream is kept open by comment lines meanwhile."""
        repetition = _repetition(request)
        working = asyncio.ensure_future(session.answer(asked, repetition))
        stream: web.StreamResponse | None = None
        try:
            while not working.done():
                await asyncio.wait((working,), timeout=_ALIVE if asked.stream else None)
                if not working.done():
                    if stream is None:
                        stream = await _stream(request)
                    await stream.write(b": waiting for the model\n\n")
            answer = working.result()
        except RequestRefused as refusal:
            if stream is None:
                return _refused(form, refusal)
            await stream.write(b"event: error\ndata: " + msgspec.json.encode(form.refuse(refusal)) + b"\n\n")
            await stream.write_eof()
            return stream
        finally:
            working.cancel()
        if not asked.stream:
            whole = web.Response(body=msgspec.json.encode(form.write(asked, answer.reply)), content_type=_JSON)
            await whole.prepare(request)
            await whole.write_eof()
            stream = whole
        else:
            stream = await _stream(request) if stream is None else stream
            for event in form.events(asked, answer.reply):
                await stream.write(event)
            await stream.write_eof()
        if repetition.connected():
            answer.delivered()
        return stream


async def _stream(request: web.Request) -> web.StreamResponse:
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await stream.prepare(request)
    return stream


def _decoded(data: bytes, secret: str) -> dict[str, Any]:
    """Decode a body; an agent that writes its base URL into it has the secret hidden, as it is kept in the run file."""
    if (key := secret.encode()) in data:
        data = data.replace(key, HIDDEN.encode())
    if len(data) > _LARGE and sum(map(data.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise RequestRefused(f"the body has more than {_MOST_VALUES:,} values: shorten it", 413)
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as problem:
        raise _no_object(problem) from None


def _no_object(problem: Exception) -> RequestRefused:
    return RequestRefused(f"the body is no JSON object: {excerpt(describe_error(problem), 200)}")


def _format_of(route: str) -> Format:
    """The interface of a path; of a path that none has, the one that its client speaks."""
    known = FORMATS.get(route)
    if known is None:
        known = FORMATS["/v1/messages" if route.startswith("/v1/messages/") else "/v1/chat/completions"]
    return known


def _repetition(request: web.Request) -> RepeatedRequest:
    headers, attempts = request.headers, 0
    with suppress(ValueError):
        attempts = min(int(headers.get("X-Stainless-Retry-Count", "0")[:9]), 1_000_000)
    transport = request.transport

    def connected() -> bool:
        return transport is not None and not transport.is_closing()

    return RepeatedRequest(max(0, attempts), headers.get("Idempotency-Key", "")[:200], connected)


def _models(route: str) -> web.Response:
    """The models: any name is taken, as the run says which model is asked."""
    model = {"id": route[len(_MODELS) + 1 :] or "model", "object": "model", "created": 0, "owned_by": "trunkline"}
    found = model if len(route) > len(_MODELS) + 1 else {"object": "list", "data": [model]}
    return web.Response(body=msgspec.json.encode(found), content_type=_JSON)


def _refused(form: Format, refusal: RequestRefused) -> web.Response:
    """A refusal in the words of the interface, and whether to ask again in those of its official clients."""
    headers = {"X-Should-Retry": "true" if refusal.retry else "false"}
    body = msgspec.json.encode(form.refuse(refusal))
    return web.Response(status=refusal.status, body=body, content_type=_JSON, headers=headers)
