"""File descriptors for the connections that a setting promises."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final

from trunkline.errors import ConfigError

__all__ = ["make_room"]

_SPARE: Final = 128
"""Descriptors kept for everything else that is opened later: name lookups, tools, files, sub-processes."""


def make_room(connections: int, wanted: int | None = None) -> int:
    """See that this process may open so many connections more; its soft limit is raised where that is needed.

    Args:
        connections: How many must be possible at once (``max_concurrency``).
        wanted: How many would be better, as idle ones to several servers count too; as many as must be if None.

    Returns:
        How many connections it may open now.

    Raises:
        ConfigError: The hard limit is too low.
    """
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
