"""Calls of models and tools as rows of a run file, with numbered names."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, Self

from trunkline._core import CallRows, checksum
from trunkline._internal.text import redact
from trunkline.store.schema import CALL_COLUMNS, CALL_ROWS, TOOL_COLUMNS, TOOL_ROWS, UNFINISHED

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping, Sequence

    from trunkline._core import CommitRows

# The names in these statements are our own.
_CALL = f"INSERT INTO calls VALUES (NULL, ?, ?{', ?' * len(CALL_COLUMNS)})"  # noqa: S608
_USE = f"INSERT INTO uses VALUES (NULL, ?, ?{', ?' * len(TOOL_COLUMNS)})"  # noqa: S608


class _Names(NamedTuple):
    """A table of numbered names; immutable, so that a rollback leaves the one before."""

    table: str  # its name
    stored: Mapping[str, int]  # numbers of the names as the file has them, which is without secrets

    @classmethod
    def of(cls, connection: sqlite3.Connection, table: str) -> Self:
        return cls(table, {name: number for number, name in connection.execute(f"SELECT * FROM {table}")})  # noqa: S608 - our own names

    def holding(self, connection: sqlite3.Connection, names: Iterable[str]) -> tuple[Self, dict[str, int]]:
        """Write new names; return the table with all of them, and the numbers of the given ones."""
        stored, numbers = dict(self.stored), {}
        for name in sorted(names):
            shown = str(redact(name))
            if shown not in stored:
                stored[shown] = len(stored)
                connection.execute(f"INSERT INTO {self.table} VALUES (?, ?)", (stored[shown], shown))  # noqa: S608 - our own names
            numbers[name] = stored[shown]
        return self._replace(stored=stored), numbers


_NO_NAMES = _Names("endpoints", {}), _Names("agents", {})


class CallTable:
    """Writes the calls that deltas bring as rows, and keeps the checksums of unfinished tasks."""

    def __init__(self, passed: int = 0, names: tuple[_Names, _Names] = _NO_NAMES) -> None:
        self._began = time.monotonic_ns() // 1000 - passed
        self._rows = CallRows(self._began)
        self._names = self._named = names

    @classmethod
    def of(cls, connection: sqlite3.Connection, created: float) -> Self:
        """Continue the calls of a file.

        A clock that was set back does not let times begin again: they are never before those in the file.
        """
        ((last,),) = connection.execute("SELECT coalesce(max(started), 0) FROM calls")
        names = _Names.of(connection, "endpoints"), _Names.of(connection, "agents")
        table = cls(max(int((time.time() - created) * 1e6), last), names)
        for row in connection.execute(CALL_ROWS + UNFINISHED):
            table._rows.add_sums(row[0], checksum((row,)), 0)
        for row in connection.execute(TOOL_ROWS + UNFINISHED):
            table._rows.add_sums(row[0], 0, checksum((row,)))
        return table

    @property
    def renamed(self) -> bool:
        """Whether the rows that were added last brought new names."""
        return self._named is not self._names

    def add(
        self, connection: sqlite3.Connection, deltas: Sequence[tuple[int, int, bytes]], finished: Sequence[int]
    ) -> CommitRows:
        """Write the calls of some deltas, each with the numbers of its task and of itself; then ``keep`` them."""
        self._named = self._names
        rows = self._rows.rows(deltas, finished, {}, {})
        if rows.endpoints or rows.agents:
            endpoints, agents = self._names
            endpoints, known = endpoints.holding(connection, rows.endpoints)
            agents, asked = agents.holding(connection, rows.agents)
            self._named = endpoints, agents
            rows = self._rows.rows(deltas, finished, known, asked)
        connection.executemany(_CALL, rows.models)
        connection.executemany(_USE, rows.tools)
        return rows

    def keep(self) -> None:
        """Note that the rows that were added last are in the file; tasks that finished with them have no more calls."""
        self._rows.keep()
        self._names = self._named
