"""The guide to tools that are ready to use: its examples, run as printed but for the address of the server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from foreign import message, serving
from places import ROOT

import trunkline as tl
from trunkline.errors import ConfigError

EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guide/tools.md").read_text("utf-8"), re.DOTALL)

try:
    tl.environments.Sandbox()
except ConfigError as refused:
    pytest.skip(str(refused), allow_module_level=True)


def reply(body: dict) -> dict:
    """Runs code, then answers with what it said."""
    said = [one["content"] for one in body["messages"] if one["role"] == "tool"]
    code = "import datetime; days = globals().get('days', 0) + 1; datetime.date(2000, 2, 29).strftime('%A'), days"
    choices = []
    for index in range(body.get("n") or 1):
        made = message(f"<answer>{said[-1]}</answer>" if len(said) > 1 else None)
        if len(said) < 2:
            made = message(None, [("python", json.dumps({"code": code}))])
        choices.append(made["choices"][0] | {"index": index})
    return made | {"choices": choices}


def test_the_examples_run(tmp_path: Path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "note").write_text("x")
    first, *others = EXAMPLES
    with serving(reply) as server:
        asks = "    print([rollout.answer for rollout in run['day'].rollouts])\n"
        (tmp_path / "first.py").write_text(first.replace("http://localhost:8000/v1", server.url) + asks)
        (tmp_path / "others.py").write_text("\n".join(others))
        for name in ("first.py", "others.py"):
            options = {"cwd": tmp_path, "env": os.environ, "timeout": 90, "check": False, "text": True}
            done = subprocess.run([sys.executable, name], capture_output=True, **options)
            assert done.returncode == 0, done.stderr
            if name == "first.py":
                assert done.stdout.splitlines() == ["6", str(["('Tuesday', 2)"] * 6)]
