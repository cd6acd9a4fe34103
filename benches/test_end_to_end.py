"""2,000 short rollouts without latency, from tasks to a closed run file.

A rollout is two model calls and one tool call. What is counted: the client's CPU is that of the controller and its
workers (tree, tool, run file and scoring included); start-up, taken from a run of one task on the same pool, is
subtracted. The floor is a hand-written aiohttp + msgspec + uvloop loop that posts the same two requests a rollout and
keeps nothing; it is run in turn with Trunkline against the same stub, whose own CPU is printed beside. Actors are no
children of this process: of a run on Ray, the CPU is that of the controller alone.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import msgspec
import pytest
import uvloop

import work
from conftest import Stub, client_cpu
from trunkline.backends import ray_cluster as cluster
from trunkline.llm.config import LLM
from trunkline.runner.pool import Pool
from trunkline.runner.run import run
from trunkline.scoring.rewards import exact_match

ROLLOUTS, CALLS = 2000, 4000
ROUNDS = 5
CONCURRENCY = 64


class Cost:
    """What one run took: wall seconds, client CPU and server CPU."""

    def __init__(self, stub: Stub) -> None:
        self._stub = stub
        self._start = (time.perf_counter(), client_cpu(), stub.cpu())

    def stop(self) -> tuple[float, float, float]:
        now = (time.perf_counter(), client_cpu(), self._stub.cpu())
        return tuple(b - a for a, b in zip(self._start, now, strict=True))


def rollouts(url: str, where: dict[str, Any], tasks: int) -> None:
    """Run Trunkline, one rollout a task: siblings would share requests, of which the floor posts all."""
    result = run(
        work.AGENT,
        work.tasks(tasks),
        llm=LLM(url, max_concurrency=CONCURRENCY),
        reward=exact_match,
        seed=1,
        **where,
    )
    summary = result.summary()
    assert summary.usage.calls == 2 * tasks
    assert summary.accuracy.value == 1.0


def bare(url: str) -> None:
    """Post the same bytes by hand."""

    async def main() -> None:
        encode, decode = msgspec.json.encode, msgspec.json.decode
        tools = [work.lookup.definition]
        system = {"role": "system", "content": work.AGENT.system}
        numbers = iter(range(ROLLOUTS))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONCURRENCY)) as session:

            async def ask(messages: list[dict]) -> dict:
                body = encode({"model": "stub", "messages": messages, "tools": tools, "seed": 1})
                async with session.post(f"{url}/chat/completions", data=body) as reply:
                    return decode(await reply.read())["choices"][0]["message"]

            async def lane() -> None:
                for i in numbers:
                    messages = [system, {"role": "user", "content": f"What is the answer to question {i}?"}]
                    said = await ask(messages)
                    seen = await work.lookup(**decode(said["tool_calls"][0]["function"]["arguments"]))
                    messages += [said, {"role": "tool", "tool_call_id": "c", "content": seen}]
                    assert (await ask(messages))["content"] == "<answer>42</answer>"

            await asyncio.gather(*(lane() for _ in range(CONCURRENCY)))

    uvloop.run(main())


@pytest.fixture(params=["inline", "1 worker", "2 workers", "ray of 2"])
def where(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Where engines live; a Ray that is there already, as a cluster is."""
    if request.param != "ray of 2":
        yield {"workers": {"inline": 0, "1 worker": 1, "2 workers": 2}[request.param]}
        return
    pytest.importorskip("ray")
    asyncio.run(cluster.join(None, 2))
    with Pool("ray", workers=2) as pool:
        yield {"pool": pool}
    asyncio.run(cluster.leave())


def test_two_thousand_short_rollouts(benchmark, stub: Stub, capsys, where: dict[str, Any], request):
    ours: list[tuple[float, float, float]] = []
    floor: list[tuple[float, float, float]] = []
    idle: list[tuple[float, float, float]] = []

    def measured(into: list, work_: object, *arguments: object) -> None:
        cost = Cost(stub)
        work_(*arguments)
        into.append(cost.stop())

    def once() -> None:
        measured(ours, rollouts, stub.url, where, ROLLOUTS)

    def interleaved() -> None:
        measured(floor, bare, stub.url)
        measured(idle, rollouts, stub.url, where, 1)

    rollouts(stub.url, where, 80)
    benchmark.pedantic(once, setup=interleaved, rounds=ROUNDS)

    middle = [statistics.median(column) for column in zip(*ours, strict=True)]
    below = [statistics.median(column) for column in zip(*floor, strict=True)]
    start = [statistics.median(column) for column in zip(*idle, strict=True)]
    wall, cpu = middle[0] - start[0], middle[1] - start[1]
    figures = {
        "rollouts_per_s": ROLLOUTS / wall,
        "calls_per_s": CALLS / wall,
        "client_us_per_call": 1e6 * cpu / CALLS,
        "floor_us_per_call": 1e6 * below[1] / CALLS,
        "ratio_to_floor": cpu / below[1],
        "server_us_per_call": 1e6 * middle[2] / CALLS,
        "start_up_s": start[0],
    }
    benchmark.extra_info.update(figures)
    with capsys.disabled():
        shown = "  ".join(f"{name} {value:,.2f}" for name, value in figures.items())
        print(f"\n{request.node.callspec.id}: {shown}")
