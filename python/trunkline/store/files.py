"""The files and folders that a run file is made of."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from trunkline.store.identify import files_of, is_stub
from trunkline.store.lock import Lock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["remove", "remove_stub", "sync_folders"]


def sync_folders(made: Sequence[Path]) -> None:
    """Have folders that were made survive a loss of power; SQLite sees to the file's own."""
    for folder in made:
        descriptor = os.open(folder.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_stub(path: Path) -> None:
    """Remove what a process left that was killed before its run began; nobody may be at it."""
    if not path.is_file() or not is_stub(path):
        return
    lock = Lock.take(path)
    try:
        if is_stub(path):
            remove(path, ())
    finally:
        lock.release()


def remove(path: Path, made: Sequence[Path]) -> None:
    """Remove a run file, what SQLite keeps beside it, and the folders made for it where nothing else is in them."""
    for file in files_of(path):
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
    for folder in made:
        # Deepest first; one that holds something by now stays.
        with contextlib.suppress(OSError):
            folder.rmdir()
