"""The programs of the bench crate, built with full optimisation."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@functools.cache
def build(name: str) -> Path:
    """Build a program and return its path; skip what needs it where there is no cargo."""
    if shutil.which("cargo") is None:
        pytest.skip(f"cargo is needed to build {name}", allow_module_level=True)
    command = ["cargo", "build", "--quiet", "--package", "trunkline-bench", "--bin", name, "--profile", "bench"]
    built = subprocess.run(
        [*command, "--message-format", "json"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    return Path(next(message["executable"] for message in messages if message.get("executable")))
