"""What ended processes leave behind: the processes that they started, and temporary folders. Standard library only."""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MARK: Final = "TRUNKLINE_PROCESS"
"""Variable in the environment of a worker, of a tool's process, and so of all that they start."""

_END: Final = 5.0
"""Seconds that are spent on processes that start others as fast as they are killed."""

_PATIENCE: Final = 2.0
"""Seconds in which the guard of an isolated tool ends by itself once its worker is gone."""

_TIDY: Final = 3.0
"""Seconds that are spent on folders at a time; a tool may have made a million. The next sweep removes more."""

_PAUSE: Final = 0.005

_PREFIXES: Final = ("trunkline-tool-", "trunkline-code-", "trunkline-agent-")
_SUFFIX: Final = "-locked"
"""Of folders that are locked by their owner; earlier versions locked none."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def new_mark() -> str:
    """Return a mark for a process that is about to be started; it lies below this process's own."""
    return f"{os.environ.get(MARK, '')}/{secrets.token_hex(8)}"


def marked(mark: str, *, below: bool = True) -> list[int]:
    """Return the processes with a mark, or one below it, in their environment, but for this process."""
    with suppress(OSError):
        return [
            int(folder.name)
            for folder in Path("/proc").iterdir()
            if folder.name.isdigit() and int(folder.name) != os.getpid() and _carries(folder, mark, below)
        ]
    return []


def _carries(folder: Path, mark: str, below: bool) -> bool:
    entry = f"{MARK}={mark}".encode()
    try:
        environment = (folder / "environ").read_bytes()
        for _ in range(3 * (not environment)):  # a process that has just called exec shows none for a moment
            (folder / "exe").readlink()
            time.sleep(_PAUSE)
            if environment := (folder / "environ").read_bytes():
                break
    except OSError:  # it has ended, is another user's, or one of the kernel's
        return False
    return any(line == entry or (below and line.startswith(entry + b"/")) for line in environment.split(b"\0"))


def end_marked(mark: str, *, below: bool = True) -> None:
    """Kill all processes with a mark, or one below it, but for this process, until none is left."""
    deadline = time.monotonic() + _END
    while (found := marked(mark, below=below)) and time.monotonic() < deadline:
        for pid in found:
            # A descriptor stays with its process; the number may be another's by now.
            with suppress(OSError), _open(os.pidfd_open(pid)) as process:
                if _carries(Path(f"/proc/{pid}"), mark, below):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
        time.sleep(_PAUSE)


def end_worker_processes(mark: str) -> None:
    """End the processes that a dead worker has left; guards of isolated tools get a while to end by themselves."""
    if not marked(mark):
        return
    end_marked(mark, below=False)
    deadline = time.monotonic() + _PATIENCE
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(_PAUSE)
    end_marked(mark)
    sweep()


def make_folder(prefix: str) -> tuple[str, int]:
    """Make a temporary folder and a lock; no ``sweep`` removes it until this process closes the lock or ends."""
    while True:
        folder = tempfile.mkdtemp(prefix=prefix, suffix=_SUFFIX)
        lock = -1
        try:
            lock = os.open(folder, _FOLDER)
            with suppress(OSError):  # a file system without locks; no sweep removes anything there
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.samestat(Path(folder).stat(), os.fstat(lock)):
                return folder, lock
        except FileNotFoundError:  # a sweep came between the two
            pass
        if lock >= 0:
            os.close(lock)


def sweep() -> None:
    """Remove the temporary folders of tools and programs that no process locks: their owner has died."""
    deadline = time.monotonic() + _TIDY
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIXES) and entry.name.endswith(_SUFFIX):
                with suppress(OSError), _open(os.open(entry.path, _FOLDER)) as folder:
                    if os.fstat(folder).st_uid == os.geteuid():
                        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        remove_folder(entry.path, deadline)


def remove_folder(path: str, deadline: float | None = None) -> None:
    """Remove a folder of any depth and rights; what cannot be removed by a deadline of the monotonic clock stays."""
    deadline = time.monotonic() + _TIDY if deadline is None else deadline
    _make_writable(path)
    with suppress(OSError), _open(os.open(path, _FOLDER)) as top:
        waiting = ["."]
        while waiting and time.monotonic() < deadline:
            name = waiting.pop()
            with suppress(OSError):
                waiting += _emptied(name, top, deadline)
            if name != ".":
                with suppress(OSError):
                    os.rmdir(name, dir_fd=top)
        Path(path).rmdir()


def _emptied(name: str, top: int, deadline: float) -> list[str]:
    """Remove the files of a folder in ``top``; return its folders, which are then in ``top`` as well."""
    moved = []
    with _open(os.open(name, _FOLDER, dir_fd=top)) as folder, os.scandir(folder) as entries:
        for entry in list(entries):
            if time.monotonic() > deadline:
                break
            if not entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    os.unlink(entry.name, dir_fd=folder)
                continue
            # A path to a folder deep down would be too long.
            new = entry.name if name == "." else secrets.token_hex(16)
            with suppress(OSError):
                _make_writable(entry.name, folder)
                if name != ".":
                    os.rename(entry.name, new, src_dir_fd=folder, dst_dir_fd=top)
                moved.append(new)
    return moved


def _make_writable(name: str, within: int | None = None) -> None:
    """Give rights to a folder back to its owner; root needs no rights."""
    if os.geteuid():
        with suppress(OSError):
            os.chmod(name, 0o700, dir_fd=within)


@contextmanager
def _open(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)
