"""The example of an environment: the command of its header, whose trees are equal with snapshots and without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from places import ROOT

EXAMPLE = ROOT / "examples/environment/maze.py"


def test_it_runs_as_its_header_says(tmp_path: Path):
    command, *_ = EXAMPLE.read_text("utf-8").splitlines()
    assert command == "# python maze.py"
    done = subprocess.run([sys.executable, EXAMPLE], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    heads = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert heads == [
        "Maze: 0 calls ran again for forks",
        "Forgetful: 17 calls ran again for forks",
        "both trees are equal",
    ]
