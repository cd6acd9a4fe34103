"""Changing a finished run file, or a copy of it."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import msgspec
from msgspec.structs import astuple

from trunkline._internal.text import printable, quoted, redact
from trunkline.errors import InfrastructureError, RunFileError, TreeError, UsageError
from trunkline.store import schema
from trunkline.store.derive import rebuilt, rows, taken
from trunkline.store.lock import Holder, Lock, is_written, remove, remove_stub, taken_by
from trunkline.store.reader import RunReader
from trunkline.store.schema import TreeEnding, delta_key
from trunkline.store.sqlite import (
    as_text,
    connect,
    connect_to_write,
    damaged,
    fault,
    fold,
    folded_on_error,
    keep_log,
    transaction,
    versions_of,
    written,
)
from trunkline.store.state import look
from trunkline.store.sums import ROWS_SUM, Seal, rows_sum

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trunkline import _core
    from trunkline._internal.text import JSON
    from trunkline.tree.views import Tree


# The names in these statements are our own.
_GROWN: Final = f"SELECT id FROM tasks WHERE task IN (SELECT DISTINCT {schema.TASK} FROM deltas) ORDER BY task"  # noqa: S608
_TREE: Final = f"UPDATE trees SET {', '.join(f'{column} = ?' for column in schema.TREE_COLUMNS)} WHERE task = ?"  # noqa: S608
_ROLLOUT: Final = f"INSERT OR REPLACE INTO rollouts VALUES (?{', ?' * len(schema.ROLLOUT_COLUMNS)})"  # noqa: S608
_TAKEN: Final = f"INSERT OR REPLACE INTO taken VALUES (?{', ?' * len(schema.TAKEN_COLUMNS)})"  # noqa: S608
_ENDING: Final = "SELECT digest, error, ended, why, refused FROM trees WHERE task = ?"


class Amender:
    """A finished run file, open to add scores, notes and reports to its trees.

    Make it with ``open``, as a context manager. Change the core of a tree that ``tree`` returned (a score, a
    note, a report), then ``commit`` it: the delta and every row that follows from it are written in one
    transaction, so the file is whole whenever the process dies. How the run ended, its times and its calls stay as they
    are. Readers may have the file open meanwhile.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: Lock) -> None:
        self.path = path
        self.reader = RunReader(path, connection)
        self._connection = connection
        self._lock = lock
        self._open = True

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a run file that no process writes."""
        path = Path(path)
        # A file that is no run is refused with the message of the reader.
        RunReader.open(path).close()
        lock = Lock.take(path)
        with contextlib.ExitStack() as undo:
            undo.callback(lock.release)
            connection = undo.enter_context(contextlib.closing(connect_to_write(path)))
            with written(path):
                try:
                    _check(path, connection)
                except RunFileError:
                    raise
                except (ValueError, sqlite3.OperationalError) as problem:
                    if getattr(problem, "sqlite_errorcode", None) is not None:
                        raise
                    # An error without a code comes from Python: the text cannot be decoded.
                    raise damaged(path, printable(str(problem), 300)) from None
                # Whether it may be written shows here, and not after an hour of asking.
                with folded_on_error(connection):
                    keep_log(connection, durable=False)
                    Seal.resumed(connection, {"holder": as_text(msgspec.to_builtins(Holder.here()))})
            undo.pop_all()
        return cls(path, connection, lock)

    def task_ids(self) -> list[str]:
        """The ids of all tasks with deltas, finished or not, in their order."""
        with written(self.path):
            return [str(name) for (name,) in self._connection.execute(_GROWN)]

    def tree(self, task_id: str) -> Tree:
        """Rebuild a tree to change it; ``ended`` is empty where its task is not finished."""
        return self.reader.grown(self.reader.number(task_id))

    def commit(self, task_id: str, tree: Tree, **facts: JSON) -> bool:
        """Write what a tree has changed since it was read or committed: all of it, or nothing when this raises.

        A tree whose commit has raised is to be read again before another one.
        """
        self._look()
        number = self.reader.number(task_id)
        delta = tree.core.delta()
        with written(self.path), transaction(self._connection) as connection:
            if delta is not None:
                self._amend(connection, task_id, number, delta)
            Seal.load(connection).put(connection, _as_meta(facts))
        return delta is not None

    def note(self, **facts: JSON) -> None:
        """Record facts about the run in its table ``meta``; a later one replaces an earlier one of the same name."""
        self._look()
        with written(self.path), transaction(self._connection) as connection:
            Seal.load(connection).put(connection, _as_meta(facts))

    def close(self) -> None:
        """Close the file for good, as one file wherever no reader has it open."""
        if not self._open:
            return
        self._open = False
        try:
            fold(self._connection)
        finally:
            self._connection.close()
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, problem: object, trace: object) -> None:
        self.close()

    def _look(self) -> None:
        """Refuse to write into a file that was deleted, moved or replaced."""
        if not self._lock.is_there():
            raise InfrastructureError(
                f"{printable(str(self.path))} was deleted, moved or replaced: what comes now would be lost"
            )

    def _amend(self, connection: sqlite3.Connection, task_id: str, number: int, delta: bytes) -> None:
        """Write a delta and the rows that follow from the file's own deltas, not from the given tree."""
        core, seq = self._stored(task_id, number)
        ended = connection.execute(_ENDING, (number,)).fetchone()
        if ended is not None and core.digest() != ended[0]:
            raise damaged(self.path, f"task {quoted(task_id)}: its row is of another tree than its deltas")
        before = _extent(core)
        try:
            known = not core.apply(delta)
            core.check()
        except TreeError as problem:
            why = printable(str(problem), 200)
            raise UsageError(
                f"task {quoted(task_id)}: what is committed does not follow from the tree in the file; read it again "
                f"with tree() ({why})"
            ) from None
        if known or _extent(core) != before:
            what = "was committed from another reading" if known else "has grown; a run that is over takes no more"
            raise UsageError(f"task {quoted(task_id)}: its tree {what}")
        connection.execute("INSERT INTO deltas VALUES (?, ?)", (delta_key(number, seq), delta))
        if ended is not None:
            tree, rollouts = rows(core, ended[1], TreeEnding(*ended[2:]))
            connection.execute(_TREE, (*astuple(tree), number))
            connection.executemany(_ROLLOUT, ((number, *astuple(row)) for row in rollouts))
            connection.execute(ROWS_SUM, (rows_sum(connection, number), number))
        elif number not in {task for (task,) in self._connection.execute(schema.BEGUN)} and self._is_taken(number):
            # Of an earlier run only: what is added belongs to the part that was taken over.
            connection.execute(_TAKEN, (number, *astuple(taken(core, seq + 1))))

    def _stored(self, task_id: str, number: int) -> tuple[_core.CoreTree, int]:
        deltas = self.reader.deltas(number)
        try:
            return rebuilt(deltas), len(deltas)
        except (TreeError, TypeError) as problem:
            raise damaged(self.path, f"task {quoted(task_id)}: {printable(str(problem), 200)}") from None

    def _is_taken(self, number: int) -> bool:
        return self._connection.execute("SELECT 1 FROM taken WHERE task = ?", (number,)).fetchone() is not None


def _as_meta(facts: Mapping[str, JSON]) -> dict[str, str]:
    return {name: as_text(redact(value)) for name, value in facts.items()}


def _extent(core: _core.CoreTree) -> tuple[int, int, list[int]]:
    """The parts of a tree that may not change any more: nodes, rollouts, and the growing ones."""
    return len(core), core.rollouts, core.growing


def _check(path: Path, connection: sqlite3.Connection) -> None:
    name = printable(str(path))
    found = fault(connection)
    if found is not None:
        raise RunFileError(f"{name} {found}")
    look(connection)
    (state,) = connection.execute("SELECT value FROM meta WHERE key = 'state'").fetchone() or ("",)
    if state == "beginning":
        raise RunFileError(f"{name} is a run that was stopped before it began: run its command again")
    made = versions_of(connection)
    if made is None or made.digest != schema.HERE.digest:
        which = "unknown versions" if made is None else f"digests of version {made.digest}"
        raise RunFileError(f"{name} has {which}, but version {schema.HERE.digest} is written here: it can only be read")


@contextlib.contextmanager
def copied(path: Path, out: Path) -> Iterator[Path]:
    """Copy a run file that no process writes. Missing folders above the copy are made too.

    The copy takes its place when the block ends, with all that was written into it there: a process that is killed
    before leaves an empty file at ``out`` and a part of one beside it, which the next copy to that place removes.
    """
    if is_written(path):
        raise taken_by(path)
    RunReader.open(path).close()
    if out.exists() and out.samefile(path):
        raise RunFileError(f"{printable(str(out))} is the run itself: choose another --out, or none to change it")
    remove_stub(out)
    made = [folder for folder in out.absolute().parents if not folder.exists()]
    lock = Lock.make(out)
    # The lock on the copy's place covers this one, too.
    part = out.with_name(f".{out.name}.trunkline-copy")
    try:
        with written(out):
            remove(part, ())
            part.touch()
            part.chmod(path.stat().st_mode & 0o777 | 0o600)  # no one reads the copy who may not read the run
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
