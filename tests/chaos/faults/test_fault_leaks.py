"""Faults that come again and again leave no memory behind, in a process that does nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import logging
import os
import subprocess
import sys

import pytest
from fault_client import REQUEST, client, resident
from fault_server import OK, FaultServer, Peer, http, problem, trusting
from places import python_path

from trunkline.errors import TrunklineError
from trunkline.llm.http import origin
from trunkline.llm.http.aiohttp_transport import AioTransport
from trunkline.llm.http.direct_transport import DirectTransport


async def reset(peer: Peer) -> None:
    peer.reset()


async def cut_short(peer: Peer) -> None:
    await peer.send(OK[:-10])
    peer.hang_up()


FAULTS = (
    reset,
    cut_short,
    OK + OK,
    http(b"{"),
    http(b""),
    http(problem(), 500),
    http(problem(), 400),
    http(b"", 302, {"Location": "http://other/"}),
    http(gzip.compress(b"{"), headers={"Content-Encoding": "gzip"}),
    http(b"x", headers={"Content-Encoding": "br"}),
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"SSH-2.0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
    OK,
)


async def keep_no_memory(transport: type) -> None:
    """1000 rounds of every cheap fault, the first 200 of them to fill caches."""
    async with FaultServer(OK) as server, client(transport, server.url, attempts=1) as llm:

        async def rounds(count: int) -> tuple[int, int]:
            for fault in FAULTS * count:
                server.answers = [fault]
                with contextlib.suppress(TrunklineError):
                    await llm.complete(REQUEST)
            server.seen.clear()
            llm._sleep.clear()
            await asyncio.sleep(0.01)
            gc.collect()
            return sys.getallocatedblocks(), resident()

        blocks, memory = zip(*[await rounds(200) for _ in range(5)], strict=True)
        assert blocks[-1] - blocks[0] < 200  # not even one object in four rounds
        # The allocator keeps some megabytes now and then; a leak shows each time.
        assert min(memory[2:]) - memory[0] < 4_000_000
        server.answers = [OK]
        assert (await llm.complete(REQUEST)).attempts == 1


@pytest.mark.parametrize("way", ["plain", "tls", "aio"])
def test_1000_rounds_of_every_cheap_fault_keep_no_memory(way: str):
    done = subprocess.run(
        [sys.executable, "-W", "error", __file__, way],
        env=os.environ | {"PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


if __name__ == "__main__":
    logging.disable()
    if sys.argv[1] == "tls":
        FaultServer.encrypted = True
        origin._context = trusting
    asyncio.run(keep_no_memory(AioTransport if sys.argv[1] == "aio" else DirectTransport))
