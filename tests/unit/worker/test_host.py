"""A host: what it says while an engine begins and ends, and of what it cannot read."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from types import SimpleNamespace

import pytest
from atlas import agent

import trunkline.worker.health as watchdog
import trunkline.worker.main as host
from trunkline._core import __version__
from trunkline.llm.config import LLM
from trunkline.protocol.job import Job, pack_job
from trunkline.protocol.messages import (
    PROTOCOL,
    Begin,
    Bye,
    Hello,
    Ping,
    Pong,
    StopRun,
    WorkerReady,
    decode_from_worker,
    encode,
)
from trunkline.strategies.chain import Chain
from trunkline.worker.main import serve

JOB = Job(
    agent=agent(),
    strategy=Chain(1),
    reward=None,
    llm=LLM("http://127.0.0.1:9/v1", max_concurrency=2),
    seed=1,
)


async def test_whoever_imports_before_a_run_has_begun_is_not_said_to_block_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    # A clock that stands 60 s later behind the import, against which a stall of this machine is short.
    skipped = 0.0
    monkeypatch.setattr(
        watchdog, "time", SimpleNamespace(**{**vars(time), "monotonic": lambda: time.monotonic() + skipped})
    )
    monkeypatch.setattr(watchdog, "_BLOCKED", 30.0)
    said: list[object] = []
    served = host.Host(lambda payload: said.append(decode_from_worker(payload)))
    made = host.Engine

    def slow(*given: object) -> object:
        nonlocal skipped
        skipped += 60
        return made(*given)

    monkeypatch.setattr(host, "Engine", slow)
    served.receive(encode(Hello(PROTOCOL, __version__)))
    # What a worker begins with sets the level for all of trunkline; this puts it back.
    caplog.set_level(logging.WARNING, logger="trunkline")
    for run in (1, 2):
        served.receive(encode(Begin(pack_job(JOB))))
        served.receive(encode(Ping()))
        assert [message.state.lag < 30 for message in said if isinstance(message, Pong)] == [True] * run
        served.receive(encode(StopRun()))
        async with asyncio.timeout(10):
            while sum(isinstance(message, Bye) for message in said) < run:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.15)
    await served.close()
    assert sum(isinstance(message, WorkerReady) for message in said) == 2
    assert not caplog.records


async def test_what_ends_a_worker_is_told(caplog: pytest.LogCaptureFixture):
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        payload = b"\xc1"
        await asyncio.get_running_loop().sock_sendall(ours, len(payload).to_bytes(4, "little") + payload)
        async with asyncio.timeout(10):
            assert await serve(theirs) is False
    assert "this worker ends" in caplog.text
    assert "MessagePack data is malformed" in caplog.text


async def test_a_controller_that_hangs_up_ends_a_worker_without_a_word(caplog: pytest.LogCaptureFixture):
    ours, theirs = socket.socketpair()
    ours.close()
    async with asyncio.timeout(10):
        assert await serve(theirs) is True
    assert not caplog.records
