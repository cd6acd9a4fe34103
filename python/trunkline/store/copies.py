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
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["copied"]


@contextlib.contextmanager
def copied(path: Path, out: Path) -> Iterator[Path]:
    """Copy a run file that no process writes. Missing folders above the copy are made too.

    The copy takes its place when the block ends, with all that was written into it there: a process that is killed
    before leaves an empty file at ``out`` and a part of one beside it, which the next copy to that place removes.

    Args:
        path: The file.
        out: Where to; nothing may be there but what a process left that was killed while it copied.

    Yields:
        Where the copy stands meanwhile.

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
    # Whoever holds the lock on the copy's place owns this one, too.
    part = out.with_name(f".{out.name}.trunkline-copy")
    try:
        with written(out):
            remove(part, ())
            part.touch()
            with contextlib.closing(connect(path)) as source, contextlib.closing(connect_to_write(part)) as copy:
                source.backup(copy)
        yield part
        with written(out):
            part.replace(out)
    except BaseException:
        remove(part, ())
        remove(out, made)
        raise
    finally:
        # Of what took its place, a log that could not be written back may be left.
        remove(part, ())
        lock.release()
