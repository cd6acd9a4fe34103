"""Run files of earlier versions, brought to the version that is written here."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from trunkline._core import checksum
from trunkline._internal.text import printable
from trunkline.errors import RunFileError
from trunkline.store import schema
from trunkline.store.amend import copied
from trunkline.store.lock import is_written, remove, rename, set_aside, taken_by
from trunkline.store.reader import RunReader
from trunkline.store.schema import HERE, SCHEMA_VERSION, meta_entry
from trunkline.store.sqlite import as_text, connect, connect_to_write, damaged, files_of, fold, transaction, written
from trunkline.store.sums import Seal, rows_sum, unfinished_sums

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping

_UNSEALED: Final = "SELECT count(*) FROM trees WHERE rows_sum IS NULL"
_SUMS: Final = "UPDATE trees SET rows_sum = ?, calls_sum = ?, tools_sum = ? WHERE task = ?"
_KEY: Final = "migrated"


class Migration(msgspec.Struct, frozen=True):
    """One time that a run file was migrated; ``migrated`` in the table ``meta``."""

    at: float  # when, in seconds since 1970
    schema: int  # the schema that it had
    trunkline: str  # the version of this package that did it


class Migrated(msgspec.Struct, frozen=True):
    """A run file that was migrated.

    Attributes:
        path: The migrated file.
        kept: The original, which is as it was.
        schema: The schema that the original has.
    """

    path: Path
    kept: Path
    schema: int


def migrations(meta: Mapping[str, str]) -> list[Migration]:
    """The times that a run file was migrated, by its table ``meta``."""
    return meta_entry(meta, _KEY, list[Migration], [])


def migrate(path: str | Path, out: str | Path | None = None) -> Migrated | None:
    """Bring a run file to the schema that is written here. The original is kept.

    Every row is derived again from the deltas, then all get their checksums. Deltas stay as they are.

    Args:
        path: The run file.
        out: The migrated file, which must not exist. Without it, that takes the place of the run, which is renamed by
            appending a number.

    Returns:
        What was done; None where the file is of the present version already, which leaves it alone.

    Raises:
        RunFileError: It is no run that can be read here, it is being written, or there is something at ``out``.
        DamagedRunFile: A row does not follow from the deltas.
        InfrastructureError: The file cannot be written.
    """
    path = Path(path)
    with RunReader.open(path) as reader:
        looked = _looks(path)
        if is_written(path):
            raise taken_by(path)
        before = _version(path)
        if before is None:
            return None
        if problems := reader.check():
            raise damaged(path, printable(problems[0], 300))
    if out is not None:
        with copied(path, Path(out)) as part:
            _seal(part, before)
        return Migrated(Path(out), path, before)
    beside = path.with_name(f".{path.name}.migrated")
    if not is_written(beside):
        remove(beside, ())  # of a process that was killed
    with copied(path, beside) as part:
        _seal(part, before)
    kept = None
    try:
        if _looks(path) != looked:
            raise RunFileError(f"{printable(str(path))} was written by another process meanwhile: try again")
        kept = set_aside(path)
        assert kept is not None, "it was read above"
        with written(path):
            beside.rename(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        if kept is not None and not os.path.lexists(path):
            rename(kept, path)
        raise
    return Migrated(path, kept, before)


def _version(path: Path) -> int | None:
    """The schema of a run file; None where it is the present one and every finished task has its checksums."""
    with contextlib.closing(connect(path)) as connection:
        ((version,),) = connection.execute("PRAGMA user_version")
        whole = version == SCHEMA_VERSION and connection.execute(_UNSEALED).fetchone() == (0,)
    return None if whole else int(version)


def _looks(path: Path) -> list[tuple[int, int]]:
    """Sizes and times of a run's file, log and journal; a reader may make an empty log."""
    found = []
    for file in (path, *files_of(path)[1::2]):
        with contextlib.suppress(FileNotFoundError):
            state = file.stat()
            if state.st_size:
                found.append((state.st_size, state.st_mtime_ns))
    return found


def _seal(path: Path, before: int) -> None:
    """Give every finished task, and the rest of the file, their checksums."""
    with contextlib.closing(connect_to_write(path)) as connection, written(path):
        with transaction(connection):
            seal = Seal.load(connection).with_tables(unfinished_sums(connection))
            models, tools = _sums(connection, schema.CALL_ROWS), _sums(connection, schema.TOOL_ROWS)
            tasks = [task for (task,) in connection.execute("SELECT task FROM trees")]
            for task in tasks:
                sums = (found[task] & schema.SUM_MASK for found in (models, tools))
                connection.execute(_SUMS, (rows_sum(connection, task), *sums, task))
            meta = dict(connection.execute("SELECT key, value FROM meta"))
            times = [*migrations(meta), Migration(time.time(), before, HERE.trunkline)]
            seal.put(connection, {_KEY: as_text(msgspec.to_builtins(times))})
        fold(connection)


def _sums(connection: sqlite3.Connection, query: str) -> Counter[int]:
    found: Counter[int] = Counter()
    for row in connection.execute(query):
        found[row[0]] += checksum((row,))
    return found
