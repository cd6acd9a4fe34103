"""A step of TRL as pages print it, but for the model, which is tiny and untrained, and its reward."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from frameworks import MARKS, load
from growing import printed
from tiny import policy

load("trl", "datasets")
pytestmark = MARKS


def test_two_steps_of_trl(tmp_path: Path):
    (tmp_path / "model").mkdir()
    policy(tmp_path / "model")
    (tmp_path / "engine.py").write_text(printed("class Engine:", "batch-engines"))
    (tmp_path / "my_rollouts.py").write_text(printed("def grow("))
    script = printed("trl.GRPOConfig").replace('"Qwen/Qwen3-0.6B"', repr(str(tmp_path / "model")))
    # An untrained model is never right.
    script = script.replace("tl.exact_match", "lambda trajectory: float(trajectory.id % 3)")
    (tmp_path / "train.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    norms = [float(norm) for norm in re.findall(r"'grad_norm': '?([0-9.e-]+)", done.stdout)]
    assert len(norms) == 2
    assert min(norms) > 0
