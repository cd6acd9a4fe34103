"""Standard output, for what a command was asked to print."""

from __future__ import annotations

import contextlib
import os
import sys

import click

from trunkline.errors import InfrastructureError
from trunkline.printable import printable

__all__ = ["put", "silence", "tell"]


def put(text: str) -> None:
    """Print a text, a line break after it, on standard output, and see it off.

    Where nobody reads any more (``| head``) or standard output was closed from the start, nothing is printed, so that
    the exit code still tells how the command ended. What the output's encoding lacks is escaped.

    Args:
        text: What to print, safe for a terminal.

    Raises:
        InfrastructureError: It cannot be written, as on a full disk.
    """
    stream = sys.stdout
    if stream is None or stream.closed:
        return
    try:
        try:
            stream.write(text + "\n")
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
    except BrokenPipeError:
        silence()
    except OSError as problem:
        silence()
        raise InfrastructureError(f"cannot write to standard output: {problem.strerror or problem}") from None


def tell(line: str) -> None:
    """Print one line for people on standard error, safe for a terminal; nowhere if nobody reads there."""
    with contextlib.suppress(OSError, ValueError):
        click.echo(printable(line), err=True)


def silence() -> None:
    """Send what is still to be written on standard output nowhere, since its reader has left or it failed."""
    # What is still in the buffer is written once more when the interpreter ends, and would fail once more.
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, sys.stdout.fileno())
        finally:
            os.close(null)
