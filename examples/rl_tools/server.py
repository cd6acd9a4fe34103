"""An OpenAI-compatible server over an engine: requests that wait together are one batch of the policy as it is then."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

import trunkline as tl
from rl_tools.policy import Engine
from rl_tools.task import WORDS, ids

MODEL = "policy"
LONGEST = 4096
"""Tokens of a prompt."""
TOKENS = Annotated[list[Annotated[int, Meta(ge=0, lt=len(WORDS))]], Meta(min_length=1, max_length=LONGEST)]


class Body(msgspec.Struct):
    """What the server reads of a request; what it does not know it leaves alone."""

    prompt: TOKENS | Annotated[str, Meta(min_length=1, max_length=2**16)]
    n: Annotated[int, Meta(ge=1, le=64)] = 1
    max_tokens: Annotated[int, Meta(ge=1, le=256)] = 16
    temperature: Annotated[float, Meta(ge=0, le=100)] = 1.0
    seed: int | None = None
    stream: Literal[False] = False  # type: ignore[assignment]


class Server:
    """Answers ``/v1/completions`` (prompts of text or of token ids) and ``/v1/models``.

    Args:
        engine: What decodes.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._waiting: list[tuple[tl.llms.Prompt, asyncio.Future[list[tl.llms.Completion]]]] = []
        self._arrived = asyncio.Event()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "rl_tools"}]})

    async def _complete(self, request: web.Request) -> web.Response:
        try:
            body = msgspec.json.decode(await request.read(), type=Body)
            if isinstance(body.prompt, str):
                body.prompt = ids(body.prompt) or [0]
                if len(body.prompt) > LONGEST:
                    raise ValueError(f"prompt has {len(body.prompt)} tokens, and {LONGEST} is the most")
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            return web.json_response({"error": {"message": str(error), "type": "invalid_request_error"}}, status=400)
        done: asyncio.Future[list[tl.llms.Completion]] = asyncio.get_running_loop().create_future()
        self._waiting.append((tl.llms.Prompt(msgspec.json.encode(body), n=body.n, seed=body.seed), done))
        self._arrived.set()
        try:
            return web.json_response(reply(body.prompt, await done))
        except Exception as error:  # noqa: BLE001 - of the engine
            said = {"message": f"{type(error).__name__}: {error}", "type": "internal_error"}
            return web.json_response({"error": said}, status=500)

    async def _batches(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            # Requests that were sent together arrive one after the other.
            await asyncio.sleep(0.002)
            self._arrived.clear()
            batch, self._waiting = self._waiting, []
            try:
                made = await loop.run_in_executor(None, self.engine.generate, [prompt for prompt, _ in batch])
            except Exception as error:  # noqa: BLE001 - each request is told
                for _, done in batch:
                    done.cancelled() or done.set_exception(error)
                continue
            for (_, done), found in zip(batch, made, strict=True):
                done.cancelled() or done.set_result(found if isinstance(found, list) else [found])

    async def _serve(self, started: Future[str], stop: asyncio.Event) -> None:
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
        except OSError as error:
            started.set_exception(error)
            return
        batches = asyncio.create_task(self._batches())
        started.set_result(f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
        await stop.wait()
        batches.cancel()
        await runner.cleanup()

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve in a thread, at a free port of the loopback interface; yield the base URL."""
        started: Future[str] = Future()
        stop, loop = asyncio.Event(), asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_until_complete, args=(self._serve(started, stop),))
        thread.start()
        try:
            yield started.result()
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()


def reply(prompt: Sequence[int], draws: Sequence[tl.llms.Completion]) -> dict[str, Any]:
    """Write completions as vLLM does for ``return_token_ids``."""
    choices = [
        {
            "index": index,
            "text": draw.text,
            "finish_reason": draw.finish,
            "token_ids": draw.token_ids,
            "prompt_token_ids": prompt,
            "logprobs": {"token_logprobs": draw.logprobs},
        }
        for index, draw in enumerate(draws)
    ]
    completion = sum(len(draw.token_ids or ()) for draw in draws)
    usage = {"prompt_tokens": len(prompt), "completion_tokens": completion, "total_tokens": len(prompt) + completion}
    return {"object": "text_completion", "model": MODEL, "choices": choices, "usage": usage}
