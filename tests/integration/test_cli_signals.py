"""Signals to the command line: what is said, what is left, and the exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXIT = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


def start(folder: Path, *arguments: str, **options: object) -> subprocess.Popen[str]:
    """Start a demo with temporary files of its own."""
    temporary = folder / "tmp"
    temporary.mkdir()
    return subprocess.Popen(
        [sys.executable, "-m", "trunkline.cli", "demo", "--out", "d.run", *arguments],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(temporary), "TRUNKLINE_TEST_MARK": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


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
def test_a_run_under_way_is_kept_and_named(tmp_path: Path, signum: signal.Signals):
    process = start(tmp_path)
    deadline = time.monotonic() + 30
    while not (tmp_path / "d.run").exists() or (tmp_path / "d.run-wal").stat().st_size < 400_000:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signum)
    _, said = process.communicate(timeout=20)
    assert process.returncode == EXIT[signum]
    assert said.splitlines()[-1] == f"stopped by {signum.name}; what has grown is in {tmp_path / 'd.run'}"
    assert "Traceback" not in said
    assert [path.name for path in tmp_path.glob("d.run*")] == ["d.run"]
    assert_clean(tmp_path)
    shown = subprocess.run(
        [sys.executable, "-m", "trunkline.cli", "check", "d.run"], cwd=tmp_path, capture_output=True, text=True
    )
    assert shown.returncode == 0, shown.stdout


@pytest.mark.parametrize("delay", [0.15, 0.3, 0.45, 0.6, 0.9])
def test_a_signal_at_any_time_of_the_start_leaves_nothing(tmp_path: Path, delay: float):
    process = start(tmp_path)
    time.sleep(delay)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=20)
    assert process.returncode in {143, -signal.SIGTERM}, "before Python runs our code, the system ends it"
    assert "Traceback" not in said
    assert_clean(tmp_path)


def test_ctrl_c_in_a_terminal_reaches_the_controller_alone(tmp_path: Path):
    process = start(tmp_path, start_new_session=True)
    while not (tmp_path / "d.run").exists():
        time.sleep(0.05)
    time.sleep(0.7)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "stopped by SIGINT" in said
    assert "Traceback" not in said
    assert_clean(tmp_path)
