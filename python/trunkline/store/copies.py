"""Copies of run files, whole or not there at all."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from trunkline.errors import RunFileError
from trunkline.printable import printable
from trunkline.store.disk import connect_to_write, written
from trunkline.store.files import remove, remove_stub
from trunkline.store.identify import connect
from trunkline.store.lock import Lock, is_written, taken_by
from trunkline.store.reader import RunReader

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["copy_run"]


def copy_run(path: Path, out: Path) -> None:
    """Copy a run file that no process writes. Missing folders above the copy are made too.

    Args:
        path: The file.
        out: Where to; nothing may be there but what a process left that was killed while it copied.

    Raises:
        RunFileError: The file is no run that can be read here, or is being written; or something is at ``out``.
        InfrastructureError: The copy cannot be written.
    """
    if is_written(path):
        raise taken_by(path)
    RunReader.open(path).close()
    if out.exists() and out.samefile(path):
        raise RunFileError(f"{printable(str(out))} is the run itself: choose another --out, or none to change it")
    remove_stub(out)
    made = [folder for folder in out.absolute().parents if not folder.exists()]
    lock = Lock.make(out)
    try:
        with (
            contextlib.closing(connect(path)) as source,
            contextlib.closing(connect_to_write(out)) as copy,
            written(out),
        ):
            # One transaction of the copy: a process that is killed in it leaves an empty file.
            source.backup(copy)
    except BaseException:
        remove(out, made)
        raise
    finally:
        lock.release()
