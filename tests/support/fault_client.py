"""The client whose faults are tested: an HttpLLM over one transport, with its waits remembered instead of waited."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from secrets_kept import assert_no_secret

from trunkline.errors import TrunklineError
from trunkline.llm.http.client import HttpLLM
from trunkline.llm.http.outcome import Backoff
from trunkline.llm.types import Request

KEY = "sk-test-0123456789abcdef"
REQUEST = Request(b'{"model":"m","messages":[{"role":"user","content":"hi"}]}', 7)


class Waits(list):
    """Stands in for asyncio.sleep: remembers, and does not wait."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def client(
    transport: type, *urls: str, attempts: int = 3, timeout: float = 5.0, waits: Waits | None = None, **bounds: float
) -> AsyncIterator[HttpLLM]:
    """Open a client over this class of transport."""
    llm = HttpLLM(
        urls,
        KEY,
        max_concurrency=8,
        timeout=timeout,
        backoff=Backoff(attempts=attempts),
        transport=transport(8, **bounds),
        sleep=Waits() if waits is None else waits,
        draw=lambda: 0.5,
    )
    try:
        yield llm
    finally:
        await llm.close()


async def fails(llm: HttpLLM, kind: type[TrunklineError], *words: str) -> TrunklineError:
    """Complete, and expect an error of exactly this class that says this, on one line and without the key."""
    with pytest.raises(TrunklineError) as caught:
        await llm.complete(REQUEST)
    error, message = caught.value, str(caught.value)
    assert type(error) is kind, message
    for word in words:
        assert word in message
    assert message.isprintable()
    assert len(message) < 700
    assert_no_secret(error, KEY)
    return error


def resident() -> int:
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
