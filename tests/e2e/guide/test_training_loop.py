"""The guide's training loop, run as printed but for the address of the server."""

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

GUIDE = ROOT / "docs" / "guide" / "training-loop.md"


def test_the_training_loop_works_as_printed(tmp_path: Path):
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(example.splitlines()) < 60
    (tmp_path / "world").mkdir()
    write_world(make_world(0), tmp_path / "world")
    with simulator("default", True, "--latency", "overhead=0.002,token=0.00005") as url:
        (tmp_path / "train.py").write_text(example.replace("http://localhost:8000/v1", url))
        done = subprocess.run(
            [sys.executable, "train.py"],
            cwd=tmp_path,
            env=os.environ | {CORPUS_VARIABLE: str(tmp_path / "world" / "corpus.jsonl")},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert [line.split(" asked of ")[1].split()[0] for line in lines] == ["step-0", "step-1", "step-2"]
