"""SQLite's log beside a run file: whether all of it is read, and whether it is this run's."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline._internal.text import printable
from trunkline.errors import DamagedRunFile, RunFileError
from trunkline.store.lock import is_held_here, is_written
from trunkline.store.sqlite import connect, files_of
from trunkline.store.sums import Seal

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

_HEADER: Final = 32
_FRAME: Final = 24
_MAGIC: Final = 0x377F0682
"""The first number of a log; one more where its checksums read words with the highest byte first."""

_SUMS: Final = "SELECT key, value FROM meta WHERE key = 'sums'"
_PAGE: Final = 4096
_IDENTITY: Final = re.compile(rb'\{"of":"([0-9a-f]{16})"')
_GO_ON: Final = "`trunkline resume --force` (resume='force') continues from the whole part and pays for the rest again"


class LogScan(NamedTuple):
    """The contents of a log."""

    commits: int = 0  # commits that are read
    lost: int = 0  # later commits, from the first damaged one on
    end: int = 0  # the byte at which reading stops
    runs: frozenset[bytes] = frozenset()  # the identities of runs in those commits


def loss_in_log(path: Path) -> str | None:
    """The loss in the log of a run that no process writes, as the end of a sentence; None without one.

    Nothing may have the file open for writing in this process: as it closes, SQLite writes back what it can read of a
    log, and removes it.
    """
    log = files_of(path)[1]
    if is_held_here(path) or not log_size(path):
        return None
    found, own = scan(log), _identity(path)
    foreign = bool(own) and found.commits > 0 and own not in found.runs
    # A log that is written just now may be seen with a commit in part; a run that has ended has none.
    if not (found.lost or foreign) or is_written(path):
        return None
    name = printable(str(log))
    if foreign:
        raise RunFileError(
            f"{printable(str(path))} has the log of another run beside it: move {name} away, to the file that it is of"
        )
    which = "commit" if found.lost == 1 else f"{found.lost:,} commits"
    lost = f"which loses the last {which} of {found.commits + found.lost:,} in it"
    return f"its log {name} cannot be read from byte {found.end:,} on, {lost}; {_GO_ON}"


def missing_log(path: Path, connection: sqlite3.Connection) -> str | None:
    """Whether the log of a run is missing, as the end of a sentence; no other process may write the run."""
    try:
        seal = Seal.stored(dict(connection.execute(_SUMS)))
    except (sqlite3.Error, ValueError, TypeError):
        return None  # reading the file will report it
    if seal is None or not seal.follows:
        return None
    return (
        f"its log {printable(str(files_of(path)[1]))} is not beside it, as where a file is copied or moved without it, "
        f"and what the run did last is missing; put it there; without it, {_GO_ON}"
    )


def refuse(path: Path, loss: str | None, *, partial: bool) -> None:
    """Refuse a damaged run file, unless ``partial``."""
    if loss is not None and not partial:
        raise DamagedRunFile(f"{printable(str(path))} is damaged: {loss}")


def cut_failed(path: Path) -> None:
    """Cut off a commit that failed in the middle, which is no loss; its writer holds the lock, and wrote all before."""
    log = files_of(path)[1]
    with contextlib.suppress(OSError):
        found = scan(log)
        if found.lost == 1:
            os.truncate(log, max(found.end, _HEADER))


def log_size(path: Path) -> int:
    """Bytes of the log beside a run file; 0 where there is none."""
    try:
        return files_of(path)[1].stat().st_size
    except OSError:
        return 0


def _identity(path: Path) -> bytes:
    """The identity of a run by its file alone; empty where it has none or cannot be read."""
    with (
        contextlib.suppress(sqlite3.Error, ValueError, TypeError),
        contextlib.closing(connect(path, immutable=True)) as connection,
    ):
        seal = Seal.stored(dict(connection.execute(_SUMS)))
        return b"" if seal is None else seal.of.encode()
    return b""


def scan(log: Path) -> LogScan:
    """Read a log as SQLite does, and count the commits behind the first damage.

    A frame is a page with a header: its number; the size of the file behind a commit, or 0; two salts, which are those
    of the log's header unless the frame is of an earlier round; and a checksum of all frames up to it.
    """
    with log.open("rb") as file:
        header = file.read(_HEADER)
        if len(header) < _HEADER:
            return LogScan()
        magic, _, page, _, _, _, *stored = struct.unpack(">8I", header)
        order = ">" if magic & 1 else "<"
        state = _chained(header[:24], order, (0, 0))
        whole = magic & ~1 == _MAGIC and list(state) == stored
        return _frames(file, page if whole else _PAGE, order, header[16:24] if whole else b"", state)


def _frames(file: BinaryIO, page: int, order: str, salts: bytes, state: tuple[int, int]) -> LogScan:
    """Scan the frames of a log; without salts its header is damaged, and the first frame has them."""
    whole, commits, lost, end, at = bool(salts), 0, 0, 0, _HEADER
    runs: set[bytes] = set()
    while len(frame := file.read(_FRAME + page)) == _FRAME + page:
        at += len(frame)
        salts = salts or frame[8:16]
        ours = frame[8:12] == salts[:4] or frame[12:16] == salts[4:]
        commit = ours and frame[4:8] != bytes(4)
        if whole and frame[8:16] == salts:
            state = _chained(frame[24:], order, _chained(frame[:8], order, state))
            whole = state == struct.unpack(">2I", frame[16:24])
        else:
            whole = False
        if whole:
            runs.update(_IDENTITY.findall(frame))
            commits, end = commits + commit, at
        else:
            lost += commit
    return LogScan(commits, lost, end, frozenset(runs))


def _chained(data: bytes, order: str, state: tuple[int, int]) -> tuple[int, int]:
    """SQLite's checksum of some bytes, continued from a state."""
    a, b = state
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for x, y in zip(words, words, strict=True):
        a = a + x + b & 0xFFFFFFFF
        b = b + y + a & 0xFFFFFFFF
    return a, b
