"""Requests and engines for tests of the batcher."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

from trunkline.llm.batch.batcher import Batcher
from trunkline.llm.batch.completion import Prompt
from trunkline.llm.types import Reply, Request

LONG = 3600.0
"""Seconds that no test lasts: what leaves all the same did not wait for its time to be over."""


def request(seed: int, n: int = 1) -> Request:
    """A request that can be told by its seed."""
    body = {"model": "m", "messages": [{"role": "user", "content": f"q{seed}"}], "seed": seed}
    return Request(json.dumps(body).encode(), key=1, n=n, seed=seed)


def echo(prompt: Prompt) -> object:
    """The seeds of a prompt's draws as its texts."""
    texts = [f"s{prompt.seed + draw}" for draw in range(prompt.n)]
    return texts[0] if prompt.n == 1 else texts


class Gated:
    """An async engine whose calls wait until the test lets them go; it keeps the seeds of each."""

    def __init__(self, *, open: bool = True) -> None:
        self.gate = asyncio.Event()
        self.seeds: list[list[int]] = []
        self.now = self.most = self.stopped = 0
        if open:
            self.gate.set()

    @property
    def sent(self) -> list[int]:
        """The seeds of all calls."""
        return [seed for seeds in self.seeds for seed in seeds]

    async def generate(self, prompts: list[Prompt]) -> list[object]:
        """Answer with :func:`echo`."""
        self.seeds.append([prompt.seed for prompt in prompts])
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.stopped += 1
            raise
        finally:
            self.now -= 1
        return [echo(prompt) for prompt in prompts]


async def turns(count: int = 20) -> None:
    """Let everything that is ready to run do so."""
    for _ in range(count):
        await asyncio.sleep(0)


def ask(batcher: Batcher, *seeds: int, n: int = 1) -> list[asyncio.Task]:
    """Ask for a request with each seed."""
    return [asyncio.ensure_future(batcher.complete(request(seed, n))) for seed in seeds]


def texts(replies: Iterable[Reply]) -> list[str]:
    """What all choices of replies say."""
    return [choice.content for reply in replies for choice in reply.choices]
