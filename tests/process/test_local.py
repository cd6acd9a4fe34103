"""Worker processes on this machine, without a run."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from atlas import agent
from descriptors import open_descriptors

from trunkline._core import __version__
from trunkline.backends.local import LocalBackend, WorkerProcess
from trunkline.errors import WorkerError
from trunkline.llm.config import LLM
from trunkline.protocol.backend import WorkerExited
from trunkline.protocol.job import Job, pack_job
from trunkline.protocol.messages import PROTOCOL, Begin, Hello, WorkerReady, encode
from trunkline.strategies.chain import Chain

JOB = Job(
    agent=agent(),
    strategy=Chain(1),
    reward=None,
    llm=LLM("http://127.0.0.1:9/v1", max_concurrency=2),
    seed=1,
)


async def test_a_worker_that_could_not_be_replaced_at_first_is_replaced_later(monkeypatch: pytest.MonkeyPatch):
    inbox: asyncio.Queue[tuple[int, object]] = asyncio.Queue()
    backend = LocalBackend(1)
    start = WorkerProcess.start

    def full(number: int, *more: object) -> WorkerProcess:
        raise WorkerError(f"worker {number} cannot be started: no process is left")

    try:
        async with asyncio.timeout(60):
            assert await backend.start(JOB, inbox) == [0]
            assert isinstance((await inbox.get())[1], WorkerReady)
            backend.kill(0, "for this test")
            assert isinstance((await inbox.get())[1], WorkerExited)
            for _ in range(2):
                monkeypatch.setattr(WorkerProcess, "start", full)
                with pytest.raises(WorkerError, match="no process is left"):
                    await backend.replace(0)
            monkeypatch.setattr(WorkerProcess, "start", start)
            new = await backend.replace(0)
            worker_id, ready = await inbox.get()
    finally:
        await backend.close()
    assert worker_id == new
    assert isinstance(ready, WorkerReady)


async def test_a_worker_that_dies_while_it_is_started_is_said_to_be_gone(monkeypatch: pytest.MonkeyPatch):
    inbox: asyncio.Queue[tuple[int, object]] = asyncio.Queue()
    backend = LocalBackend(1)
    listen = WorkerProcess.listen

    async def late(process: WorkerProcess) -> None:
        await listen(process)
        os.kill(process.pid, signal.SIGKILL)
        while process.alive:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)

    monkeypatch.setattr(WorkerProcess, "listen", late)
    try:
        async with asyncio.timeout(60):
            (worker_id,) = await backend.start(JOB, inbox)
            number, gone = await inbox.get()
    finally:
        await backend.close()
    assert (number, type(gone), gone.killed) == (worker_id, WorkerExited, True)


async def test_a_process_that_cannot_be_watched_is_not_left_behind(monkeypatch: pytest.MonkeyPatch):
    started: list[int] = []

    def pidfd_open(pid: int) -> int:
        started.append(pid)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", pidfd_open)
    before = open_descriptors()
    with pytest.raises(WorkerError, match="Too many open files"):
        WorkerProcess.start(0, lambda number, event: None)
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)
    assert not open_descriptors() - before


async def test_a_worker_that_ends_by_itself_says_how(capfd: pytest.CaptureFixture[str]):
    events: asyncio.Queue[object] = asyncio.Queue()
    process = WorkerProcess.start(0, lambda number, event: events.put_nowait(event))
    try:
        await process.listen()
        process.send(encode(Hello(PROTOCOL, __version__)))
        process.send(encode(Begin(pack_job(JOB))))
        assert isinstance(await asyncio.wait_for(events.get(), 60), WorkerReady)
        process.send(b"\xc1")  # no message at all
        async with asyncio.timeout(60):
            while not isinstance(how := await events.get(), WorkerExited):
                pass
    finally:
        await process.close()
    assert how.reason == f"worker 0 (pid {process.pid}) exited with code 1"
    assert not how.killed, "it did so itself"
    assert "MessagePack data is malformed" in capfd.readouterr().err
