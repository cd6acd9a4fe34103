"""A run that is asked to stop: once, twice, by whom, and in what kind of terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from foreign import Server, capital_cities, serving
from places import python_path

from trunkline.store.reader import RunReader

QUESTIONS = "".join(
    f'{{"id": "{c}{n}", "question": "Capital of {c}?"}}\n' for n in range(40) for c in ("Japan", "Chile")
)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(capital_cities, delay=0.5) as server:
        yield server


def command(server: Server, folder: Path, *more: str) -> list[str]:
    (folder / "q.jsonl").write_text(QUESTIONS)
    given = ["--model", "m", "--base-url", server.url, "--tools", "atlas:lookup", "-c", "8", "-w", "2"]
    return [
        sys.executable,
        "-m",
        "trunkline.cli",
        "run",
        str(folder / "q.jsonl"),
        *given,
        "-o",
        str(folder / "a run"),
        *more,
    ]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": python_path()}


def begun(process: subprocess.Popen, server: Server, requests: int = 10) -> None:
    deadline = time.monotonic() + 30
    while len(server.bodies) < requests:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_is_out_comes_back_and_is_kept(server: Server, tmp_path: Path):
    process = subprocess.Popen(
        command(server, tmp_path), env=environment(), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    begun(process, server)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f"go on with: trunkline resume '{tmp_path / 'a run'}'\n" in said
    with RunReader.open(tmp_path / "a run") as reader:
        assert reader.check() == []
        assert reader.meta["state"] == "interrupted"
        assert len(list(reader.calls())) == len(server.bodies), "whatever was paid for is in the file"


def test_what_still_waits_for_its_turn_is_not_sent(tmp_path: Path):
    with serving(capital_cities, delay=1.0) as slow:
        process = subprocess.Popen(
            command(slow, tmp_path, "-r", "32", "-w", "1", "-c", "4", "--grace", "60"),
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        begun(process, slow, 4)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, said = process.communicate(timeout=30)
        # Some more rounds may have left while the signal was on its way.
        assert len(slow.bodies) <= 16, "dozens wait behind them"
        assert time.monotonic() - began < 30, "and nobody waits for those"
    assert "go on with: trunkline resume" in said
    with RunReader.open(tmp_path / "a run") as reader:
        assert len(list(reader.calls())) == len(slow.bodies)


def test_nobody_waits_longer_than_the_grace(server: Server, tmp_path: Path):
    with serving(capital_cities, delay=60) as slow:
        process = subprocess.Popen(
            command(slow, tmp_path, "--grace", "0.5"), env=environment(), stderr=subprocess.PIPE, text=True
        )
        begun(process, slow, 8)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 143
        assert 0.5 <= time.monotonic() - began < 10


def test_the_second_signal_does_not_wait(tmp_path: Path):
    with serving(capital_cities, delay=60) as slow:
        process = subprocess.Popen(
            command(slow, tmp_path, "--grace", "60"), env=environment(), stderr=subprocess.PIPE, text=True
        )
        begun(process, slow, 8)
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 130, "the first one says why"


def test_ctrl_c_in_a_terminal(server: Server, tmp_path: Path):
    pid, master = pty.fork()
    if pid == 0:
        os.execve(sys.executable, command(server, tmp_path), environment())
    said = bytearray()

    def read() -> None:
        try:
            while chunk := os.read(master, 4096):
                said.extend(chunk)
        except OSError:
            pass  # the terminal is gone with its last process

    reader = threading.Thread(target=read)
    reader.start()
    deadline = time.monotonic() + 30
    while len(server.bodies) < 10:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.write(master, b"\x03")
    _, status = os.waitpid(pid, 0)
    reader.join(10)
    os.close(master)
    assert os.waitstatus_to_exitcode(status) == 130
    assert f"trunkline resume '{tmp_path / 'a run'}'\r\n" in said.decode()


def test_without_any_standard_input_or_output(server: Server, tmp_path: Path):
    closed = 'exec "$@" <&- >&- 2>&-'
    process = subprocess.Popen(["sh", "-c", closed, "sh", *command(server, tmp_path)], env=environment())
    begun(process, server)
    process.send_signal(signal.SIGHUP)
    assert process.wait(30) == 129
    with RunReader.open(tmp_path / "a run") as reader:
        assert reader.check() == []
