"""MCP servers by HTTP, in a thread: one of an older protocol with sessions, written by hand, and one by the SDK."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web
from mcp_raw import TOOLS, tool


class Sessions:
    """A sum for each session; ``total`` answers with another, by its name, and counts the sessions."""

    def __init__(self) -> None:
        self.url = ""
        self.totals: dict[str, int] = {}
        self.ended: set[str] = set()
        self.keys: set[str] = set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        session = request.headers.get("Mcp-Session-Id", "")
        self.keys.add(request.headers.get("Authorization", ""))
        if request.method == "DELETE":
            self.ended.add(session)
            return web.Response()
        if request.method == "GET":
            return web.Response(status=405)
        body = await request.json()
        method, headers = body.get("method"), {}
        if method == "initialize":
            session = f"s{len(self.totals)}"
            self.totals[session] = 0
            headers["Mcp-Session-Id"] = session
            result: Any = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            result["serverInfo"] = {"name": "sums", "version": "1"}
        elif method == "tools/list":
            result = {"tools": [*TOOLS, *map(tool, ("echo", "flood", "gzip", "redirect", "html", "break"))]}
        elif method == "tools/call" and session in self.totals:
            name = body["params"]["name"]
            self.totals[session] += body["params"].get("arguments", {}).get("number", 0)
            if name not in {"add", "look", "echo"}:
                return await self._attack(name, request)
            text = f"total {self.totals[session]}" if name != "echo" else str(dict(request.headers))
            result = {"content": [{"type": "text", "text": text}]}
        elif "id" not in body:
            return web.Response(status=202)
        else:
            error = {"code": -32601, "message": "no such method"}
            return web.json_response({"jsonrpc": "2.0", "id": body["id"], "error": error}, status=404)
        return web.json_response({"jsonrpc": "2.0", "id": body["id"], "result": result}, headers=headers)

    async def _attack(self, name: str, request: web.Request) -> web.StreamResponse:
        match name:
            case "flood":
                response = web.StreamResponse(headers={"content-type": "application/json"})
                await response.prepare(request)
                for _ in itertools.count():
                    await response.write(b" " * (1 << 20))
                return response
            case "gzip":
                response = web.Response(body=b"0" * 1000, content_type="application/json")
                response.headers["content-encoding"] = "gzip"
                return response
            case "redirect":
                raise web.HTTPTemporaryRedirect("http://127.0.0.2:9/elsewhere")
            case "html":
                return web.Response(text="<html>\x1b[31m", content_type="text/html")
            case _:
                assert request.transport is not None
                request.transport.abort()
                return web.Response()


@contextmanager
def in_thread(start: Any) -> Iterator[None]:
    """Run a server in a thread; ``start`` is awaited, and gives what ends it."""
    loop, ready = asyncio.new_event_loop(), threading.Event()

    def work() -> None:
        asyncio.set_event_loop(loop)
        stop = loop.run_until_complete(start())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(stop())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    ready.wait(30)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)


@contextmanager
def sums() -> Iterator[Sessions]:
    """Serve sums by sessions."""
    served = Sessions()

    async def start() -> Any:
        app = web.Application()
        app.router.add_route("*", "/mcp", served.answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        served.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/mcp"
        return runner.cleanup

    with in_thread(start):
        yield served


@contextmanager
def notes() -> Iterator[str]:
    """Serve the notes of the SDK's server, by the protocol of 2026; gives the address."""
    import uvicorn
    from mcp_notes import server

    made = uvicorn.Server(uvicorn.Config(server.streamable_http_app(), port=0, log_level="critical", lifespan="on"))
    url = ""

    async def start() -> Any:
        nonlocal url
        serving = asyncio.ensure_future(made.serve())
        while not made.started:
            await asyncio.sleep(0.01)
        url = f"http://127.0.0.1:{made.servers[0].sockets[0].getsockname()[1]}/mcp"

        async def stop() -> None:
            made.should_exit = True
            await serving

        return stop

    with in_thread(start):
        yield url
