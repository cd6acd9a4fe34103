"""Servers on the loopback that answer as they are told, well or badly."""

import asyncio
import contextlib
import json
import re

from aiohttp import web

from trunkline.llm.http.aiohttp_transport import SwitchTransport
from trunkline.llm.http.client import HttpLLM
from trunkline.llm.http.outcome import Backoff
from trunkline.llm.types import Request

KEY = "sk-test-0123456789abcdef"
REQUEST = Request(b'{"model":"m","messages":[{"role":"user","content":"hi"}]}', 7)


def completion(content="hello", **more):
    message = {"role": "assistant", "content": content} | more.pop("message", {})
    return {
        "id": "x",
        "object": "chat.completion",
        "model": "served-model",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}},
    } | more


class Answers:
    """Gives the listed answers in turn, the last one for ever, and remembers what it was asked."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.seen = []
        self.base_url = ""

    def next(self):
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    async def handle(self, request):
        self.seen.append((request.path, dict(request.headers), await request.read()))
        answer = self.next()
        if callable(answer):
            return await answer(request)
        if isinstance(answer, dict):
            return web.json_response(answer)
        if isinstance(answer, bytes):
            return web.Response(body=answer, content_type="application/json")
        status, headers, body = answer
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return web.Response(status=status, headers={"Content-Type": "application/json"} | headers, body=data)


@contextlib.asynccontextmanager
async def serve(*answers):
    server = Answers(*answers)
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{tail:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield server
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def serve_raw(*scripts):
    """A socket server: each connection reads its request, then runs the next script (the last for ever)."""
    scripts = list(scripts)
    tasks = set()
    counts = {"connections": 0}

    async def connected(reader, writer):
        tasks.add(asyncio.current_task())
        counts["connections"] += 1
        script = scripts.pop(0) if len(scripts) > 1 else scripts[0]
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(re.search(rb"(?i)content-length: *(\d+)", head).group(1)))
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            tasks.discard(asyncio.current_task())

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", counts
    finally:
        server.close()
        left = list(tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await server.wait_closed()


class Sleeper:
    """Stands in for asyncio.sleep: remembers, and does not wait."""

    def __init__(self):
        self.waits = []

    async def __call__(self, seconds):
        self.waits.append(seconds)
        await asyncio.sleep(0)


def client(*urls, key=KEY, timeout=10.0, attempts=6, deadline=3600.0, draw=lambda: 0.5, sleep=None, **transport):
    llm = HttpLLM(
        urls,
        key,
        max_concurrency=8,
        timeout=timeout,
        backoff=Backoff(attempts=attempts, deadline=deadline),
        transport=SwitchTransport(8, **transport),
        sleep=sleep or Sleeper(),
        draw=draw,
    )
    return contextlib.aclosing(_Closing(llm))


class _Closing:
    def __init__(self, llm):
        self.llm = llm
        self.complete = llm.complete

    @property
    def waits(self):
        return self.llm._sleep.waits

    async def aclose(self):
        await self.llm.close()
