"""How much memory there is, and how much a process holds."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["machine_memory", "resident", "worker_share"]

_SHARE = 0.8
"""The part of the machine's memory that workers may hold together."""

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def machine_memory() -> int:
    """Bytes of memory that processes here can have in all: the machine's, or those of the container."""
    total = os.sysconf("SC_PHYS_PAGES") * _PAGE
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(limit).read_text()))
        except (OSError, ValueError):
            continue
    return total


def worker_share(workers: int) -> int:
    """Bytes that each of so many workers may hold."""
    return int(_SHARE * machine_memory() / max(1, workers))
