"""SQLite as run files are written with it: transactions, what is synced when, and what its errors mean."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING

import msgspec

from trunkline.errors import DamagedRunFile, InfrastructureError
from trunkline.llm.text import scrub_deep
from trunkline.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from trunkline.types import JSON

__all__ = ["as_text", "connect_to_write", "damaged", "keep_log", "put_meta", "transaction", "written"]

_META = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def connect_to_write(path: Path) -> sqlite3.Connection:
    """Open a database that is there for writing; nothing is read from it yet, and none is made."""
    uri = f"{path.absolute().as_uri()}?mode=rw"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=10)


def keep_log(connection: sqlite3.Connection, *, durable: bool) -> None:
    """Write to a log first, so that readers and a writer never wait for each other.

    Args:
        connection: The file, open for writing.
        durable: Whether each transaction is synced to the disk before it counts.
    """
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")


def put_meta(connection: sqlite3.Connection, facts: Mapping[str, str]) -> None:
    """Write rows of the table ``meta``; a later value of a key replaces an earlier one."""
    connection.executemany(_META, facts.items())


def as_text(value: JSON) -> str:
    """Encode what stands in ``meta`` as JSON; lone surrogates, as in some names of files, become U+FFFD."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode(scrub_deep(value)).decode()


def damaged(path: Path, what: str) -> DamagedRunFile:
    """The error that names damage, and who names all of it."""
    name = printable(str(path))
    return DamagedRunFile(f"{name} is damaged: {what}; `trunkline check {name}` names everything that is wrong")


@contextlib.contextmanager
def written(path: Path) -> Iterator[None]:
    """Turn what SQLite says while a file is written into an error for people.

    Raises:
        DamagedRunFile: The file is damaged.
        InfrastructureError: The disk is full or failed.
    """
    try:
        yield
    except OSError as problem:
        raise InfrastructureError(
            f"{printable(str(path))} cannot be written: {problem.strerror or problem}"
        ) from problem
    except sqlite3.DatabaseError as problem:
        if (getattr(problem, "sqlite_errorcode", None) or 0) & 0xFF in _DAMAGE:
            raise damaged(path, str(problem)) from problem
        raise InfrastructureError(
            f"{printable(str(path))} cannot be written ({problem}): free some space or choose another --out; "
            "what was committed before can still be read"
        ) from problem


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Write everything in a block, or nothing of it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        # SQLite has rolled back by itself after some failures, and says so here.
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
