"""The lock of a run file's writer; making, renaming and removing run files."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import socket
import sqlite3
import time
from typing import TYPE_CHECKING, Self

import msgspec

from trunkline._internal.text import printable
from trunkline.errors import InfrastructureError, RunFileError
from trunkline.store.schema import APPLICATION_ID
from trunkline.store.sqlite import connect, describe, files_of, is_stub

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


_held: set[tuple[int, int]] = set()
"""The files that this process writes, by device and inode. Nothing here opens them to look at their locks: closing any
descriptor of a file drops all record locks that the process has on it, SQLite's among them."""


_APPLICATION_AT = 68
"""Where an SQLite file says whose it is."""


class Holder(msgspec.Struct, frozen=True):
    """The process that writes a run file; ``holder`` in the table ``meta``."""

    pid: int  # the process
    host: str  # its machine
    since: float  # when it began, in seconds since 1970

    @classmethod
    def here(cls) -> Self:
        """This process."""
        return cls(os.getpid(), socket.gethostname(), time.time())


class Lock:
    """A lock that the writer of a run file holds; make it with ``make`` or ``take``.

    It is advisory, and of a kind (flock) that is not SQLite's own. It dies with the process: there are no stale ones.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        # Where it is, also for a program that changes its directory meanwhile.
        self.place = path.absolute()
        self._descriptor = descriptor
        _held.add(_identity(os.fstat(descriptor)))

    @classmethod
    def make(cls, path: Path) -> Self:
        """Make the file, which must not be there, and lock it."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            there = path if os.path.lexists(path) else path.parent
            what = describe(path) if there == path else "is not a directory"
            raise RunFileError(f"{printable(str(there))} {what}: choose another --out, or remove it") from None
        except OSError as problem:
            raise _failed(path, "created", problem) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise _failed(path, "locked", problem) from None
        return cls(path, descriptor)

    @classmethod
    def take(cls, path: Path) -> Self:
        """Lock a file that is there."""
        if is_held_here(path):
            raise taken_by(path)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as problem:
            raise _failed(path, "written", problem) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise taken_by(path) from None
        except OSError as problem:
            os.close(descriptor)
            raise _failed(path, "locked", problem) from None
        lock = cls(path, descriptor)
        if not lock.is_there():
            # Another process has put its own file there since this one was opened.
            lock.release()
            raise taken_by(path)
        return lock

    def is_there(self) -> bool:
        """Whether the file still stands where it was locked."""
        try:
            return os.path.samestat(self.place.stat(), os.fstat(self._descriptor))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # It cannot be told; if something is wrong, writing will say so.

    def holds_run(self) -> bool:
        """Whether it is a run file, of whatever version, damaged or not."""
        return os.pread(self._descriptor, 4, _APPLICATION_AT) == APPLICATION_ID.to_bytes(4, "big")

    def release(self) -> None:
        """Release the lock; only after SQLite has closed the file, see ``_held``."""
        _held.discard(_identity(os.fstat(self._descriptor)))
        os.close(self._descriptor)


def is_written(path: Path) -> bool:
    """Whether a process writes this run file now, this one included."""
    if is_held_here(path):
        return True
    try:
        # A named pipe has no writer, and is not waited for.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # A file system without such locks.
    finally:
        os.close(file)
    return False


def _identity(facts: os.stat_result) -> tuple[int, int]:
    return facts.st_dev, facts.st_ino


def is_held_here(path: Path) -> bool:
    """Whether this process writes a run file."""
    try:
        return _identity(path.stat()) in _held
    except OSError:
        return False


def taken_by(path: Path) -> RunFileError:
    """An error that names the process which writes a file."""
    try:
        with contextlib.closing(connect(path)) as connection:
            (text,) = connection.execute("SELECT value FROM meta WHERE key = 'holder'").fetchone()
            holder = msgspec.json.decode(text, type=Holder)
    except (sqlite3.Error, TypeError, UnicodeError, msgspec.MsgspecError):
        who = "another process"
    else:
        who = f"process {holder.pid} on {printable(holder.host, 80)}"
    return RunFileError(f"{printable(str(path))} is being written by {who}: wait for it, or stop it first")


def _failed(path: Path, what: str, problem: OSError) -> InfrastructureError:
    return InfrastructureError(f"{printable(str(path))} cannot be {what}: {problem.strerror or problem}")


def sync_folders(made: Sequence[Path]) -> None:
    """Sync the parents of new folders, so that they survive a loss of power."""
    for folder in made:
        descriptor = os.open(folder.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_stub(path: Path) -> None:
    """Remove the remains of a process that was killed before its run began."""
    if not path.is_file() or not is_stub(path):
        return
    lock = Lock.take(path)
    try:
        if is_stub(path):
            remove(path, ())
    finally:
        lock.release()


def set_aside(path: Path) -> Path | None:
    """Rename a run file and its log by appending a number; returns the new name, or None without a run."""
    if not os.path.lexists(path) or is_stub(path):
        return None
    refused = f"{printable(str(path))} {describe(path)}: choose another --out, or remove it"
    if not path.is_file():
        raise RunFileError(refused)
    lock = Lock.take(path)
    try:
        if not lock.holds_run():
            raise RunFileError(refused)
        names = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
        aside = next(name for name in names if not any(map(os.path.lexists, files_of(name))))
        rename(path, aside)
    except OSError as problem:
        raise _failed(path, "renamed", problem) from None
    finally:
        lock.release()
    return aside


def rename(path: Path, to: Path) -> None:
    """Rename a run file that no process writes, and SQLite's files beside it before it."""
    for file, name in reversed(list(zip(files_of(path), files_of(to), strict=True))):
        with contextlib.suppress(FileNotFoundError):
            file.rename(name)


def remove(path: Path, made: Sequence[Path]) -> None:
    """Remove a run file, SQLite's files beside it, and the folders made for it that are empty."""
    for file in files_of(path):
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
    for folder in made:
        # Deepest first; one that holds something by now stays.
        with contextlib.suppress(OSError):
            folder.rmdir()
