"""Signals to the command line: what is said, what is left, and the exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

EXIT = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A demo in a session of its own, with temporary files of its own; it ends with the test."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "trunkline.cli", "demo", "--out", "d.run"],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(temporary), "TRUNKLINE_TEST_MARK": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    ) as process:
        yield process
        if process.poll() is None:
            process.kill()


def wait_for_log(folder: Path) -> None:
    """Wait until the run file's log has trees: it has 130,000 bytes when the file was made."""
    log = folder / "d.run-wal"
    deadline = time.monotonic() + 60
    while not log.exists() or log.stat().st_size < 400_000:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def left_running(folder: Path) -> list[str]:
    """Processes that carry the folder's mark."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"TRUNKLINE_TEST_MARK={folder}".encode() in environ.read_bytes():
                found.append((environ.parent / "cmdline").read_text())
        except OSError:
            continue
    return [line for line in found if line]


def assert_clean(folder: Path) -> None:
    assert list((folder / "tmp").iterdir()) == []
    deadline = time.monotonic() + 3
    while left_running(folder):
        assert time.monotonic() < deadline, left_running(folder)
        time.sleep(0.05)


@pytest.mark.parametrize("signum", list(EXIT))
def test_a_run_under_way_is_kept_and_named(demo: subprocess.Popen[str], tmp_path: Path, signum: signal.Signals):
    wait_for_log(tmp_path)
    demo.send_signal(signum)
    _, said = demo.communicate(timeout=30)
    assert demo.returncode == EXIT[signum]
    kept = f"stopped by {signum.name}; what has grown is in {tmp_path / 'd.run'}; "
    assert said.splitlines()[-1].startswith(kept)
    assert "Traceback" not in said
    assert [path.name for path in tmp_path.glob("d.run*")] == ["d.run"]
    assert_clean(tmp_path)
    shown = subprocess.run(
        [sys.executable, "-m", "trunkline.cli", "check", "d.run"], cwd=tmp_path, capture_output=True, text=True
    )
    assert shown.returncode == 0, shown.stdout


@pytest.mark.parametrize("delay", [0.15, 0.3, 0.45, 0.6, 0.9])
def test_a_signal_at_any_time_of_the_start_leaves_nothing(demo: subprocess.Popen[str], tmp_path: Path, delay: float):
    time.sleep(delay)
    demo.send_signal(signal.SIGTERM)
    _, said = demo.communicate(timeout=30)
    assert demo.returncode in {143, -signal.SIGTERM}, "before Python runs our code, the system ends it"
    assert "Traceback" not in said
    assert_clean(tmp_path)


def test_ctrl_c_in_a_terminal_reaches_the_controller_alone(demo: subprocess.Popen[str], tmp_path: Path):
    wait_for_log(tmp_path)
    os.killpg(demo.pid, signal.SIGINT)
    _, said = demo.communicate(timeout=30)
    assert demo.returncode == 130
    assert "stopped by SIGINT" in said
    assert "Traceback" not in said
    assert_clean(tmp_path)


LOST = """
import signal, sys, time
from trunkline.cli import app

class Dying:
    def __del__(self):
        signal.raise_signal(getattr(signal, sys.argv[1]))

def main(**_):
    Dying()
    print("went on", flush=True)
    for _ in range(600):  # a signal that comes right before a sleep begins does not end it
        time.sleep(0.1)

app._AGAIN = 0.0  # at once, also while the first is still being lost
app.app.main = main
app.run_app()
"""


@pytest.mark.parametrize("signum", list(EXIT))
def test_a_signal_that_comes_where_nothing_can_be_raised_is_not_lost(signum: signal.Signals):
    command = [sys.executable, "-c", LOST, signum.name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout == "went on\n"
    assert done.returncode == EXIT[signum]
    assert "ignored" not in done.stderr
    assert "Traceback" not in done.stderr


def test_signals_that_are_ignored_are_ignored_by_a_run(tmp_path: Path):
    ignoring = ["sh", "-c", 'trap "" HUP INT; exec "$@"', "sh", sys.executable, "-m", "trunkline.cli"]
    with subprocess.Popen(
        [*ignoring, "demo", "--questions", "40", "--out", "d.run"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as demo:
        wait_for_log(tmp_path)
        demo.send_signal(signal.SIGHUP)
        demo.send_signal(signal.SIGINT)
        _, said = demo.communicate(timeout=120)
    assert demo.returncode == 0, said
    assert "stopped" not in said
