"""The command line, in the process of the tests: a start of Python costs more than what most commands do."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner

from trunkline.cli.app import app
from trunkline.errors import TrunklineError

__all__ = ["Done", "trunkline"]


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
