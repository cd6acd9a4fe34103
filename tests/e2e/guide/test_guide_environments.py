"""The guide to environments: its examples, run as printed but for the address of the server."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from foreign import message, serving
from places import ROOT

EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guide/environments.md").read_text("utf-8"), re.DOTALL)


def reply(body: dict) -> dict:
    """Calls the first tool that takes something, with a number; says a number where there is none."""
    luck = random.Random(body["seed"])
    tools = [one["function"] for one in body.get("tools") or () if one["function"]["parameters"]["properties"]]
    if not tools:
        return message(str(luck.randrange(3)))
    (argument,) = tools[0]["parameters"]["properties"]
    return message(None, [(tools[0]["name"], json.dumps({argument: luck.randrange(3)}))])


def printed(folder: Path, example: str, name: str) -> str:
    """What an example prints."""
    with serving(reply) as server:
        (folder / name).write_text(example.replace("http://localhost:8000/v1", server.url))
        done = subprocess.run(
            [sys.executable, name], cwd=folder, env=os.environ, capture_output=True, text=True, timeout=90, check=False
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_environments_of_ones_own(tmp_path: Path):
    maze, program, team, *_ = EXAMPLES
    assert len(printed(tmp_path, maze, "maze.py").splitlines()) == 6
    assert printed(tmp_path, program, "explore.py") == "6\n"
    assert printed(tmp_path, team, "pair.py") == "6\n"


@pytest.mark.skipif(importlib.util.find_spec("gymnasium") is None, reason="gymnasium is not installed")
def test_environments_of_gymnasium(tmp_path: Path):
    *_, lake, own = EXAMPLES
    assert len(json.loads(printed(tmp_path, lake, "lake.py"))) == 6
    assert printed(tmp_path, own, "own.py") == ""
