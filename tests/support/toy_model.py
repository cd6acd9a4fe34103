"""A deterministic toy model, ids in and ids out: as a batch engine, an object, and a server of completions alone."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import chat_templates
from aiohttp import web
from tokenizers import Tokenizer

from trunkline._core import TURN, CoreTree, last_ids
from trunkline.llm.batch.completion import Completion, Prompt
from trunkline.llm.token_ids.base import TokenMode
from trunkline.llm.token_ids.renderers import LocalRenderer
from trunkline.llm.types import Reply, ReplyChoice, Request

WORDS = ("the capital", "library of Benin", "is Paris", "and 42", "found nothing", "yes")


class Sampled(NamedTuple):
    """One completion."""

    text: str
    ids: list[int]
    logprobs: list[float]


class ToyModel:
    """Says by chance one of a few things, in tokens that its tokenizer would often not choose.

    Args:
        folder: Where its tokenizer is written.
        api: How it is asked.
    """

    def __init__(self, folder: Path, api: str = "completions") -> None:
        chat_templates.write("chatml", folder)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokens = TokenMode(api="chat") if api == "chat" else TokenMode(api=api, tokenizer=str(folder))
        self.renderer = LocalRenderer(folder)
        self.calls: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self.end = self.tokenizer.token_to_id(chat_templates.ENDS["chatml"])

    def sample(self, ids: list[int], seed: int | None) -> Sampled:
        """Complete a prompt; the same for the same seed."""
        chance = Random(f"{seed} {ids}")
        said = " ".join(chance.choices(WORDS, k=chance.randint(1, 3)))
        if chance.random() < 0.6:
            said += f'\n<tool_call>\n{{"name": "look", "arguments": {{"what": "{said}"}}}}\n</tool_call>'
        parts = list(said) if chance.random() < 0.5 else [said]
        sampled = [i for part in parts for i in self.tokenizer.encode(part, add_special_tokens=False).ids]
        sampled.append(self.end)
        self.calls.append((tuple(ids), tuple(sampled)))
        return Sampled(said, sampled, [-chance.random() for _ in sampled])

    async def prompt(self, body: dict[str, Any]) -> list[int]:
        """The ids of a request: its own, or those of its messages."""
        given = body.get("prompt")
        return given if given is not None else await self.renderer.render(body["messages"], body.get("tools", ()))


class ToyEngine(ToyModel):
    """The model as a batch engine."""

    async def generate(self, prompts: list[Prompt]) -> list[Any]:
        """Complete prompts; those of several completions with a list."""
        made = []
        for prompt in prompts:
            ids = await self.prompt(json.loads(prompt.body))
            draws = [self.sample(ids, (prompt.seed or 0) + draw) for draw in range(prompt.n)]
            found = [
                Completion(text=one.text, token_ids=one.ids, logprobs=one.logprobs, prompt_token_ids=ids)
                for one in draws
            ]
            made.append(found if prompt.n > 1 else found[0])
        return made


class ToyLLM(ToyModel):
    """The model as an object with ``complete``; with ``takes`` it hands on an answer as a server would send it."""

    takes = False

    async def complete(self, request: Request) -> Reply:
        """Complete one request."""
        body = json.loads(request.body)
        ids = await self.prompt(body)
        one = self.sample(ids, body["seed"])
        if self.takes:
            return request.take(json.dumps(answer(ids, [one])).encode(), 0, 1, 1)
        choice = ReplyChoice(one.text, None, [], "stop", one.ids, one.logprobs)
        return Reply([choice], len(ids), -1, len(one.ids), 1, 1, prompt_ids=ids)

    async def close(self) -> None:
        """Nothing is open."""


def answer(ids: list[int], draws: list[Sampled]) -> dict[str, Any]:
    """Completions as vLLM sends them."""
    choices = [
        {
            "index": index,
            "text": one.text,
            "finish_reason": "stop",
            "token_ids": one.ids,
            "prompt_token_ids": ids,
            "logprobs": {"tokens": [""] * len(one.ids), "token_logprobs": one.logprobs},
        }
        for index, one in enumerate(draws)
    ]
    usage = {"prompt_tokens": len(ids), "completion_tokens": sum(len(one.ids) for one in draws)}
    return {"choices": choices, "usage": usage}


class ToyServer(ToyModel):
    """The model behind ``/v1/completions`` and nothing else."""

    url = ""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.paths: list[str] = []

    async def _answer(self, request: web.Request) -> web.Response:
        self.paths.append(request.path)
        if request.path != "/v1/completions":
            return web.json_response({"error": {"message": "not found"}}, status=404)
        body = await request.json()
        draws = [self.sample(body["prompt"], body.get("seed", 0) + draw) for draw in range(body.get("n", 1))]
        return web.json_response(answer(body["prompt"], draws))

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve in a thread at a free port of the loopback interface."""
        ready, loop = threading.Event(), asyncio.new_event_loop()

        async def start() -> web.AppRunner:
            app = web.Application(client_max_size=2**26)
            app.router.add_route("*", "/{path:.*}", self._answer)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
            return runner

        def work() -> None:
            asyncio.set_event_loop(loop)
            runner = loop.run_until_complete(start())
            ready.set()
            loop.run_forever()
            loop.run_until_complete(runner.cleanup())
            loop.close()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        assert ready.wait(30)
        try:
            yield
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(30)


def known(core: CoreTree) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """What the model was given at each turn of a tree, as the tree has it, and what it sampled."""
    found = []
    for node in range(len(core)):
        if core.node(node).kind == TURN:
            own, whole = tuple(core.tokens_of(node).ids), tuple(last_ids(core, node))
            assert whole[len(whole) - len(own) :] == own
            found.append((whole[: len(whole) - len(own)], own))
    return found
