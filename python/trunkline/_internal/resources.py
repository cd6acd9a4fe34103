"""Memory of this process and machine, the limit of open files, and thresholds of the garbage collector."""

from __future__ import annotations

import gc
import os
import resource
import threading
from pathlib import Path
from typing import Final

from trunkline.errors import ConfigError

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


_SPARE: Final = 128
"""Descriptors kept for everything else that is opened later: name lookups, tools, files, sub-processes."""


def make_room(connections: int, wanted: int | None = None) -> int:
    """Raise the soft limit of open files for so many connections, better for ``wanted``; return how many fit now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = _open() + _SPARE
    needed = used + connections
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise ConfigError(
            f"max_concurrency={connections} needs {needed:,} open files, and this process may have {hard:,}: lower "
            f"max_concurrency to at most {max(1, hard - used)}, use more workers, or raise the limit (ulimit -Hn)"
        )
    target = used + max(connections, wanted or 0)
    if hard != resource.RLIM_INFINITY:
        target = min(target, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        soft = target
    return target - used if soft == resource.RLIM_INFINITY else soft - used


def _open() -> int:
    """Count the descriptors in use; a few are assumed where the system does not list them."""
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:
        return 16


_RELAXED: Final = (50_000, 20, 50)
"""Thresholds while rollouts grow. With Python's own a row-step of 4,096 rows costs about twice as much."""


class Collector:
    """Raises the collector's thresholds while runs take place here, unless it is off or the thresholds are high."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._runs = 0
        self._before: tuple[int, int, int] | None = None
        self._meanwhile: tuple[int, int, int] | None = None

    def relax(self) -> None:
        with self._guard:
            self._runs += 1
            found = gc.get_threshold()
            if self._runs == 1 and 0 < found[0] < _RELAXED[0]:
                gc.set_threshold(*map(max, found, _RELAXED))
                # Some versions of Python have no third threshold, and always report 0.
                self._before, self._meanwhile = found, gc.get_threshold()

    def restore(self) -> None:
        """A run has ended; after the last one the thresholds are as before, unless other code has set them."""
        with self._guard:
            self._runs -= 1
            if not self._runs and self._before is not None:
                if gc.get_threshold() == self._meanwhile:
                    gc.set_threshold(*self._before)
                self._before = None


collector: Final = Collector()
