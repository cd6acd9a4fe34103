"""Little room to work in: few descriptors, a terminal of 20 columns, a reader that leaves, one that hardly reads."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import resource
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest
from atlas import CAPITALS
from foreign import capital_cities, serving
from resuming import environment

from trunkline.store.reader import RunReader


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    rows = [
        {"id": f"{c}{n}", "question": f"Capital of {c}?", "answer": a} for n in range(4) for c, a in CAPITALS.items()
    ]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def command(url: str, *more: str) -> list[str]:
    given = ["-m", "m", "--base-url", url, "--tools", "atlas:lookup", "--seed", "3", "-o", "r", "-w", "2"]
    return [sys.executable, "-m", "trunkline.cli", "run", "q.jsonl", *given, *more]


def finished(folder: Path) -> int:
    with RunReader.open(folder / "r") as reader:
        assert reader.check() == []
        return reader.finished


@pytest.mark.parametrize("concurrency", [10_000, 64])
def test_few_descriptors_are_said_before_anything_is_paid_or_are_enough(questions: Path, concurrency: int):
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    with serving(capital_cities) as server:
        done = subprocess.run(
            command(server.url, "-c", str(concurrency)),
            cwd=questions,
            env=environment(),
            preexec_fn=few,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        asked = len(server.bodies)
    assert "Traceback" not in done.stderr
    if concurrency == 64:
        assert (done.returncode, finished(questions)) == (0, 20), done.stderr
    else:
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
        assert "open files" in line
        assert "ulimit -Hn" in line
        assert (done.returncode, asked) == (2, 0)


def test_a_terminal_of_20_columns_loses_nothing(questions: Path):
    with serving(capital_cities) as server:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 20, 0, 0))
        process = subprocess.Popen(
            command(server.url), cwd=questions, env=environment() | {"TERM": "xterm"}, stderr=slave, stdout=slave
        )
        os.close(slave)
        said = bytearray()
        try:
            while chunk := os.read(master, 4096):
                said += chunk
        except OSError:
            pass  # The terminal is gone with its last process.
        os.close(master)
        assert process.wait(30) == 0
    assert b"Traceback" not in said
    assert finished(questions) == 20


def test_a_reader_of_the_table_that_leaves_loses_nothing(questions: Path):
    with serving(capital_cities) as server:
        done = subprocess.run(
            ["sh", "-c", '"$@" | head -c 1 >/dev/null', "sh", *command(server.url)],
            cwd=questions,
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
    assert finished(questions) == 20


def test_whoever_hardly_reads_what_is_said_holds_no_run_up(questions: Path):
    """Each kill of a worker is said; the pipe that it is said to holds one page, and is read a byte at a time."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    over = threading.Event()

    def sip() -> None:
        while not over.wait(0.01) and os.read(read, 1):
            pass

    reader = threading.Thread(target=sip)
    reader.start()
    with serving(capital_cities, delay=0.05) as server:
        process = subprocess.Popen(command(server.url, "-c", "4"), cwd=questions, env=environment(), stderr=write)
        os.close(write)
        try:
            deadline = time.monotonic() + 60
            while process.poll() is None:
                assert time.monotonic() < deadline, "the run waits for its reader"
                time.sleep(0.05)
        finally:
            over.set()
            process.kill()
            reader.join()
            os.close(read)
    assert process.returncode == 0
    assert finished(questions) == 20


def test_a_terminal_that_hangs_up_stops_the_run_and_it_goes_on(questions: Path):
    with serving(capital_cities, delay=0.1) as server:
        master, slave = pty.openpty()
        process = subprocess.Popen(
            ["setsid", "--ctty", *command(server.url, "-c", "4")],
            cwd=questions,
            env=environment(),
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        deadline = time.monotonic() + 30
        while len(server.bodies) < 10:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.close(master)
        assert process.wait(30) == 128 + signal.SIGHUP
        assert 0 <= finished(questions) < 20
        again = subprocess.run(command(server.url), cwd=questions, env=environment(), capture_output=True, check=False)
    assert again.returncode == 0, again.stderr
    assert finished(questions) == 20
