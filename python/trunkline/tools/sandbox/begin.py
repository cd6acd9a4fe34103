"""How a program begins: in a fork of the supervisor, behind walls."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path
from typing import Final, NamedTuple

from trunkline.tools.sandbox.walls import Limits, Way, become, die_with, limit, namespaces, new_root, shut

__all__ = ["Pipes", "Place", "begin", "pipes_of_a_program"]

_ENVIRONMENT: Final = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    # A thread counts as a process does.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
}


class Place(NamedTuple):
    """Where programs run.

    Attributes:
        way: How they are shut in.
        python: The interpreter.
        uid: Their user, where they have their own.
    """

    way: Way
    python: str
    uid: int


class Pipes(NamedTuple):
    """The ends of pipes that a program has, and the one that says how it began and ended."""

    stdin: int
    stdout: int
    stderr: int
    word: int


def begin(place: Place, limits: Limits, others: int, source: str, folder: Path, pipes: Pipes, parent: int) -> None:
    """Put up the walls and become the program; in namespaces, leave two processes behind that wait for it.

    Args:
        place: Where it runs.
        limits: What it may use.
        others: How many threads the user has outside.
        source: The program.
        folder: An empty one.
        pipes: Its ends of the pipes; the fourth is told ``!`` and why it does not begin, or ``=`` and its status.
        parent: The supervisor.

    Raises:
        Refused: A wall cannot be put up.
    """
    die_with(parent)
    for ignored in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ignored, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    way, work, word = place.way, folder, pipes.word
    if way.spaces:
        namespaces(way)
        new_root(str(folder), limits.disk)
        (folder / "work" / "main.py").write_text(source, "utf-8", "replace")
        above, held = os.pipe()
        init = os.fork()
        if init:
            _leave(pipes)
            os.waitpid(init, 0)
            os._exit(0)
        die_with(0)
        os.close(held)
        if select.select([above], [], [], 0)[0]:
            os._exit(1)  # it is of another namespace, so only its pipe tells that the parent was gone before
        shut()
        os.chroot(folder)
        work = Path("/work")
        program = os.fork()
        if program:
            _leave(pipes, but=word)
            status = 0
            ended = 0
            while ended != program:
                ended, status = os.wait()
            os.write(word, b"=%d" % status)
            os._exit(0)
    else:
        (work / "main.py").write_text(source, "utf-8", "replace")
        if way.uid:
            os.chown(work, place.uid, place.uid)
            (work / "main.py").chmod(0o644)
        die_with(parent)
    os.chdir(work)
    os.setsid()
    become(way, place.uid)
    limit(way, limits, others)
    if not way.spaces:
        die_with(parent)  # once more: another user's process has forgotten
    for usual in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(usual, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    for number, descriptor in enumerate(pipes[:3]):
        os.dup2(descriptor, number)
    home = {"HOME": str(work), "TMPDIR": str(work)}
    os.execve(place.python, [place.python, "-s", "-B", "-X", "utf8", "main.py"], _ENVIRONMENT | home)  # noqa: S606 - as it should be


def _leave(pipes: Pipes, but: int = -1) -> None:
    """Close a program's ends in a process that is not the program."""
    for descriptor in pipes:
        if descriptor != but:
            os.close(descriptor)


def pipes_of_a_program() -> tuple[Pipes, Pipes]:
    """Our ends and the program's."""
    (input_read, input_write), *others = os.pipe(), os.pipe(), os.pipe(), os.pipe()
    os.set_blocking(input_write, False)
    return (
        Pipes(input_write, *(read for read, _ in others)),
        Pipes(input_read, *(write for _, write in others)),
    )
