"""Without any network, with a home and packages that nobody may write: a run works, and calls nobody."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import SUPPORT

import trunkline

SHIM = SUPPORT / "watched.c"
RUN = [sys.executable, "-m", "trunkline.cli", "demo", "--questions", "4", "--no-latency", "--out"]
CALLS = """
import os, socket, sys, pathlib
for attempt in (
    lambda: socket.create_connection(("192.0.2.1", 80), timeout=1),
    lambda: pathlib.Path(sys.argv[1], "mine").write_text("x"),
):
    try:
        attempt()
    except OSError as error:
        print(error.errno)
"""


@pytest.fixture
def sealed(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that is watched, and for which these folders cannot be written."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to make the shim with")
    made, home = tmp_path / "watched.so", tmp_path / "home"
    home.mkdir()
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(SHIM), "-ldl"], check=True)
    packages = {str(Path(module.__file__).parent.parent) for module in (pytest, trunkline)}
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "OPENAI_"))}
    return clean | {
        "LD_PRELOAD": str(made),
        "HOME": str(home),
        "WATCH_LOG": str(tmp_path / "log"),
        "WATCH_SEALED": ":".join([str(home), *packages, sys.prefix]),
    }


def watched(sealed: dict[str, str], *command: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run a command; what came of it, and the calls that were seen."""
    done = subprocess.run(command, env=sealed, capture_output=True, text=True, timeout=120, check=False)
    log = Path(sealed["WATCH_LOG"])
    return done, log.read_text().splitlines() if log.exists() else []


def test_the_watch_sees_and_refuses(sealed: dict[str, str]):
    done, seen = watched(sealed, sys.executable, "-c", CALLS, sealed["HOME"])
    assert (done.stdout.split(), seen[-2:]) == (["101", "30"], ["outside 192.0.2.1", f"sealed {sealed['HOME']}/mine"])


def test_a_run_needs_no_network_and_writes_nowhere_but_in_its_file(sealed: dict[str, str], tmp_path: Path):
    (tmp_path / "here").mkdir()
    done, seen = watched(sealed, *RUN, str(tmp_path / "here" / "d.run"))
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout.lower()
    kinds = {line.split()[0] for line in seen}
    assert "loopback" in kinds, "the simulator was called, and seen to be"
    assert not kinds & {"outside", "looks"}, sorted(set(seen))
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["d.run"]
    # Python itself may try to keep what it compiled; nothing else may even be tried.
    assert [line for line in seen if line.startswith("sealed") and "__pycache__" not in line] == []
