"""Each folder of examples runs as its README or the first line of its files says, on the simulator."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import doc_pages
import pytest

import trunkline as tl

EXAMPLES = {
    "agent": "agent.run",
    "compare": "eight.run",
    "environment": None,
    "eval": "eval.run",
    "rl": None,
    "strategy": "strategy.run",
    "team": "team.run",
}
"""Every example that runs in seconds, with the run file that it leaves."""

LONGER = {"agents", "rl_tools"}
"""Folders that need packages or minutes of their own; other tests run what is in them."""

_HEADER = re.compile(r"# ((?:trunkline|python) .+)\n")


def headers(folder: Path) -> list[str]:
    """The commands that the first lines of an example's files give."""
    found = (_HEADER.match(file.read_text("utf-8")) for file in sorted(folder.glob("*.*")))
    return [header[1] for header in found if header]


def run(name: str, folder: Path) -> str:
    """Run an example in a copy of its folder, and return what it printed."""
    readme = doc_pages.ROOT / "examples" / name / "README.md"
    if readme.is_file():
        done = doc_pages.run(readme, folder, port=doc_pages.free_port())
        assert done.code == 0, done.output
        missing = doc_pages.missing_lines(doc_pages.blocks(readme.read_text("utf-8")), done)
        assert list(missing) == [], done.output
        return done.output
    (command,) = headers(folder)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "TRUNKLINE_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{clean['PATH']}"
    ended = subprocess.run(
        command, shell=True, cwd=folder, env=clean | {"PATH": path}, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_every_folder_of_examples_is_known():
    there = {path.name for path in (doc_pages.ROOT / "examples").iterdir() if path.is_dir()}
    assert there == set(EXAMPLES) | LONGER


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_as_it_says(name: str, tmp_path: Path):
    folder = tmp_path / name
    shutil.copytree(doc_pages.ROOT / "examples" / name, folder, ignore=shutil.ignore_patterns("*.run*", "__pycache__"))
    printed = run(name, folder)
    assert printed.strip()
    if (made := EXAMPLES[name]) is None:
        return
    with tl.RunReader.open(folder / made) as reader:
        assert reader.check() == []
        accuracy = reader.summary().accuracy
    assert accuracy is not None
    if name == "compare":
        found = tl.compare(folder / "twenty.run", folder / made).paired
        assert -0.2 < found.low < found.difference < 0
        assert found.difference < found.high < 0.2
