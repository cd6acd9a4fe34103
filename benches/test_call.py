"""What a call costs in this process beyond its transport and its reader: routing, limits, health, bookkeeping."""

from __future__ import annotations

import asyncio
import statistics
import time

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from trunkline.llm.http.client import HttpLLM
from trunkline.llm.http.transport import Answer
from trunkline.llm.types import Limits, Reply, Request

CALLS = 5_000
ROUNDS = 15
HEADERS = CIMultiDictProxy(
    CIMultiDict({"Content-Type": "application/json", "Content-Length": "200", "Date": "x", "Server": "uvicorn"})
)
REQUESTS = {
    "nothing limits": {},
    "requests per minute": {"limits": Limits(requests_per_minute=1e9)},
    "tokens per minute": {"limits": Limits(tokens_per_minute=1e12)},
}


class Instant:
    """A transport that has its answer at once."""

    async def post(self, url: str, headers: object, body: bytes, limit: float) -> Answer:
        return Answer(200, HEADERS, b"{}", 0.001)

    async def close(self) -> None:
        pass


def take(data: bytes, first: int, attempts: int, micros: int) -> Reply:
    return Reply([], 10, 0, 5, attempts, micros)


async def bare() -> None:
    transport = Instant()
    for _ in range(CALLS):
        answer = await transport.post("", HEADERS, b"", 1.0)
        take(answer.body, 0, 1, 1)


async def complete(llm: HttpLLM) -> None:
    requests = [Request(b"x" * 100, key, take=take) for key in range(16)]
    for number in range(CALLS):
        await llm.complete(requests[number & 15])


@pytest.mark.benchmark(group="a call beyond its transport", timer=time.process_time)
@pytest.mark.parametrize("limits", list(REQUESTS))
@pytest.mark.parametrize("endpoints", [1, 4])
def test_call(benchmark, endpoints: int, limits: str, capsys):
    urls = [f"http://127.0.0.1:{8000 + number}/v1" for number in range(endpoints)]
    llm = HttpLLM(urls, "key", transport=Instant(), **REQUESTS[limits])
    floors: list[float] = []

    def setup():
        start = time.process_time()
        asyncio.run(bare())
        floors.append((time.process_time() - start) / CALLS)

    benchmark.pedantic(lambda: asyncio.run(complete(llm)), setup=setup, rounds=ROUNDS)
    micros = (benchmark.stats.stats.median / CALLS - statistics.median(floors)) * 1e6
    benchmark.extra_info["us a call"] = round(micros, 2)
    with capsys.disabled():
        print(f"\n{endpoints} endpoint(s), {limits}: {micros:.2f} us a call")
