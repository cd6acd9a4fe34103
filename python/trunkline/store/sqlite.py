"""SQLite connections, transactions and errors; what a file at a path is."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from typing import TYPE_CHECKING, Final

import msgspec

from trunkline._core import OLDEST_FORMAT
from trunkline._internal.text import counted, printable, scrub
from trunkline.errors import DamagedRunFile, InfrastructureError
from trunkline.store.schema import (
    APPLICATION_ID,
    HERE,
    READ_VERSIONS,
    SCHEMA_VERSION,
    SUM_COLUMNS,
    TABLES,
    FileVersions,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trunkline._internal.text import JSON


logger = logging.getLogger(__name__)

READ_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
"""What reading a damaged file raises: also that a message of SQLite is no text."""

_COLUMNS = """
SELECT made.name, here.name FROM sqlite_schema made, pragma_table_info(made.name) here
WHERE made.type IN ('table', 'view')
"""

_WAIT = 10.0  # seconds that a lock of another program is waited for before it is said
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def connect_to_write(path: Path) -> sqlite3.Connection:
    """Open an existing database for writing; nothing is read yet."""
    uri = f"{path.absolute().as_uri()}?mode=rw"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=_WAIT)


def keep_log(connection: sqlite3.Connection, *, durable: bool) -> None:
    """Write to a log first, so that readers and a writer never wait; ``durable`` syncs each transaction."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    # Its writer writes the log back, see Seal.
    connection.execute("PRAGMA wal_autocheckpoint = 0")


def as_text(value: JSON) -> str:
    """Encode a value of ``meta`` as JSON; lone surrogates, as in some file names, become U+FFFD."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode(scrub(value)).decode()


def damaged(path: Path, what: str) -> DamagedRunFile:
    """The error for a damaged file, which points to ``trunkline check``."""
    name = printable(str(path))
    return DamagedRunFile(
        f"{name} is damaged: {what}; `trunkline check {name}` names everything that is wrong, and "
        f"`trunkline recover {name} OUT` writes what is whole into a new file"
    )


def lacks_columns(connection: sqlite3.Connection) -> bool:
    """Whether a file lacks a table or a column of a run, or cannot be asked."""
    with contextlib.closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(TABLES)
        made = fresh.execute(_COLUMNS).fetchall()
    wanted = {
        (table, column) for table, column in made if column not in SUM_COLUMNS
    }  # only the newest version has sums
    try:
        return not wanted <= set(connection.execute(_COLUMNS))
    except READ_ERRORS:
        return True


@contextlib.contextmanager
def written(path: Path) -> Iterator[None]:
    """Turn SQLite's errors while a file is written into errors for people."""
    try:
        yield
    except OSError as problem:
        raise InfrastructureError(
            f"{printable(str(path))} cannot be written: {problem.strerror or problem}"
        ) from problem
    except UnicodeDecodeError as problem:
        raise damaged(path, printable(str(problem), 200)) from problem
    except sqlite3.DatabaseError as problem:
        if (getattr(problem, "sqlite_errorcode", None) or 0) & 0xFF in _DAMAGE:
            raise damaged(path, str(problem)) from problem
        if _is_busy(problem):
            raise InfrastructureError(
                f"{printable(str(path))} cannot be written: another program has it locked ({problem}); close that "
                "program, such as a database browser; what was committed before can still be read"
            ) from problem
        raise InfrastructureError(
            f"{printable(str(path))} cannot be written ({problem}): free some space or choose another --out; "
            "what was committed before can still be read"
        ) from problem


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, *, patient: bool = True) -> Iterator[sqlite3.Connection]:
    """Commit a block as a whole, or roll it back; ``patient`` waits while another program locks the file."""
    _begin(connection, patient=patient)
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        # SQLite has rolled back by itself after some failures, and says so here.
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _begin(connection: sqlite3.Connection, *, patient: bool) -> None:
    """Take SQLite's write lock; signals are handled between attempts."""
    waited = 0
    try:
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                break
            except sqlite3.OperationalError as problem:
                if not patient or not _is_busy(problem):
                    raise
            if not waited:
                ((_, _, name),) = connection.execute("PRAGMA database_list")
                logger.warning(
                    "%s is locked by another program, such as a database browser: the run waits until it is closed",
                    printable(str(name)),
                )
                connection.execute("PRAGMA busy_timeout = 1000")
            waited += 1
    finally:
        if waited:
            connection.execute(f"PRAGMA busy_timeout = {int(_WAIT * 1000)}")
    if waited:
        logger.warning("the run file is no longer locked; the run continues")


def _is_busy(problem: sqlite3.Error) -> bool:
    return (getattr(problem, "sqlite_errorcode", None) or 0) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def fold(connection: sqlite3.Connection) -> None:
    """Write the log back and drop it, so that the file can be copied; not while a reader has it open."""
    with contextlib.suppress(sqlite3.Error):
        connection.execute("PRAGMA busy_timeout = 0")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode = DELETE")


@contextlib.contextmanager
def folded_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    """Fold the file where an error ends the block, and leave one that needs no log."""
    try:
        yield
    except BaseException:
        fold(connection)
        raise


def files_of(path: Path) -> list[Path]:
    """The files of a run: itself, and SQLite's log, index and journal beside it."""
    return [
        path,
        path.with_name(path.name + "-wal"),
        path.with_name(path.name + "-shm"),
        path.with_name(path.name + "-journal"),
    ]


def connect(path: Path, *, immutable: bool = False) -> sqlite3.Connection:
    """Open a database for reading; ``immutable`` without locks and without a log beside it."""
    uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if immutable else ''}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=_WAIT)


def versions_of(connection: sqlite3.Connection) -> FileVersions | None:
    """The versions that made a run file; None where they cannot be read."""
    try:
        (text,) = connection.execute("SELECT value FROM meta WHERE key = 'versions'").fetchone()
        return msgspec.json.decode(text, type=FileVersions)
    except (sqlite3.Error, msgspec.MsgspecError, UnicodeError, TypeError):
        return None


def fault(connection: sqlite3.Connection) -> str | None:
    """Why a database is no readable run file, as the end of a sentence; None if it is one."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application != APPLICATION_ID:
        return "is another SQLite file" if tables else "is empty"
    if not tables:
        return "is a run that was stopped before it began: run its command again"
    if version not in READ_VERSIONS:
        return f"is a Trunkline run of schema version {version}, but {SCHEMA_VERSION} is read here"
    made = versions_of(connection)
    if made is not None and not OLDEST_FORMAT <= made.delta <= HERE.delta:
        by = printable(made.trunkline, 30)
        return f"was made by trunkline {by} with delta format {made.delta}, but format {HERE.delta} is read here"
    return None


def is_stub(path: Path) -> bool:
    """Whether a file is the remains of a process that was killed before its run began."""
    if not path.is_file():
        return False
    if path.stat().st_size == 0:
        return True
    try:
        with contextlib.closing(connect(path)) as connection:
            ((application,),) = connection.execute("PRAGMA application_id")
            ((tables,),) = connection.execute("SELECT count(*) FROM sqlite_schema")
            if application != APPLICATION_ID:
                return False
            state = tables and connection.execute("SELECT value FROM meta WHERE key = 'state'").fetchone()
            return not tables or bool(state == ("beginning",))
    except READ_ERRORS:
        return False


def irregular(path: Path) -> str | None:
    """What other than a regular file is at a path, as the end of a sentence; opening it could block."""
    if path.is_file() or not os.path.lexists(path):
        return None
    if path.is_dir():
        return "is a directory"
    kinds = [(path.is_fifo(), "a named pipe"), (path.is_socket(), "a socket"), (not path.exists(), "a link to nothing")]
    return f"is no regular file, but {next((kind for found, kind in kinds if found), 'a device')}"


def describe(path: Path) -> str:
    """What is at a path, as the end of a sentence."""
    if (found := irregular(path)) is not None:
        return found
    if path.stat().st_size == 0:
        return "is there and is empty (or a run that is only beginning)"
    try:
        with contextlib.closing(connect(path)) as connection:
            found = fault(connection)
            if found is not None:
                return found
            (tasks,) = connection.execute("SELECT count(*) FROM tasks").fetchone()
            (state,) = connection.execute("SELECT value FROM meta WHERE key = 'state'").fetchone()
    except (*READ_ERRORS, TypeError):
        return "is a file, and not a database that can be read"
    over = state in {"done", "exhausted"}
    more = "" if over else ", which resume=True or `trunkline resume` continues"
    return f"is {'a' if over else 'an unfinished'} Trunkline run of {counted(tasks, 'task')}{more}"
