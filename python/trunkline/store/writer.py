"""Writing a run file."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import sqlite3
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec
from msgspec.structs import astuple

from trunkline.errors import InfrastructureError, RunFileError, WorkerError
from trunkline.printable import printable
from trunkline.store.identify import describe, files_of
from trunkline.store.redact import redact, redact_command
from trunkline.store.schema import (
    APPLICATION_ID,
    CALL_COLUMNS,
    HERE,
    ROLLOUT_COLUMNS,
    SCHEMA_VERSION,
    TABLES,
    TAKEN_COLUMNS,
    TREE_COLUMNS,
    CallRow,
    RolloutRow,
    TakenRow,
    TreeRow,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trunkline.types import JSON, Task

__all__ = ["RunWriter"]

_LOOK_EVERY = 1.0  # seconds between looks at whether the file is still where it was made

_META = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
_DELTA = "INSERT INTO deltas VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_CALL = f"INSERT INTO calls VALUES (NULL, ?, ?{', ?' * len(CALL_COLUMNS)})"  # noqa: S608 - our own names
_TAKEN = f"INSERT INTO taken VALUES (?{', ?' * len(TAKEN_COLUMNS)})"  # noqa: S608 - our own names
_TREE = f"INSERT OR REPLACE INTO trees VALUES (?{', ?' * len(TREE_COLUMNS)})"  # noqa: S608 - our own names
_ROLLOUT = f"INSERT OR REPLACE INTO rollouts VALUES (?{', ?' * len(ROLLOUT_COLUMNS)})"  # noqa: S608 - our own names


class RunWriter:
    """The one writer of a run file; make it with :meth:`create`.

    Its methods may be called from any thread, one at a time. Readers may have the file open meanwhile.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: int, made: Sequence[Path] = ()) -> None:
        self.path = path
        # Where it is, also for a program that changes its directory meanwhile.
        self._place = path.absolute()
        self._looked = -math.inf
        self._gone = False
        self._made = made
        self._connection = connection
        self._lock = lock
        self._began = time.monotonic_ns() // 1000
        self._endpoints: dict[str, int] = {}
        self._guard = threading.Lock()
        self._open = True

    @classmethod
    def create(
        cls,
        path: str | Path,
        settings: Mapping[str, JSON],
        tasks: Sequence[Task],
        *,
        command: Sequence[str] | None = None,
    ) -> Self:
        """Make a new run file with its settings and tasks. Missing directories above it are made too.

        Args:
            path: Where; nothing may be there yet.
            settings: What the run was asked to do; secrets in it are not stored.
            tasks: All tasks; a task's position is its number in the file.
            command: The command line; this process's own when not given.

        Returns:
            The writer, holding the file's lock.

        Raises:
            RunFileError: Something is there already; the message says what.
            InfrastructureError: The file cannot be written.
        """
        path = Path(path)
        made = [folder for folder in path.absolute().parents if not folder.exists()]
        lock = _claim(path)
        connection: sqlite3.Connection | None = None
        try:
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
            with _written(path):
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                now = repr(time.time())
                meta = {
                    "settings": _json(redact(msgspec.to_builtins(dict(settings), enc_hook=str))),
                    "command": _json(redact_command(list(sys.argv if command is None else command))),
                    "versions": _json(HERE),
                    "state": "running",
                    "created": now,
                    "updated": now,
                }
                with _transaction(connection):
                    for statement in filter(str.strip, TABLES.split(";")):
                        connection.execute(statement)
                    connection.executemany(_META, meta.items())
                    connection.executemany(
                        "INSERT INTO tasks VALUES (?, ?, ?)",
                        ((number, task.id, msgspec.json.encode(task)) for number, task in enumerate(tasks)),
                    )
        except BaseException:
            if connection is not None:
                connection.close()
            _remove(path, made)
            os.close(lock)
            raise
        return cls(path, connection, lock, made)

    def commit(
        self,
        deltas: Sequence[tuple[int, int, bytes]],
        finished: Sequence[tuple[int, TreeRow, Sequence[RolloutRow]]] = (),
        calls: Sequence[tuple[int, int, Sequence[CallRow]]] = (),
    ) -> None:
        """Write a batch in one transaction: it is in the file when this returns, and not when it raises.

        A delta that is there already with the same bytes is left alone, and so are its calls: a batch may be delivered
        again.

        Args:
            deltas: ``(task, seq, data)``: the task's number, the delta's number in its tree, the delta.
            finished: ``(task, tree row, rollout rows)`` of tasks that are done.
            calls: ``(task, seq, call rows)`` of some of these deltas, begun on this machine's monotonic clock.

        Raises:
            WorkerError: A delta with this number is there with other bytes.
            InfrastructureError: The disk is full or failed; what was committed before stays readable. Or the file was
                deleted, moved or replaced, which is seen within a second.
        """
        with self._guard:
            if self._gone or time.monotonic() - self._looked >= _LOOK_EVERY:
                self._look()
            self._commit(deltas, finished, calls)

    def _commit(
        self,
        deltas: Sequence[tuple[int, int, bytes]],
        finished: Sequence[tuple[int, TreeRow, Sequence[RolloutRow]]],
        calls: Sequence[tuple[int, int, Sequence[CallRow]]],
    ) -> None:
        fresh: set[tuple[int, int]] = set()
        with _written(self.path), _transaction(self._connection) as connection:
            for task, seq, data in deltas:
                if connection.execute(_DELTA, (task, seq, data)).rowcount:
                    fresh.add((task, seq))
                else:
                    stored = connection.execute(
                        "SELECT data FROM deltas WHERE task = ? AND seq = ?", (task, seq)
                    ).fetchone()
                    if bytes(stored[0]) != bytes(data):
                        raise WorkerError(f"two different deltas were sent as number {seq} of task number {task}")
            # A delta that comes twice at once brings its calls twice, too: the last of equal ones is as good.
            news = {(task, seq): made for task, seq, made in calls if (task, seq) in fresh}
            numbers = self._intern(connection, {call.endpoint for made in news.values() for call in made})
            connection.executemany(_CALL, self._values(news, numbers))
            for task, tree, rollouts in finished:
                connection.execute(_TREE, (task, *astuple(tree)))
                connection.executemany(_ROLLOUT, ((task, *astuple(row)) for row in rollouts))
            connection.execute(_META, ("updated", repr(time.time())))
        # Only now: what was rolled back has no number.
        self._endpoints = numbers

    def _intern(self, connection: sqlite3.Connection, names: set[str]) -> dict[str, int]:
        """Return a number for every endpoint; those that are new get a row."""
        fresh = sorted(names - self._endpoints.keys())
        numbers = self._endpoints | {name: number for number, name in enumerate(fresh, len(self._endpoints))}
        connection.executemany("INSERT INTO endpoints VALUES (?, ?)", [(numbers[name], redact(name)) for name in fresh])
        return numbers

    def _values(
        self, calls: Mapping[tuple[int, int], Sequence[CallRow]], numbers: Mapping[str, int]
    ) -> Iterator[tuple[int, ...]]:
        """Return the calls of some deltas as rows."""
        origin = self._began
        for (task, seq), made in calls.items():
            # By tuples and by name, which is the fastest way of those that were measured.
            for name, draws, prompt, cached, generated, tries, queue, first, micros, begun in map(astuple, made):
                started = begun - origin if begun > origin else 0
                yield task, seq, numbers[name], draws, prompt, cached, generated, tries, queue, first, micros, started

    def take_over(self, task: int, deltas: Sequence[bytes], row: TakenRow) -> None:
        """Write what an earlier run made of a task, before anything else of that task.

        Args:
            task: The task's number.
            deltas: All of its deltas, in order.
            row: What they come to.

        Raises:
            InfrastructureError: The disk is full or failed.
        """
        with self._guard, _written(self.path), _transaction(self._connection) as connection:
            connection.executemany(_DELTA, ((task, seq, data) for seq, data in enumerate(deltas)))
            connection.execute(_TAKEN, (task, *astuple(row)))

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(self._place.stat(), os.fstat(self._lock))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # It cannot be told; if something is wrong, writing will say so.

    def _look(self) -> None:
        """Refuse to go on writing into a file that nobody will find again."""
        self._looked = time.monotonic()
        if not self._gone and self._is_there():
            return
        self._gone = True
        there = "another file stands in its place" if os.path.lexists(self._place) else "it was deleted or moved"
        raise InfrastructureError(
            f"{printable(str(self.path))} is no longer the file this run writes: {there}; "
            "what comes now would be lost, so the run stops"
        )

    def deltas(self, task: int) -> list[bytes]:
        """The committed deltas of a task, in order: what is known of it when its worker dies.

        Args:
            task: The task's number.
        """
        query = "SELECT data FROM deltas WHERE task = ? ORDER BY seq"
        with self._guard, _written(self.path):
            return [bytes(data) for (data,) in self._connection.execute(query, (task,))]

    def note(self, key: str, value: JSON) -> None:
        """Record a fact about the run, such as which model really answered; a later one replaces it.

        Args:
            key: Its name in the file's ``meta`` table.
            value: A JSON value; secrets in it are not stored.

        Raises:
            InfrastructureError: The disk is full or failed.
        """
        with self._guard, _written(self.path), _transaction(self._connection) as connection:
            connection.execute(_META, (key, _json(redact(value))))

    def event(self, kind: str, worker: int | None = None, task: int | None = None, **data: JSON) -> None:
        """Record something that came to pass.

        Args:
            kind: What it is called.
            worker: The worker's number, where it is about one.
            task: The task's number, where it is about one.
            **data: What there is to say beside it; secrets in it are not stored.

        Raises:
            InfrastructureError: The disk is full or failed.
        """
        with self._guard, _written(self.path), _transaction(self._connection) as connection:
            connection.execute(
                "INSERT INTO events VALUES (NULL, ?, ?, ?, ?, ?)",
                (time.time(), kind, worker, task, _json(redact(data))),
            )

    def finish(self, state: str = "done") -> None:
        """Close the file for good.

        Args:
            state: How the run ended: ``done``, or another word such as ``interrupted``.

        Raises:
            InfrastructureError: The disk is full or failed, or the file is gone and :meth:`commit` has not said so.
        """
        with self._guard:
            if not self._open:
                return
            try:
                if self._gone:
                    return
                self._look()
                with _written(self.path), _transaction(self._connection) as connection:
                    connection.executemany(_META, [("state", state), ("finished", repr(time.time()))])
                # Without a log beside it the file can be copied and read anywhere. A reader that has it open
                # prevents this, and then the log simply stays.
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("PRAGMA busy_timeout = 0")
                    self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                    self._connection.execute("PRAGMA journal_mode = DELETE")
            finally:
                self._close()

    def discard(self) -> None:
        """Close the file and remove it, and the folders made for it; for a run that did nothing."""
        with self._guard:
            if self._open:
                # Removed while the lock is held: nobody can take the name for a run in between.
                self._connection.close()
                if self._is_there():
                    _remove(self._place, self._made)
                self._close()

    def _close(self) -> None:
        self._open = False
        self._connection.close()
        # Last, because closing any descriptor of a file drops this process's locks on it, SQLite's among
        # them.
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, problem: object, trace: object) -> None:
        self.finish("done" if kind is None else "interrupted")


def _json(value: JSON) -> str:
    return msgspec.json.encode(value).decode()


def _claim(path: Path) -> int:
    """Make the file, which must not be there, and lock it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        there = path if os.path.lexists(path) else path.parent
        what = describe(path) if there == path else "is not a directory"
        raise RunFileError(f"{printable(str(there))} {what}: choose another --out, or remove it") from None
    except OSError as problem:
        raise InfrastructureError(f"{printable(str(path))} cannot be created: {problem.strerror or problem}") from None
    # Advisory, and flock rather than a record lock, which would be SQLite's own. Nothing is left behind: it
    # dies with us.
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        os.close(lock)
        path.unlink(missing_ok=True)
        raise InfrastructureError(f"{printable(str(path))} cannot be locked: {problem.strerror or problem}") from None
    return lock


def _remove(path: Path, made: Sequence[Path]) -> None:
    for file in files_of(path):
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
    for folder in made:
        # Deepest first; one that holds something by now stays.
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def _written(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.OperationalError, sqlite3.DatabaseError) as problem:
        name = printable(str(path))
        raise InfrastructureError(
            f"{name} cannot be written ({problem}): free some space or choose another --out; "
            "what was committed before can still be read"
        ) from problem


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        # SQLite has rolled back by itself after some failures, and says so here.
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
