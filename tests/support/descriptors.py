"""What this process has open."""

from __future__ import annotations

from pathlib import Path


def open_descriptors() -> set[tuple[str, str]]:
    """The numbers of open descriptors, and what each is.

    Compare with `open_descriptors() - before`: what an earlier test left to the garbage collector may close
    at any time.
    """
    found = set()
    for link in list(Path("/proc/self/fd").iterdir()):
        try:
            found.add((link.name, str(link.readlink())))
        except OSError:
            continue  # the descriptor by which they were listed
    return found
