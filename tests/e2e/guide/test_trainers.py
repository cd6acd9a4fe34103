"""The guide of trainers: what it prints runs, but for the address of the server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from places import ROOT

from trunkline.cli.demo import simulator
from trunkline.sim.tools import CORPUS_VARIABLE
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import make_world

GUIDE = (ROOT / "docs" / "guide" / "trainers.md").read_text()


def test_arrays_of_ones_own_are_made_as_printed(tmp_path: Path):
    (example,) = [one for one in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL) if "sim.tools" in one]
    (tmp_path / "world").mkdir()
    write_world(make_world(0), tmp_path / "world")
    with simulator("default", True, "--latency", "overhead=0.002,token=0.00005") as url:
        (tmp_path / "arrays.py").write_text(example.replace("http://localhost:8000/v1", url))
        done = subprocess.run(
            [sys.executable, "-W", "error", "arrays.py"],
            cwd=tmp_path,
            env=os.environ | {CORPUS_VARIABLE: str(tmp_path / "world" / "corpus.jsonl")},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.stderr == ""
    report, tree, advantages, flat, turns = done.stdout.splitlines()
    assert report.startswith("{'groups': 8, ")
    tokens, rows, trained = (int(tree.split()[at]) for at in (0, 3, 5))
    assert tokens > trained > 0
    assert 0 < rows <= 8
    low, high = map(float, advantages.split()[-2:])
    assert low < 0 < high
    assert int(flat.split()[0]) > tokens
    assert int(turns.split()[0]) > 8
