"""Faults that come again and again leave no memory behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import logging
import sys

import pytest
from fault_client import REQUEST, client, resident
from fault_server import OK, FaultServer, Peer, http, problem

from trunkline.errors import TrunklineError


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


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_200_rounds_of_every_cheap_fault_keep_no_memory(transport, caplog):
    caplog.set_level(logging.CRITICAL)  # What is logged is kept for the test's report.
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

        await rounds(10)
        blocks, memory = [], []
        # What else is in this process may fill up or let go once; a leak shows each time.
        while not blocks or ((min(blocks) >= 200 or min(memory) >= 4_000_000) and len(blocks) < 3):
            blocks_before, memory_before = await rounds(10)
            blocks_after, memory_after = await rounds(200)
            blocks.append(blocks_after - blocks_before)
            memory.append(memory_after - memory_before)
        assert min(blocks) < 200  # not even one object a round
        assert min(memory) < 4_000_000
        server.answers = [OK]
        assert (await llm.complete(REQUEST)).attempts == 1
