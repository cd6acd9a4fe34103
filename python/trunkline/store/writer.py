"""Writing a run file."""

from __future__ import annotations

import contextlib
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

from trunkline._core import checksum, finished_rows
from trunkline._internal.text import printable, redact, redact_command
from trunkline.errors import InfrastructureError, RunFileError, WorkerError
from trunkline.store import schema
from trunkline.store.call_table import CallTable
from trunkline.store.lock import Holder, Lock, remove, remove_stub, sync_folders
from trunkline.store.log import cut_failed, log_size, loss_in_log, missing_log, refuse
from trunkline.store.schema import RolloutRow, TakenRow, TreeRow, delta_key, delta_keys
from trunkline.store.sqlite import (
    as_text,
    connect_to_write,
    fault,
    fold,
    folded_on_error,
    keep_log,
    transaction,
    written,
)
from trunkline.store.state import Resumed, RunProgress, reopen, resume
from trunkline.store.sums import ROWS_SUM, Seal, rows_sum, taken_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trunkline._core import CommitRows
    from trunkline._internal.text import JSON
    from trunkline.types import Task

_NO_ROOM = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}  # codes of a disk that takes nothing
_LOG = 4_000_000  # bytes of the log from which on it is written back
_COPIED = 1 << 16  # bytes of a delta below which it is bound as a copy
_LOOK_EVERY = 1.0  # seconds between looks at whether the file is still where it was made

_DELTA = "INSERT INTO deltas VALUES (?, ?)"
_NEW_DELTA = f"{_DELTA} ON CONFLICT DO NOTHING"
_TAKEN = f"INSERT INTO taken VALUES (?{', ?' * len(schema.TAKEN_COLUMNS)})"  # noqa: S608 - our own names
_TREE = f"INSERT OR REPLACE INTO trees VALUES (?{', ?' * len(schema.TREE_COLUMNS)}, ?, ?, ?)"  # noqa: S608 - our own names
_SUMS = "SELECT task, calls_sum, tools_sum FROM trees WHERE task IN (SELECT value FROM json_each(?))"
_ROLLOUT = f"INSERT OR REPLACE INTO rollouts VALUES (?{', ?' * len(schema.ROLLOUT_COLUMNS)})"  # noqa: S608 - our own names


class RunWriter:
    """The one writer of a run file; make it with ``create`` or ``open``.

    Its methods may be called from any thread, one at a time. Readers may have the file open meanwhile.
    """

    def __init__(
        self, path: Path, connection: sqlite3.Connection, lock: Lock, resumed: Resumed, *, made: Sequence[Path] = ()
    ) -> None:
        self.path = path
        self.progress = resumed.progress_so_far
        self._looked = -math.inf
        self._gone = False
        self._made = made
        self._connection = connection
        self._lock = lock
        self._calls = resumed.calls
        self._taken = set(resumed.progress_so_far.taken)
        self._finished = set(resumed.progress_so_far.finished)
        self._seal = resumed.seal
        self._began = time.monotonic() - resumed.seconds
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
        durable: bool = False,
        facts: Mapping[str, JSON] | None = None,
        state: str = "running",
        over_stub: bool = False,
        began: int | None = None,
    ) -> Self:
        """Make a new run file with its settings and tasks, and missing directories above it.

        Calls count from ``began``, in microseconds on the machine's clock; from now when None.
        """
        path = Path(path)
        if over_stub:
            remove_stub(path)
        made = [folder for folder in path.absolute().parents if not folder.exists()]
        lock = Lock.make(path)
        with contextlib.ExitStack() as undo:
            undo.callback(lock.release)
            undo.callback(remove, path, made)
            connection = undo.enter_context(contextlib.closing(connect_to_write(path)))
            with written(path):
                connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {schema.SCHEMA_VERSION}")
                keep_log(connection, durable=durable)
                sync_folders(made if durable else ())
                now = repr(time.time())
                meta = _meta(facts, settings) | {
                    "command": as_text(redact_command(list(sys.argv if command is None else command))),
                    "versions": as_text(msgspec.to_builtins(schema.HERE)),
                    "holder": as_text(msgspec.to_builtins(Holder.here())),
                    "state": state,
                    "created": now,
                    "updated": now,
                    "seconds": "0.0",
                }
                with transaction(connection):
                    for statement in filter(str.strip, schema.TABLES.split(";")):
                        connection.execute(statement)
                    encode = msgspec.json.encode
                    rows = [(number, task.id, bytearray(encode(task))) for number, task in enumerate(tasks)]
                    connection.executemany("INSERT INTO tasks VALUES (?, ?, ?)", rows)
                seal = Seal.new(checksum(rows)).written_back(connection, meta)
            undo.pop_all()
        passed = 0 if began is None else time.monotonic_ns() // 1000 - began
        return cls(path, connection, lock, Resumed(RunProgress(), CallTable(passed), 0.0, seal), made=made)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        durable: bool = False,
        settings: Mapping[str, JSON] | None = None,
        facts: Mapping[str, JSON] | None = None,
        changed: Sequence[str] = (),
        forced: bool = False,
        partial: bool = False,
        reopened: Sequence[tuple[int, int, bytes | None]] = (),
    ) -> Self:
        """Open a run file to continue it: the run is ``running`` again.

        Finished tasks that are ``reopened``, each with the number of its next delta and that delta, are unfinished.
        """
        path = Path(path)
        if not path.is_file():
            raise RunFileError(f"{printable(str(path))}: no such run file")
        # Before it is open for writing: as it closes, SQLite does away with a log of which it could read a part.
        logged = log_size(path) > 0
        refuse(path, loss := loss_in_log(path), partial=partial)
        lock = Lock.take(path)
        with contextlib.ExitStack() as undo:
            undo.callback(lock.release)
            connection = undo.enter_context(contextlib.closing(connect_to_write(path)))
            with written(path):
                found = fault(connection)
                if found is not None:
                    raise RunFileError(f"{printable(str(path))} {found}")
                refuse(path, loss := loss if logged else missing_log(path, connection), partial=partial)
                meta = _meta(facts, settings)
                changed = [*changed, *([] if loss is None else [f"log: {loss}"])]
                with folded_on_error(connection):
                    if reopened:
                        reopen(path, connection, reopened)
                    resumed = resume(path, connection, durable=durable, facts=meta, changed=changed, forced=forced)
            undo.pop_all()
        return cls(path, connection, lock, resumed)

    def commit(
        self,
        deltas: Sequence[tuple[int, int, bytes]],
        finished: Sequence[tuple[int, TreeRow, Sequence[RolloutRow]]] = (),
    ) -> CommitRows:
        """Write a batch in one transaction: it is in the file when this returns, and not when it raises.

        A delta that is there already with the same bytes is left alone, and so are its calls: a batch may be delivered
        again.

        Args:
            deltas: Deltas, each with the numbers of its task and of itself; the calls in them become rows.
            finished: Tasks that are done, each with its rows.

        Returns:
            The rows of the calls.
        """
        with self._guard:
            if self._gone or time.monotonic() - self._looked >= _LOOK_EVERY:
                self._look()
                if log_size(self.path) > _LOG:
                    with written(self.path):
                        self._seal = self._seal.written_back(self._connection, {})
            with written(self.path):
                try:
                    with transaction(self._connection) as connection:
                        # sqlite3 looks for an adapter of bytes each time, which takes as long as a copy of so many.
                        keyed = [
                            (task << 32 | seq, bytearray(data) if len(data) < _COPIED else data)
                            for task, seq, data in deltas
                        ]
                        connection.executemany(_DELTA, keyed)
                        seal, rows = self._add(connection, deltas, finished)
                except sqlite3.IntegrityError:  # a delta is there already, which is rare
                    with transaction(self._connection) as connection:
                        seal, rows = self._add(connection, _missing(connection, deltas), finished)
            self._calls.keep()
            self._seal = seal
            self._finished.update([task for task, _, _ in finished])
            return rows

    def _add(
        self,
        connection: sqlite3.Connection,
        deltas: Sequence[tuple[int, int, bytes]],
        finished: Sequence[tuple[int, TreeRow, Sequence[RolloutRow]]],
    ) -> tuple[Seal, CommitRows]:
        """Write the calls of new deltas, the rows of finished tasks, and the checksums of both."""
        ended = [task for task, _, _ in finished]
        rows, seal = self._calls.add(connection, deltas, ended), self._seal
        if finished:
            known = {}
            if again := self._finished.intersection(ended):
                known = {task: (calls, tools) for task, calls, tools in connection.execute(_SUMS, (repr([*again]),))}
            sums = [known.get(task, own) for task, own in zip(ended, rows.sums, strict=True)]
            taken = {task: taken_rows(connection, task) for task in self._taken.intersection(ended)}
            trees, rollouts = finished_rows(msgspec.to_builtins(finished), sums, taken)
            connection.executemany(_TREE, trees)
            connection.executemany(_ROLLOUT, rollouts)
            for task in known:  # rows of before are left beside the new ones
                connection.execute(ROWS_SUM, (rows_sum(connection, task), task))
            seal = seal.with_finished(len(set(ended) - known.keys()))
        if self._calls.renamed:
            seal = seal.with_names(connection)
        calls, tools = rows.open
        return seal.with_tables({"calls": calls, "uses": tools}).put(connection, self._times()), rows

    def _times(self) -> dict[str, str]:
        return {"updated": repr(time.time()), "seconds": repr(round(time.monotonic() - self._began, 6))}

    def took(self, seconds: float) -> None:
        """Let the run have taken so many seconds by now."""
        self._began = time.monotonic() - seconds

    def take_over(self, task: int, deltas: Sequence[bytes], row: TakenRow) -> None:
        """Write an earlier run's deltas of a task, before anything else of that task."""
        with self._guard, written(self.path), transaction(self._connection) as connection:
            connection.executemany(_NEW_DELTA, ((delta_key(task, seq), data) for seq, data in enumerate(deltas)))
            connection.execute(_TAKEN, (task, *astuple(row)))
        self._taken.add(task)

    def begin(self) -> None:
        """Record that the file holds everything that the run needs to begin and to be resumed."""
        with self._guard, written(self.path):
            self._seal = self._seal.written_back(self._connection, {"state": "running"})

    def _look(self) -> None:
        """Refuse to write into a file that was deleted, moved or replaced."""
        self._looked = time.monotonic()
        if not self._gone and self._lock.is_there():
            return
        self._gone = True
        there = "another file stands in its place" if os.path.lexists(self._lock.place) else "it was deleted or moved"
        raise InfrastructureError(
            f"{printable(str(self.path))} is no longer the file this run writes: {there}; "
            "what comes now would be lost, so the run stops"
        )

    def deltas(self, task: int) -> list[bytes]:
        """The committed deltas of a task, in order."""
        with self._guard, written(self.path):
            return [bytes(data) for (data,) in self._connection.execute(schema.DELTAS, delta_keys(task))]

    def note(self, key: str, value: JSON) -> None:
        """Record a fact in the table ``meta``, replacing an earlier one of that key; secrets are not stored."""
        with self._guard, written(self.path), transaction(self._connection) as connection:
            seal = self._seal.put(connection, {key: as_text(redact(value))})
        self._seal = seal

    def event(
        self, kind: str, worker: int | None = None, task: int | None = None, at: float | None = None, **data: JSON
    ) -> None:
        """Record an event, of now unless ``at`` says when; secrets in its data are not stored."""
        with self._guard, written(self.path), transaction(self._connection) as connection:
            row = (time.time() if at is None else at, kind, worker, task, as_text(redact(data)))
            connection.execute("INSERT INTO events VALUES (NULL, ?, ?, ?, ?, ?)", row)
            events = checksum((row,), self._seal.tables["events"])
            seal = self._seal.with_tables({"events": events}).put(connection, {})
        self._seal = seal

    def finish(self, state: str = "done") -> None:
        """Record how the run ended, and close the file."""
        with self._guard:
            if not self._open:
                return
            failed = False
            try:
                if self._gone:
                    return
                self._look()
                # A stopped run does not wait for another program to end.
                with written(self.path), transaction(self._connection, patient=False) as connection:
                    self._seal.put(connection, self._times() | {"state": state, "finished": repr(time.time())})
            except InfrastructureError as error:
                failed = (getattr(error.__cause__, "sqlite_errorcode", None) or 0) & 0xFF in _NO_ROOM
                raise
            finally:
                if not self._gone:  # also where the end could not be written
                    fold(self._connection)
                self._connection.close()
                if failed and not self._gone:
                    cut_failed(self.path)
                self._close()

    def discard(self) -> None:
        """Close and remove the file and the folders made for it, for a run that did nothing."""
        with self._guard:
            if self._open:
                # Removed while the lock is held: no other run can take the name in between.
                self._connection.close()
                if self._lock.is_there():
                    remove(self._lock.place, self._made)
                self._close()

    def _close(self) -> None:
        self._open = False
        self._connection.close()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, problem: object, trace: object) -> None:
        self.finish("done" if kind is None else "interrupted")


def _missing(
    connection: sqlite3.Connection, deltas: Sequence[tuple[int, int, bytes]]
) -> Sequence[tuple[int, int, bytes]]:
    """Write the deltas that are not in the file, and return them; WorkerError for one that has other bytes there."""
    found = []
    for task, seq, data in deltas:
        key = delta_key(task, seq)
        if connection.execute(_NEW_DELTA, (key, data)).rowcount:
            found.append((task, seq, data))
            continue
        ((stored,),) = connection.execute("SELECT data FROM deltas WHERE delta = ?", (key,))
        if bytes(stored) != bytes(data):
            raise WorkerError(f"two different deltas were sent as number {seq} of task number {task}")
    return found


def _meta(facts: Mapping[str, JSON] | None, settings: Mapping[str, JSON] | None) -> dict[str, str]:
    """Facts and settings as rows of ``meta``, without secrets."""
    meta = {name: as_text(redact(value)) for name, value in (facts or {}).items()}
    if settings is not None:
        meta["settings"] = as_text(redact(msgspec.to_builtins(dict(settings), enc_hook=str)))
    return meta
