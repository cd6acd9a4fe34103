"""The HTTP side: routes, streaming, start and stop."""

from __future__ import annotations

import asyncio
import hmac
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import web

from trunkline.errors import EndpointError
from trunkline.sim.model.catalog import MODELS
from trunkline.sim.model.dials import PRESETS, SIM_VERSION
from trunkline.sim.server.chat_api import chat_deltas
from trunkline.sim.server.completion_api import completion_deltas
from trunkline.sim.server.latency import Engine
from trunkline.sim.server.requests import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
    decode,
)
from trunkline.sim.server.service import Service
from trunkline.sim.server.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from trunkline.sim.server.service import Answer

__all__ = ["App", "Server", "start_server"]

_MOST_BYTES: Final = 256 * 2**20
_ENCODE: Final = msgspec.json.Encoder().encode
_JSON: Final = "application/json"


class App:
    """The application of one server.

    Args:
        settings: What it is told; the defaults when not given.

    Raises:
        ConfigError: The preset or a dial does not exist.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.service = Service(self.settings)
        self._engine = Engine(self.settings.latency)
        self.web = web.Application(client_max_size=_MOST_BYTES, middlewares=[self._guard])
        self.web.add_routes(
            [
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._complete),
                web.post("/tokenize", self._tokenize),
                web.post("/detokenize", self._detokenize),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
            ]
        )

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        metrics = self.service.metrics
        path = request.path if request.match_info.http_exception is None else "other"
        metrics.in_flight += 1
        status = 499
        try:
            self._authorise(request)
            response = await handler(request)
            status = response.status
        except ApiError as error:
            status = error.status
            return web.Response(status=error.status, body=error.body, content_type=_JSON, headers=error.headers)
        except web.HTTPException as error:
            status = error.status
            refused = ApiError(error.status, f"{request.method} {path}: {error.reason}", code="not_found")
            return web.Response(status=error.status, body=refused.body, content_type=_JSON)
        else:
            return response
        finally:
            metrics.in_flight -= 1
            metrics.requests[path, status] += 1

    def _authorise(self, request: web.Request) -> None:
        key = self.settings.api_key
        if not key or request.path in {"/health", "/metrics"}:
            return
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if not hmac.compare_digest(given.encode(), key.encode()):
            raise ApiError(401, "Incorrect API key provided.", code="invalid_api_key")

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.service.maybe_fail(body)
        asked = decode(body, ChatRequest)
        async with self._engine.place():
            answer = self.service.chat(asked)
            return await self._send(request, asked, answer, chat_deltas, "chat.completion.chunk")

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.service.maybe_fail(body)
        asked = decode(body, CompletionRequest)
        async with self._engine.place():
            answer = self.service.complete(asked)
            return await self._send(request, asked, answer, completion_deltas, "text_completion")

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
        rows = [
            {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": "trunkline",
                "max_model_len": self.settings.max_context,
                "sim_version": SIM_VERSION,
            }
            for name in names
        ]
        return web.Response(body=_ENCODE({"object": "list", "data": rows}), content_type=_JSON)

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(body=b'{"status":"ok"}', content_type=_JSON)

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(text=self.service.metrics.text())


class Server:
    """A running server.

    Attributes:
        base_url: Where clients connect, with ``/v1`` at its end.
        app: The application, for its counters.
    """

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
        await self._runner.cleanup()


async def start_server(settings: Settings | None = None, *, host: str = "127.0.0.1", port: int = 0) -> Server:
    """Start a server in the running event loop.

    Args:
        settings: What it is told; the defaults when not given.
        host: The address to bind; only this machine can reach the default.
        port: The port, or 0 for a free one.

    Raises:
        ConfigError: The preset or a dial does not exist.
        EndpointError: The address cannot be bound.
    """
    app = App(settings)
    runner = web.AppRunner(app.web, access_log=None, handle_signals=False, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise EndpointError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    bound = runner.addresses[0]
    shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
    return Server(runner, f"http://{shown}:{bound[1]}/v1", app)
