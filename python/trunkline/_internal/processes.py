"""Frames between processes, death with the parent, and the end of all processes below one. Standard library only."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

HEAD: Final = struct.Struct("<I")
"""The length before each payload. The highest bit is free for a transport's own use: no payload has 2 GiB."""

_READ: Final = 65536
_PAUSE: Final = 0.001

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def frame(payload: bytes) -> bytes:
    return HEAD.pack(len(payload)) + payload


def receive(read: Callable[[int], bytes]) -> bytes:
    """Read one payload; empty at the end of the stream."""
    head = _exactly(read, HEAD.size)
    return _exactly(read, *HEAD.unpack(head)) if head else b""


def _exactly(read: Callable[[int], bytes], size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = read(size - len(data))
        if not piece:
            return b""
        data += piece
    return bytes(data)


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel signal this process when its parent dies; end it here if the parent is dead already."""
    # The thread that started this process counts as the parent; only Linux sends the signal.
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of every process below it whose own parent has ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def children(pid: int) -> list[int]:
    """Return the children of all threads of a process; none where the system does not list them."""
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # this thread has ended meanwhile; the others have not
                found += map(int, (thread / "children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """Return the children of a process, their children, and so on."""
    found = children(pid)
    for child in found:
        found.extend(children(child))
    return found


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process, unless it has ended."""
    with suppress(OSError):
        os.kill(pid, number)


def kill_group(pid: int) -> None:
    """Kill the process group that a process leads, or has led."""
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def end_below(
    find: Callable[[int], list[int]], also: Callable[[dict[int, int]], object] = lambda _: None
) -> dict[int, int]:
    """Kill every process below this one, which adopts orphans, until none is left; return their wait statuses."""
    statuses: dict[int, int] = {}
    while True:
        for pid in find(os.getpid()):
            kill(pid)
        also(statuses)
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                statuses[ended[0]] = ended[1]
        except ChildProcessError:
            return statuses
        time.sleep(_PAUSE)


def drain(descriptor: int, most: int) -> bytes:
    """Read what is left in a pipe that no process writes to any more, and stop at so many bytes."""
    os.set_blocking(descriptor, False)
    data = bytearray()
    with suppress(BlockingIOError):
        while len(data) < most and (piece := os.read(descriptor, _READ)):
            data += piece
    return bytes(data)


def signal_name(number: int) -> str:
    """Return the name of a signal; real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
