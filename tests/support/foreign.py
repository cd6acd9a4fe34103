"""A chat-completion server that is not ours: legal, but in another style. It runs in a thread."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from aiohttp import web

Handler = Callable[[dict], "web.Response | dict | Awaitable[dict]"]


class Server:
    """What a test sees of a running server; its ``metrics`` are lines that it gives at /metrics, if there are any."""

    def __init__(self) -> None:
        self.url = ""
        self.metrics: list[str] = []
        self.looked = 0
        self.bodies: list[dict] = []
        self.headers: list[dict[str, str]] = []


@contextmanager
def serving(handler: Handler, delay: float = 0.0) -> Iterator[Server]:
    """Serve ``handler`` at /v1/chat/completions on a free port of the loopback interface.

    One that returns an awaitable is cancelled when its client leaves.
    """
    server = Server()
    ready = threading.Event()
    loop = asyncio.new_event_loop()

    async def chat(request: web.Request) -> web.Response:
        body = await request.json()
        server.bodies.append(body)
        server.headers.append(dict(request.headers))
        if delay:
            await asyncio.sleep(delay)
        answer = handler(body)
        if isinstance(answer, Awaitable):
            answer = await answer
        return answer if isinstance(answer, web.StreamResponse) else web.json_response(answer)

    async def metrics(_request: web.Request) -> web.Response:
        server.looked += 1
        return web.Response(text="\n".join(server.metrics), status=200 if server.metrics else 404)

    async def start() -> web.AppRunner:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", chat)
        app.router.add_get("/metrics", metrics)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1"
        return runner

    def work() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        late = asyncio.all_tasks(loop)
        for task in late:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*late, return_exceptions=True))
        loop.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    ready.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


def error(status: int, message: str, code: str | None = None, kind: str = "invalid_request_error") -> web.Response:
    """An error in the OpenAI form."""
    return web.json_response({"error": {"message": message, "type": kind, "code": code, "param": None}}, status=status)


def message(content: str | None, calls: list[tuple[str, str]] = (), **extra: object) -> dict:
    """A completion in another style: null content beside calls, no usage, fields nobody asked for."""
    said: dict = {"role": "assistant", "content": content, "annotations": [], "audio": None}
    if calls:
        said["tool_calls"] = [
            {"id": "same-id", "type": "function", "index": i, "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(calls)
        ]
    return {
        "id": "x",
        "object": "chat.completion",
        "provider": "elsewhere",
        "choices": [{"index": 0, "message": said, "finish_reason": "tool_calls" if calls else "stop", "native": {}}],
        **extra,
    }


def capital_cities(body: dict) -> dict:
    """Looks the capital up with the tool ``lookup``; its first call of some conversations has broken arguments."""
    seen = [m for m in body["messages"] if m["role"] == "tool"]
    country = (
        next(m["content"] for m in body["messages"] if m["role"] == "user").removeprefix("Capital of ").rstrip("?")
    )
    if not seen and country.startswith("B"):
        return message(None, [("lookup", '{"country": "' + country)])
    if not any("capital" in m["content"] for m in seen):
        return message(None, [("lookup", json.dumps({"country": country})), ("nothing", "")])
    found = next(m["content"] for m in seen if "capital" in m["content"])
    return message(f"It is <answer>{found.split('capital: ')[1]}</answer>")


def held_until(go: threading.Event, handler: Callable[[dict], dict]) -> Handler:
    """Answer as ``handler`` does, but nothing before ``go`` is set."""

    async def answer(body: dict) -> dict:
        while not go.is_set():
            await asyncio.sleep(0.02)
        return handler(body)

    return answer


def calls_the_tool(body: dict) -> dict:
    """Calls whatever tool there is, then answers."""
    if any(m["role"] == "tool" for m in body["messages"]):
        return capital_cities(body)
    country = body["messages"][0]["content"].removeprefix("Capital of ").rstrip("?")
    name = body["tools"][0]["function"]["name"]
    return message(None, [(name, json.dumps({"country": country}))])
