"""The processes below one, and how they end."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

__all__ = ["children", "descendants", "kill_all_of"]


def children(pid: int) -> list[int]:
    """Return the children of a process; none where the system does not say."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """Return the children of a process, theirs, and so on."""
    found = children(pid)
    for child in found:
        found.extend(children(child))
    return found


def kill_all_of(uid: int) -> None:
    """Kill every process of a user at once, by one who is that user, too."""
    killer = os.fork()
    if not killer:
        try:
            os.setresuid(uid, uid, uid)
            os.kill(-1, signal.SIGKILL)  # not this process itself
        finally:
            os._exit(0)
    os.waitpid(killer, 0)
