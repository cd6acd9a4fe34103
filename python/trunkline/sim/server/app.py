"""Routes, streaming, start and stop."""

from __future__ import annotations

import asyncio
import hmac
import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import http_exceptions, web

from trunkline.errors import ConfigError, EndpointError
from trunkline.sim.model.choices import PRESETS
from trunkline.sim.model.registry import MODELS
from trunkline.sim.server.api import GenerateRequest, chat_deltas, completion_deltas
from trunkline.sim.server.latency import Engine
from trunkline.sim.server.options import MOST_PORT, Settings
from trunkline.sim.server.requests import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Request,
    TokenizeRequest,
    decode,
)
from trunkline.sim.server.service import Service

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from trunkline.sim.server.service import Answer

__all__ = ["App", "Server", "start_server"]

_MOST_BYTES: Final = 256 * 2**20
_ENCODE: Final = msgspec.json.Encoder().encode
_JSON: Final = "application/json"
_CODES: Final = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}
_MOST_SHOWN: Final = 200
_PATIENCE: Final = 0.5
_LOG: Final = logging.getLogger(__name__)


class App:
    """The application of one server.

    Raises:
        ConfigError: The preset or a dial does not exist.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.service = Service(self.settings)
        self._engine = Engine(self.settings.latency)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = False
        self.web = web.Application(client_max_size=_MOST_BYTES, middlewares=[self._guard])
        self.web.add_routes(
            [
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._complete),
                web.post("/generate", self._generate),
                web.post("/tokenize", self._tokenize),
                web.post("/detokenize", self._detokenize),
                web.get("/v1/models", self._models),
                web.get("/v1/models/{name:.+}", self._one_model),
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
            ]
        )

    async def close(self) -> None:
        """Refuse new requests and cut those in flight, in half a second at most."""
        self._closing = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_PATIENCE)

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        metrics = self.service.metrics
        resource = request.match_info.route.resource
        path = resource.canonical if resource is not None else "other"
        metrics.in_flight += 1
        status = 499
        try:
            # aiohttp may not be left to cut requests itself: where one ends just then, it logs a traceback.
            task = asyncio.current_task()
            if task is not None:
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            if self._closing:
                raise ApiError(503, "The server is stopping.", kind="server_error", code="stopping")
            self._authorise(request)
            response = await handler(request)
            status = response.status
            return response  # noqa: TRY300 - the status belongs to the metrics below
        except ConnectionError:
            # The client has gone; sending this fails in the same way, which aiohttp takes for an end.
            return web.Response(status=status)
        except (ApiError, web.HTTPException, web.RequestPayloadError) as error:
            refused = self._refusal(request, error)
            status = refused.status
            return web.Response(status=status, body=refused.body, content_type=_JSON, headers=refused.headers)
        finally:
            metrics.in_flight -= 1
            metrics.requests[path, status] += 1

    def _refusal(self, request: web.Request, error: ApiError | web.HTTPException | web.RequestPayloadError) -> ApiError:
        if isinstance(error, ApiError):
            return error
        if isinstance(error, web.RequestPayloadError):
            return ApiError(400, f"the body cannot be read: {error}", code="invalid_body")
        asked = f"{request.method} {request.rel_url.raw_path}"
        asked = asked if len(asked) <= _MOST_SHOWN else asked[:_MOST_SHOWN] + "..."
        message, headers = f"{asked}: {error.reason}", {}
        if isinstance(error, web.HTTPMethodNotAllowed):
            allowed = ", ".join(sorted(error.allowed_methods))
            message, headers = f"wrong method: {asked}; this path takes {allowed}", {"Allow": allowed}
        elif error.status == 404:
            paths = dict.fromkeys(resource.canonical for resource in self.web.router.resources())
            message = f"no such path: {asked}; this server has {', '.join(paths)}"
        return ApiError(error.status, message, code=_CODES.get(error.status, "invalid_request"), headers=headers)

    def _authorise(self, request: web.Request) -> None:
        key = self.settings.api_key
        if not key or request.path in {"/health", "/metrics"}:
            return
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if not hmac.compare_digest(given.encode(), key.encode()):
            raise ApiError(401, "Incorrect API key provided.", code="invalid_api_key")

    async def _read(self, request: web.Request, kind: type[Request]) -> Request:
        body = await request.read()
        self.service.maybe_fail(body)
        return decode(body, kind)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        asked = await self._read(request, ChatRequest)
        async with self._engine.place():
            answer = self.service.chat(asked)
            return await self._send(request, asked, answer, chat_deltas, "chat.completion.chunk")

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        asked = await self._read(request, CompletionRequest)
        async with self._engine.place():
            answer = self.service.complete(asked)
            return await self._send(request, asked, answer, completion_deltas, "text_completion")

    async def _generate(self, request: web.Request) -> web.Response:
        asked = await self._read(request, GenerateRequest)
        async with self._engine.place():
            shown, answer = self.service.generate(asked)
            span = self._engine.span(answer.uncached, answer.longest, answer.key)
            if span.total:
                await asyncio.sleep(span.total)
            return web.Response(body=_ENCODE(shown), content_type=_JSON)

    async def _send(
        self,
        request: web.Request,
        asked: ChatRequest | CompletionRequest,
        answer: Answer,
        deltas: Callable[[dict[str, Any]], Iterator[dict[str, Any]]],
        kind: str,
    ) -> web.StreamResponse:
        span = self._engine.span(answer.uncached, answer.longest, answer.key)
        if not asked.stream:
            if span.total:
                await asyncio.sleep(span.total)
            whole = {**answer.head, "choices": answer.choices, "usage": answer.usage, **answer.extra}
            return web.Response(body=_ENCODE(whole), content_type=_JSON)
        if span.first:
            await asyncio.sleep(span.first)
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        )
        await response.prepare(request)
        head = {**answer.head, "object": kind}
        with_usage = bool(asked.stream_options and asked.stream_options.include_usage)
        chunks = [chunk for choice in answer.choices for chunk in deltas(choice)]
        pause = (span.total - span.first) / len(chunks)
        for number, chunk in enumerate(chunks):
            data = {**head, "choices": [chunk], **(answer.extra if number == 0 else {})}
            if with_usage:
                data["usage"] = None
            if pause:
                await asyncio.sleep(pause)
            await response.write(b"data: " + _ENCODE(data) + b"\n\n")
        if with_usage:
            await response.write(b"data: " + _ENCODE({**head, "choices": [], "usage": answer.usage}) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _tokenize(self, request: web.Request) -> web.Response:
        asked = decode(await request.read(), TokenizeRequest)
        return web.Response(body=_ENCODE(self.service.tokenize(asked)), content_type=_JSON)

    async def _detokenize(self, request: web.Request) -> web.Response:
        asked = decode(await request.read(), DetokenizeRequest)
        return web.Response(body=_ENCODE(self.service.detokenize(asked)), content_type=_JSON)

    async def _models(self, _request: web.Request) -> web.Response:
        names = [name for base in MODELS for name in (base, *(f"{base}:{preset}" for preset in PRESETS))]
        rows = [self.service.describe(name) for name in names]
        return web.Response(body=_ENCODE({"object": "list", "data": rows}), content_type=_JSON)

    async def _one_model(self, request: web.Request) -> web.Response:
        return web.Response(body=_ENCODE(self.service.describe(request.match_info["name"])), content_type=_JSON)

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(body=b'{"status":"ok"}', content_type=_JSON)

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(text=self.service.metrics.text())


def _worth_a_record(record: logging.LogRecord) -> bool:
    """Whether a record is of more than a client without proper HTTP, which the reply has told."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, (http_exceptions.HttpProcessingError, web.RequestPayloadError))


_LOG.addFilter(_worth_a_record)


class Server:
    """A running server; clients connect at ``base_url``, with ``/v1`` at its end."""

    def __init__(self, runner: web.AppRunner, base_url: str, app: App) -> None:
        self._runner = runner
        self.base_url = base_url
        self.app = app

    @property
    def root_url(self) -> str:
        """The address without ``/v1``, for ``/tokenize``, ``/health`` and ``/metrics``."""
        return self.base_url.removesuffix("/v1")

    async def stop(self) -> None:
        """Close the port and all connections; replies in flight are cut."""
        await self.app.close()
        await self._runner.cleanup()


async def start_server(settings: Settings | None = None, *, host: str = "127.0.0.1", port: int = 0) -> Server:
    """Start a server in the running event loop; port 0 takes a free one.

    Raises:
        ConfigError: The preset or a dial does not exist, or there is no such port.
        EndpointError: The address cannot be bound.
    """
    if not 0 <= port <= MOST_PORT:
        raise ConfigError(f"port: expected a whole number from 0 to {MOST_PORT}, got {port}")
    if not host:
        raise ConfigError("host: is empty; name an address, or 0.0.0.0 for all of this machine's")
    app = App(settings)
    runner = web.AppRunner(app.web, access_log=None, logger=_LOG, handle_signals=False, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except (OSError, UnicodeError) as error:
        await runner.cleanup()
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise EndpointError(f"cannot listen on {host}:{port}: {reason}") from error
    bound = runner.addresses[0]
    shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
    return Server(runner, f"http://{shown}:{bound[1]}/v1", app)
