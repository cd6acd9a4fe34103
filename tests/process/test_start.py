"""Workers that do not come up."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from atlas import agent, tasks

import trunkline.controller.supervisor as supervision
from trunkline._core import __version__
from trunkline._internal.serialization import SerializedObject, load
from trunkline.backends.local import WorkerProcess
from trunkline.errors import CrossingError, WorkerError
from trunkline.llm.config import LLM
from trunkline.protocol.backend import WorkerExited
from trunkline.protocol.messages import PROTOCOL, Begin, Hello, encode
from trunkline.runner.run import run

NOWHERE = LLM("http://127.0.0.1:9/v1")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a module whose import in a worker does what it says; here it stays importable."""

    def write(body: str) -> object:
        text = (
            "import os, sys, time\n"
            "from trunkline.tools.tool import tool\n"
            "@tool\ndef touchy(x: str) -> str:\n    'Fine here.'\n    return x\n"
            f"if 'trunkline.worker.main' in ' '.join(sys.orig_argv):\n    {body}\n"
        )
        (tmp_path / "touchy_tools.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        sys.modules.pop("touchy_tools", None)
        return __import__("touchy_tools").touchy

    yield write
    sys.modules.pop("touchy_tools", None)


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        ("raise ValueError('no such thing')", CrossingError, "tool 'touchy'.*touchy_tools.*no such thing"),
        ("sys.exit(3)", CrossingError, "tool 'touchy'.*touchy_tools.*SystemExit"),
        ("os._exit(7)", WorkerError, "exited with code 7 before it was ready"),
    ],
)
def test_a_module_that_breaks_in_the_worker(module, tmp_path: Path, body: str, kind: type, says: str):
    touchy = module(body)
    with pytest.raises(kind, match=says):
        run(agent(tools=[touchy]), tasks(), llm=NOWHERE, workers=2, out=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_module_that_never_ends_its_import(module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    touchy = module("time.sleep(60)")
    monkeypatch.setattr(supervision, "START_WITHIN", 1.0)
    with pytest.raises(WorkerError, match=r"worker 0 .*did not come up within 1 s: does a module"):
        run(agent(tools=[touchy]), tasks(), llm=NOWHERE, workers=1, out=tmp_path / "r")


def test_a_worker_of_another_build_is_refused(tmp_path: Path):
    import socket

    from trunkline.protocol.messages import Fatal, Hello, decode_from_worker, encode

    ours, theirs = socket.socketpair()
    hold, lifeline = os.pipe()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "trunkline.worker.main", str(theirs.fileno()), str(hold), str(os.getpid())],
            pass_fds=(theirs.fileno(), hold),
        )
        theirs.close()
        os.close(hold)
        hello = encode(Hello(99, "0.0.0"))
        ours.sendall(len(hello).to_bytes(4, "little") + hello)
        ours.settimeout(20)
        size = int.from_bytes(ours.recv(4), "little")
        message = decode_from_worker(ours.recv(size))
        assert isinstance(message, Fatal)
        assert "protocol 99" in message.message
        ours.close()
        assert process.wait(10) == 0
    os.close(lifeline)


async def test_a_worker_that_cannot_read_what_it_is_told_says_so_and_was_not_killed(capfd: pytest.CaptureFixture[str]):
    events: asyncio.Queue[object] = asyncio.Queue()
    process = WorkerProcess.start(0, lambda _number, event: events.put_nowait(event))
    try:
        await process.listen()
        process.send(encode(Hello(PROTOCOL, __version__)))
        process.send(encode(Begin(b"\xc1 is no job")))
        async with asyncio.timeout(20):
            while not isinstance(gone := await events.get(), WorkerExited):
                pass
    finally:
        await process.close()
    assert gone == WorkerExited(f"worker 0 (pid {process.pid}) exited with code 1", killed=False)
    said = capfd.readouterr().err
    assert "this worker ends: it cannot take a message of its controller" in said
    assert "MessagePack data is malformed" in said


def test_the_error_of_a_crossing_names_the_script(tmp_path: Path):
    with pytest.raises(CrossingError, match=r"cannot import the script .*gone\.py"):
        load(SerializedObject(what="tool 'x'", script=str(tmp_path / "gone.py"), qualname="x"))
