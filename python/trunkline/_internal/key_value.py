"""Values by key in an SQLite file: the caches of replies and of grades."""

from __future__ import annotations

import logging
import sqlite3
from typing import TYPE_CHECKING, Any, Final

from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


_WAIT: Final = 2.0
"""Seconds to wait for another process that writes; nothing else happens in this one meanwhile."""

logger = logging.getLogger(__name__)


class KeyValueFile:
    """A file for several processes, not synced to the disk; ``column`` has name and type. ConfigError if unusable."""

    # The first failure to read or write is logged and closes the file: a second try would hold up every rollout.

    def __init__(self, path: str | Path, name: str, application_id: int, *, table: str, column: str) -> None:
        self._path = str(path)
        self._name = name
        self._select = f"SELECT {column.partition(' ')[0]} FROM {table} WHERE key = ?"  # noqa: S608
        self._insert = f"INSERT OR REPLACE INTO {table} VALUES (?, ?)"  # noqa: S608
        create = f"CREATE TABLE IF NOT EXISTS {table} (key BLOB PRIMARY KEY, {column} NOT NULL) WITHOUT ROWID"
        try:
            self._file: sqlite3.Connection | None = _open(self._path, application_id, create)
        except sqlite3.Error as error:
            raise ConfigError(f"{name} {self._path!r} cannot be used: {error}; give another path") from None

    def get(self, key: bytes) -> Any:
        """Return the value of a key; None for an unknown key."""
        if self._file is None:
            return None
        try:
            row = self._file.execute(self._select, (key,)).fetchone()
        except sqlite3.Error as error:
            self._give_up(error)
            return None
        return None if row is None else row[0]

    def keep(self, rows: Iterable[tuple[bytes, Any]]) -> None:
        """Keep values by their keys."""
        if self._file is None:
            return
        try:
            self._file.executemany(self._insert, rows)
        except sqlite3.Error as error:
            self._give_up(error)

    def close(self) -> None:
        """Close the file; may be called more than once."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def _give_up(self, error: sqlite3.Error) -> None:
        logger.warning("%s %r is left out from here on: %s", self._name, self._path, error)
        self.close()


def _open(path: str, application_id: int, create: str) -> sqlite3.Connection:
    file = sqlite3.connect(path, timeout=_WAIT, isolation_level=None)
    try:
        ((found,),) = file.execute("PRAGMA application_id").fetchall()
        ((tables,),) = file.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        if tables and found != application_id:
            raise sqlite3.DatabaseError("it is another program's file")
        file.execute("PRAGMA journal_mode = WAL")
        file.execute("PRAGMA synchronous = OFF")
        file.execute(f"PRAGMA application_id = {application_id}")
        file.execute(create)
    except sqlite3.Error:
        file.close()
        raise
    return file
