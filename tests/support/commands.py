"""The command line, in the process of the tests (a start of Python costs more than most commands) or in its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner
from places import python_path

from trunkline.cli.app import app
from trunkline.errors import TrunklineError

__all__ = ["Done", "only_line", "started", "trunkline"]


class Done(NamedTuple):
    """What came of a command."""

    returncode: int
    stdout: str
    stderr: str


def trunkline(folder: Path, *arguments: object) -> Done:
    """Run a command to its end, in this process."""
    with contextlib.chdir(folder):
        found = CliRunner().invoke(app, [str(argument) for argument in arguments])
    error = found.exception
    assert error is None or isinstance(error, SystemExit | TrunklineError), found.exc_info
    if isinstance(error, TrunklineError):
        return Done(error.exit_code, found.stdout, f"{found.stderr}error: {error}")
    return Done(found.exit_code, found.stdout, found.stderr)


def started(*arguments: str, cwd: Path, stdin: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end as a user starts it: in a process of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "TRUNKLINE_"))}
    return subprocess.run(
        [sys.executable, "-m", "trunkline.cli", *arguments],
        cwd=cwd,
        env=clean | {"PYTHONPATH": python_path(), "COLUMNS": "40"} | env,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=90,
    )


def only_line(text: str) -> str:
    """The error must be one line, whatever else a terminal would show."""
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) == 1, text
    return lines[0]
