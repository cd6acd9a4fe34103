"""Checksums of what a file holds: of a finished task's rows beside its row in ``trees``, of the rest in ``meta``."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from trunkline._core import checksum
from trunkline.store import schema
from trunkline.store.schema import HERE
from trunkline.store.sqlite import as_text, transaction, versions_of

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

# The names in these statements are our own.
_ROWS: Final = (
    f"SELECT {', '.join(schema.TREE_COLUMNS)} FROM trees WHERE task = ?",  # noqa: S608
    f"SELECT {', '.join(schema.TAKEN_COLUMNS)} FROM taken WHERE task = ?",  # noqa: S608
    f"SELECT {', '.join(schema.ROLLOUT_COLUMNS)} FROM rollouts WHERE task = ? ORDER BY rollout",  # noqa: S608
)

SEALED: Final = {
    "tasks": "SELECT task, id, record FROM tasks ORDER BY task",
    "endpoints": "SELECT endpoint, name FROM endpoints ORDER BY endpoint",
    "agents": "SELECT agent, name FROM agents ORDER BY agent",
    "events": "SELECT at, kind, worker, task, data FROM events ORDER BY event",
}
"""Tables that follow from nothing else, and the rows that their checksums are of."""

_OPEN: Final = {"calls": schema.CALL_ROWS, "uses": schema.TOOL_ROWS}
ROWS_SUM: Final = "UPDATE trees SET rows_sum = ? WHERE task = ?"
_STORED: Final = ("of", "finished", "tables", "meta", "follows")
_KEY: Final = "sums"
_FINISHED: Final = "SELECT count(*) FROM trees"
_PUT: Final = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"


def rows_sum(connection: sqlite3.Connection, task: int) -> int:
    """The checksum of a finished task's rows: its tree, the row taken over, its rollouts in order."""
    found = 0
    for query in _ROWS:
        found = checksum(connection.execute(query, (task,)), found)
    return found


def taken_rows(connection: sqlite3.Connection, task: int) -> list[tuple[Any, ...]]:
    """The row of a task that was taken over; none of another."""
    return connection.execute(_ROWS[1], (task,)).fetchall()


def unfinished_sums(connection: sqlite3.Connection) -> dict[str, int]:
    """The added checksums of the calls and tool calls of all unfinished tasks."""
    return {
        table: sum(checksum((row,)) for row in connection.execute(query + schema.UNFINISHED)) & schema.SUM_MASK
        for table, query in _OPEN.items()
    }


class Seal(msgspec.Struct, frozen=True):
    """The checksums in ``meta``; immutable, so that a rollback leaves the one before."""

    of: str  # an identity of the run, which its log holds as well, wherever the log lies
    finished: int  # finished tasks
    # checksums of tables by their names; of calls and tool calls, those of unfinished tasks, added up
    tables: dict[str, int]
    meta: int = 0  # the sum of the checksums of the rows of ``meta``, but for this one
    # whether a log beside the file has more; set where the log was written back last, never in the log itself
    follows: bool = False
    rows: dict[str, int] = {}  # checksums of these rows; they are not stored

    @classmethod
    def new(cls, tasks: int) -> Self:
        """The seal of a new file, by the checksum of its tasks."""
        return cls(secrets.token_hex(8), 0, dict.fromkeys([*SEALED, *_OPEN], 0) | {"tasks": tasks})

    @classmethod
    def stored(cls, meta: Mapping[str, str]) -> Self | None:
        """The seal in the table ``meta``; None where there is none, as in schema 7."""
        text = meta.get(_KEY)
        return None if text is None else msgspec.json.decode(text, type=cls)

    @classmethod
    def load(cls, connection: sqlite3.Connection) -> Self:
        """The seal of a file, in a transaction; one of an earlier schema is given its checksums."""
        meta = dict(connection.execute("SELECT key, value FROM meta"))
        ((version,),) = connection.execute("PRAGMA user_version")
        if version < schema.SCHEMA_VERSION:
            for column in schema.SUM_COLUMNS:
                connection.execute(f"ALTER TABLE trees ADD COLUMN {column} INTEGER")
            connection.execute(f"PRAGMA user_version = {schema.SCHEMA_VERSION}")
        known = cls.stored(meta)
        if known is None:
            known = cls.new(0).with_tables(
                {name: checksum(connection.execute(query)) for name, query in SEALED.items()}
            )
        ((finished,),) = connection.execute(_FINISHED)
        return msgspec.structs.replace(known, finished=finished, rows=_each(meta))

    def with_tables(self, found: Mapping[str, int]) -> Self:
        """A copy with other checksums of some tables."""
        return msgspec.structs.replace(self, tables={**self.tables, **found})

    def with_names(self, connection: sqlite3.Connection) -> Self:
        """A copy with the checksums of the names as they are now."""
        names = {table: checksum(connection.execute(SEALED[table])) for table in ("endpoints", "agents")}
        return msgspec.structs.replace(self, tables=self.tables | names)

    def with_finished(self, tasks: int) -> Self:
        """A copy with so many more finished tasks."""
        return msgspec.structs.replace(self, finished=self.finished + tasks)

    def put(
        self,
        connection: sqlite3.Connection,
        facts: Mapping[str, str],
        without: Sequence[str] = (),
        *,
        follows: bool = False,
    ) -> Self:
        """Write rows of ``meta`` without some keys, and the checksums; returns the seal that holds once committed."""
        rows = {**self.rows, **_each(facts)}
        for key in without:
            rows.pop(key, None)
            connection.execute("DELETE FROM meta WHERE key = ?", (key,))
        made = type(self)(self.of, self.finished, self.tables, sum(rows.values()), follows, rows)
        stored = msgspec.json.encode({name: getattr(made, name) for name in _STORED}).decode()
        connection.executemany(_PUT, [*facts.items(), (_KEY, stored)])
        return made

    @classmethod
    def resumed(cls, connection: sqlite3.Connection, facts: Mapping[str, str], without: Sequence[str] = ()) -> Self:
        """Continue a file: ``load`` and ``written_back``."""
        with transaction(connection):
            known = cls.load(connection).with_tables(unfinished_sums(connection))
        made = versions_of(connection)
        if made is not None and made.delta != HERE.delta:
            versions = msgspec.structs.replace(made, delta=HERE.delta)
            facts = {**facts, "versions": as_text(msgspec.to_builtins(versions))}
        # The new log holds nothing of a torn or damaged one.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return known.written_back(connection, facts, without)

    def written_back(
        self, connection: sqlite3.Connection, facts: Mapping[str, str], without: Sequence[str] = ()
    ) -> Self:
        """Write rows of ``meta``, then the log back; from then on the file itself records that it has a log."""
        with transaction(connection):
            seal = self.put(connection, facts, without, follows=True)
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        with transaction(connection):
            return seal.put(connection, {})

    def holds(self, meta: Mapping[str, str]) -> bool:
        """Whether the rows of ``meta`` match their checksums."""
        return sum(_each(meta).values()) == self.meta


def _each(meta: Mapping[str, str]) -> dict[str, int]:
    return {key: checksum(((key, value),)) for key, value in meta.items() if key != _KEY}
