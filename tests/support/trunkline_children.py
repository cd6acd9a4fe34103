"""The worker processes of this one."""

from __future__ import annotations

import os
from pathlib import Path

SHARED: set[int] = set()
"""Workers of the pool that all tests of a session share."""


def children() -> list[int]:
    """Worker processes of this one that are alive and serve no shared pool, in the order of their ids."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            command = (status.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == os.getpid() and b"trunkline.worker.main" in command and int(status.parent.name) not in SHARED:
            found.append(int(status.parent.name))
    return sorted(found)


def actors() -> list[int]:
    """Actors of the Ray that this process has started, in the order of their ids."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            ours = (folder / "cmdline").read_bytes().startswith(b"ray::Actor")
        except OSError:
            continue
        if ours and os.getpid() in _parents(int(folder.name)):
            found.append(int(folder.name))
    return sorted(found)


def _parents(pid: int) -> list[int]:
    """Return the parent of a process, its parent, and so on."""
    found = []
    try:
        while pid > 1:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            found.append(pid)
    except OSError:
        pass
    return found
