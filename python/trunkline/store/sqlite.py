"""What a file is that stands where a run file is expected."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import msgspec

from trunkline.printable import printable
from trunkline.store.schema import APPLICATION_ID, HERE, SCHEMA_VERSION, Versions

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["connect", "describe", "fault", "files_of", "is_stub", "versions_of"]


def files_of(path: Path) -> list[Path]:
    """The files a run file may consist of: itself, and SQLite's log and index beside it."""
    return [
        path,
        path.with_name(path.name + "-wal"),
        path.with_name(path.name + "-shm"),
        path.with_name(path.name + "-journal"),
    ]


def connect(path: Path, *, immutable: bool = False) -> sqlite3.Connection:
    """Open a database for reading only; nothing is read from it yet.

    Args:
        path: The file.
        immutable: Read it without locks and without looking for a log beside it.
    """
    uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if immutable else ''}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=10)


def versions_of(connection: sqlite3.Connection) -> Versions | None:
    """What made a run file; None where that cannot be read, which is for a check of the file to say."""
    try:
        (text,) = connection.execute("SELECT value FROM meta WHERE key = 'versions'").fetchone()
        return msgspec.json.decode(text, type=Versions)
    except (sqlite3.Error, msgspec.MsgspecError, UnicodeError, TypeError):
        return None


def fault(connection: sqlite3.Connection) -> str | None:
    """Why a database is not a run file that can be read here, as the end of a sentence; None if it is one.

    Raises:
        sqlite3.Error: It is no database, or cannot be opened.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application != APPLICATION_ID:
        return "is another SQLite file" if tables else "is empty"
    if not tables:
        return "is a run that was stopped before it began: run its command again"
    if version != SCHEMA_VERSION:
        return f"is a Trunkline run of schema version {version}, but {SCHEMA_VERSION} is read here"
    made = versions_of(connection)
    if made is not None and made.delta != HERE.delta:
        by = printable(made.trunkline, 30)
        return f"was made by trunkline {by} with delta format {made.delta}, but format {HERE.delta} is read here"
    return None


def is_stub(path: Path) -> bool:
    """Whether a file is what a process leaves that is killed while it makes a run: nothing has grown in it."""
    if not path.is_file():
        return False
    if path.stat().st_size == 0:
        return True
    try:
        connection = connect(path)
        try:
            ((application,),) = connection.execute("PRAGMA application_id")
            ((tables,),) = connection.execute("SELECT count(*) FROM sqlite_schema")
            if application != APPLICATION_ID:
                return False
            state = tables and connection.execute("SELECT value FROM meta WHERE key = 'state'").fetchone()
            return not tables or bool(state == ("beginning",))
        finally:
            connection.close()
    except sqlite3.Error:
        return False


def describe(path: Path) -> str:
    """Say what stands at a path, as the end of a sentence."""
    if path.is_dir():
        return "is a directory"
    if not path.is_file():
        return "is there and is no regular file"
    if path.stat().st_size == 0:
        return "is there and is empty (or a run that is only beginning)"
    try:
        connection = connect(path)
        try:
            found = fault(connection)
            if found is not None:
                return found
            (tasks,) = connection.execute("SELECT count(*) FROM tasks").fetchone()
            (state,) = connection.execute("SELECT value FROM meta WHERE key = 'state'").fetchone()
        finally:
            connection.close()
    except (sqlite3.Error, TypeError):
        return "is a file, and not a database that can be read"
    over = state in {"done", "exhausted"}
    size = f"{tasks} task{'' if tasks == 1 else 's'}"
    more = "" if over else ", which resume=True or `trunkline resume` goes on with"
    return f"is {'a' if over else 'an unfinished'} Trunkline run of {size}{more}"
