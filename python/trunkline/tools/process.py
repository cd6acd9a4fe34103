"""The processes of an isolated tool: ``python -m trunkline.tools.process CALLS LINE``, started by a worker only.

There are two, forked from one that has done nothing yet. One runs calls, and may end in any way. The other guards it:
it runs nobody's code, so it is there when the worker hangs up or dies; it adopts whatever the first one leaves behind,
ends all of that, takes the folder for temporary files away, and says how it ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

from trunkline.tools.frames import Ended
from trunkline.tools.performer import Performer

__all__ = ["children", "main"]

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36

_KEPT: Final = 4096
"""Bytes of what is printed that are kept for the record."""

_READ: Final = 65536

_PAUSE: Final = 0.001


def children(pid: int) -> list[int]:
    """Return the children of a process; none where the system does not say."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def main() -> None:
    """Fork, run calls in one process and guard it in the other."""
    calls, line = socket.socket(fileno=int(sys.argv[1])), socket.socket(fileno=int(sys.argv[2]))
    for sock in (calls, line):
        sock.set_inheritable(False)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    folder = tempfile.mkdtemp(prefix="trunkline-tool-")
    printed, output = os.pipe()
    guard = os.getpid()
    runner = os.fork()
    if runner:
        calls.close()
        os.close(output)
        _guard(runner, line, printed, folder)
    else:
        line.close()
        os.close(printed)
        _settle_in(guard, output, folder)
        Performer(calls, lambda: _others(guard), folder).serve()
    # Without whatever a tool has registered for the end.
    os._exit(0)


def _settle_in(guard: int, output: int, folder: str) -> None:
    """Make the process one that can be ended as a whole, and that ends with its guard."""
    os.setpgid(0, 0)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != guard:
        os._exit(1)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    faulthandler.enable()


def _others(guard: int) -> bool:
    """Whether processes are left that a call started, ours or adopted by the guard; or the guard itself is gone."""
    return bool(children(os.getpid())) or os.getppid() != guard or len(children(guard)) > 1


def _guard(runner: int, line: socket.socket, printed: int, folder: str) -> None:
    """Wait until the worker hangs up or the runner ends; leave nothing of it."""
    with contextlib.suppress(OSError):
        os.setpgid(runner, runner)  # whichever of the two comes first
    pidfd, tail = os.pidfd_open(runner), b""
    waiting = select.poll()
    for descriptor in (line.fileno(), pidfd, printed):
        waiting.register(descriptor, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in waiting.poll()]
        if printed in ready:
            data = os.read(printed, _READ)
            tail = (tail + data)[-_KEPT:]
            if not data:
                waiting.unregister(printed)
        # Whoever prints without end is not heard out.
        if ready != [printed]:
            break
    status = _end(runner)
    tail = (tail + _rest(printed))[-_KEPT:]
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # nobody listens any more
        line.sendall(msgspec.msgpack.encode(Ended(status, tail)))


def _rest(printed: int) -> bytes:
    """Return what is left in a pipe; nobody writes any more."""
    os.set_blocking(printed, False)
    rest = b""
    with contextlib.suppress(BlockingIOError):
        while data := os.read(printed, _READ):
            rest = (rest + data)[-_KEPT:]
    return rest


def _end(runner: int) -> int:
    """Kill the runner, its group, and all that left the group; return how the runner ended."""
    status: int | None = None
    while True:
        if status is None:  # after that its number may be another's
            with contextlib.suppress(OSError):
                os.killpg(runner, signal.SIGKILL)
        for child in children(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
        try:
            pid, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 0 if status is None else status
        if pid == runner:
            status = ended
        elif not pid:
            time.sleep(_PAUSE)


if __name__ == "__main__":
    main()
