"""Grades that were given, so that no judge is asked the same twice: in memory, and in a file if one is named."""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MOST", "GradeFile", "Grades", "key_of"]

MOST: Final = 1 << 17
"""Grades that are kept in memory; the oldest make room."""

_APPLICATION_ID: Final = 0x54524C47
"""``TRLG``, in the header of every file of grades."""

_TABLE: Final = "CREATE TABLE IF NOT EXISTS grades (key BLOB PRIMARY KEY, grade REAL NOT NULL) WITHOUT ROWID"
_WAIT: Final = 2.0
"""Seconds to wait for another process that writes."""

logger = logging.getLogger(__name__)


def key_of(parts: Iterable[str]) -> bytes:
    """What a grade is found by: 16 bytes of all that is asked.

    Args:
        parts: Texts; where one ends and the next begins makes a difference.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


class GradeFile:
    """A file of grades, which several processes may use at once.

    Losing it costs nothing but requests. When it cannot be read or written any more, that is said once, and it is
    left out from then on.

    Args:
        path: The file; it is made where there is none.

    Raises:
        ConfigError: There is something else at the path, or it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: sqlite3.Connection | None = None
        try:
            self._file = _opened(path)
        except sqlite3.Error as error:
            raise ConfigError(f"Judge: the cache {path!r} cannot be used: {error}; give another path") from None

    def get(self, key: bytes) -> float | None:
        """Return a grade, if there is one."""
        if self._file is None:
            return None
        try:
            row = self._file.execute("SELECT grade FROM grades WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            self._give_up(error)
            return None
        return None if row is None else float(row[0])

    def keep(self, key: bytes, grade: float) -> None:
        """Keep a grade."""
        if self._file is None:
            return
        try:
            self._file.execute("INSERT OR REPLACE INTO grades VALUES (?, ?)", (key, grade))
        except sqlite3.Error as error:
            self._give_up(error)

    def close(self) -> None:
        """Close the file; may be called more than once."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def _give_up(self, error: sqlite3.Error) -> None:
        logger.warning("the judge's cache %r is left out from here on: %s", self._path, error)
        self.close()


class Grades:
    """Grades in memory; those of all who use one judge in a process."""

    def __init__(self) -> None:
        self._known: dict[bytes, float] = {}

    def get(self, key: bytes) -> float | None:
        """Return a grade, if there is one."""
        return self._known.get(key)

    def keep(self, key: bytes, grade: float) -> None:
        """Keep a grade."""
        self._known[key] = grade
        while len(self._known) > MOST:
            self._known.pop(next(iter(self._known)), None)


def _opened(path: str) -> sqlite3.Connection:
    file = sqlite3.connect(Path(path), timeout=_WAIT, isolation_level=None)
    try:
        (found,) = file.execute("PRAGMA application_id").fetchone()
        (tables,) = file.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if tables and found != _APPLICATION_ID:
            raise sqlite3.DatabaseError("it is another program's file")
        file.execute("PRAGMA journal_mode = WAL")
        file.execute("PRAGMA synchronous = OFF")
        file.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        file.execute(_TABLE)
    except sqlite3.Error:
        file.close()
        raise
    return file
