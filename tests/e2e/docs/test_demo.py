"""The first minute: the demo command, from its first line to its table, and what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_the_demo_runs_to_its_table_and_leaves_nothing_running(tmp_path: Path):
    mark = f"demo-{os.getpid()}-{tmp_path.name}"
    done = subprocess.run(
        [sys.executable, "-m", "trunkline.cli", "demo", "--questions", "24", "--no-latency", "--out", "d.run"],
        cwd=tmp_path,
        env=os.environ | {"TRUNKLINE_TEST_MARK": mark},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for word in ("accuracy", "pass@4", "majority@4", "answered", "cached", "rollouts/s"):
        assert word in done.stdout.lower(), done.stdout
    assert done.stdout.startswith("d.run   sim-agent · 24 tasks × 4 rollouts · exact_match · done in ")
    assert "trunkline show d.run --wrong" in done.stdout
    assert "trunkline show d.run --task" in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d.run"]
    alive = [p for p in Path("/proc").glob("[0-9]*/environ") if marked(p, mark)]
    assert alive == []


def marked(environ: Path, mark: str) -> bool:
    try:
        return mark.encode() in environ.read_bytes()
    except OSError:
        return False
