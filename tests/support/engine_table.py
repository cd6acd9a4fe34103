"""Rollouts of a tree whose turns the turn engine sends over sockets, and the check that nothing is left of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from draws_table import Table, open_table
from fault_client import Waits
from fault_server import Peer, Script, http

from trunkline.llm.http.aiohttp_transport import SwitchTransport
from trunkline.llm.http.client import HttpLLM
from trunkline.llm.http.outcome import Backoff
from trunkline.llm.request import Sampling
from trunkline.llm.types import Limits, Routing
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.sampling.inflight import WeightGate

KEY = "sk-test-0123456789abcdef"


class Bench:
    """A tree with rollouts, and the client that they ask.

    Attributes:
        llm: The client.
        table: The tree and its rollouts.
        slots: Most requests in flight.
    """

    def __init__(self, llm: HttpLLM, table: Table, slots: int) -> None:
        self.llm = llm
        self.table = table
        self.slots = slots

    @property
    def sender_in_flight(self) -> int:
        """Requests of the engine that are in flight."""
        sender = self.table.draws.dispatcher.sender
        return 0 if sender is None else sender.in_flight

    def ask(self, number: int) -> asyncio.Task[Any]:
        """Let a rollout ask for its next turn."""
        return asyncio.create_task(self.table.rollouts[number].ask(self.table.compiled))

    async def ask_all(self) -> list[Any]:
        """Let all rollouts ask at once, and gather the turns or the errors."""
        return await asyncio.gather(*map(self.ask, range(len(self.table.rollouts))), return_exceptions=True)

    def calls(self) -> list[tuple[int, int, str]]:
        """Choices, attempts and endpoint of each call that was told."""
        return [(len(one.choices), one.attempts, one.endpoint) for one in self.table.sink.replies]

    def turns(self) -> list[str]:
        """What the rollouts' leaves say, the prompt as ``user``."""
        core = self.table.core
        said = [json.loads(core.message(core.rollout(one.id).leaf)) for one in self.table.rollouts]
        return [message["content"] if message["role"] == "assistant" else message["role"] for message in said]

    def assert_at_rest(self) -> None:
        """Nothing is in flight, nothing waits, and every slot and every permit is back."""
        assert (self.llm.limiter.free, self.sender_in_flight) == (self.slots, 0)
        for endpoint in self.llm.endpoints:
            queue = endpoint.queue
            assert (queue.in_flight, queue.queued, queue.waiting, len(queue.row)) == (0, 0, 0, 0)
            assert not endpoint.probing
        assert self.table.draws.engine.in_flight() == (0, None)
        assert self.table.draws.turn_gate.idle
        assert not self.table.desk.sent
        turns = sum(rollout.turn - rollout.start for rollout in self.table.rollouts)
        assert self.table.sink.reserved == turns
        self.table.core.check()


@asynccontextmanager
async def bench(
    *urls: str,
    n: int = 1,
    slots: int = 8,
    attempts: int = 3,
    timeout: float = 5.0,
    sampling: Sampling | None = None,
    weights: WeightGate | None = None,
    send_seed: bool = True,
    siblings: bool = False,
    limits: Limits | None = None,
    routing: Routing | None = None,
    waits: Waits | None = None,
    engine: bool = True,
    parties: int = 0,
    **bounds: float,
) -> AsyncIterator[Bench]:
    """Open n rollouts that ask these endpoints; at the end nothing may be left in flight.

    Without ``engine`` each request is sent in a task, as where a cache or token ids are between.
    """
    llm = HttpLLM(
        urls,
        KEY,
        max_concurrency=slots,
        timeout=timeout,
        siblings=siblings,
        backoff=Backoff(attempts=attempts),
        limits=limits,
        routing=routing,
        parties=parties,
        transport=SwitchTransport(slots, **bounds),
        sleep=Waits() if waits is None else waits,
        draw=lambda: 0.5,
    )
    client = CompletionClient(llm, None, None, weights, send_seed=send_seed)
    made = Bench(llm, open_table(llm, n, client, sampling=sampling), slots)
    assert client.dispatcher.sender is not None
    if not engine:
        client.dispatcher.sender = None
    try:
        yield made
        async with asyncio.timeout(10):
            while made.table.desk.sent:  # they end in the pass after the rollouts are told
                await asyncio.sleep(0)
        made.assert_at_rest()
    finally:
        await llm.close()


async def until(true: Callable[[], object]) -> None:
    """Wait until something is true; it fails after ten seconds."""
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.001)


async def soon(work: Coroutine[Any, Any, Any]) -> Any:
    """Do something that must not hang."""
    async with asyncio.timeout(10):
        return await work


def choices(body: bytes, *contents: str) -> dict[str, Any]:
    """A completion of the draws that a body asks for: ``n`` times the seed, or these contents."""
    asked = json.loads(body)
    seed = asked.get("seed", 0)
    said = contents or [f"s{seed + draw}" for draw in range(asked.get("n", 1))]
    drawn = [
        {"index": place, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        for place, content in enumerate(said)
    ]
    usage = {"prompt_tokens": 90, "completion_tokens": 10 * len(said)}
    return {"id": "x", "model": "served-model", "choices": drawn, "usage": usage}


async def answer(peer: Peer) -> None:
    """Answer with the draws that are asked for."""
    await peer.send(http(choices(peer.seen.body)))


def held(gate: asyncio.Event, then: Script = answer) -> Script:
    """Answer once a gate is open."""

    async def wait(peer: Peer) -> None:
        await gate.wait()
        await then(peer)

    return wait
