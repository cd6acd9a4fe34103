"""Writing the calls of a run, of models and of tools: names by numbers, times since the file was made."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, Self

from msgspec.structs import astuple

from trunkline.store.redact import redact
from trunkline.store.schema import CALL_COLUMNS, TOOL_COLUMNS, CallRow, ToolRow

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["CallTable"]

_CALL = f"INSERT INTO calls VALUES (NULL, ?, ?{', ?' * len(CALL_COLUMNS)})"  # noqa: S608 - our own names
_USE = f"INSERT INTO uses VALUES (NULL, ?, ?{', ?' * len(TOOL_COLUMNS)})"  # noqa: S608 - our own names


class _Names(NamedTuple):
    """A table of numbered names. It is never changed: what is rolled back leaves the one before as it was.

    Attributes:
        table: Its name.
        stored: Numbers of the names as the file has them, which is without secrets.
        known: Those of names as they were given.
    """

    table: str
    stored: Mapping[str, int]
    known: Mapping[str, int]

    @classmethod
    def of(cls, connection: sqlite3.Connection, table: str) -> Self:
        """Go on with a table of a file."""
        return cls(table, {name: number for number, name in connection.execute(f"SELECT * FROM {table}")}, {})  # noqa: S608 - our own names

    def holding(self, connection: sqlite3.Connection, names: Iterable[str]) -> Self:
        """Write names that are new, and return the table with all of these."""
        fresh = sorted(set(names) - self.known.keys())
        if not fresh:
            return self
        stored, known = dict(self.stored), dict(self.known)
        for name in fresh:
            shown = str(redact(name))
            if shown not in stored:
                stored[shown] = len(stored)
                connection.execute(f"INSERT INTO {self.table} VALUES (?, ?)", (stored[shown], shown))  # noqa: S608 - our own names
            known[name] = stored[shown]
        return self._replace(stored=stored, known=known)


def _holding(
    names: tuple[_Names, _Names], connection: sqlite3.Connection, calls: Sequence[CallRow]
) -> tuple[_Names, _Names]:
    """Write those names of endpoints and agents that are new, and return the tables with all of them."""
    endpoints, agents = names
    return (
        endpoints.holding(connection, (call.endpoint for call in calls)),
        agents.holding(connection, (call.agent for call in calls)),
    )


_ENDPOINTS = _Names("endpoints", {}, {})
_AGENTS = _Names("agents", {}, {})


class CallTable:
    """Turns calls into rows.

    Args:
        passed: Microseconds since the file was made.
        names: The endpoints and the agents that are in the file.
    """

    def __init__(self, passed: int = 0, names: tuple[_Names, _Names] = (_ENDPOINTS, _AGENTS)) -> None:
        self._began = time.monotonic_ns() // 1000 - passed
        self._names = names

    @classmethod
    def of(cls, connection: sqlite3.Connection, created: float) -> Self:
        """Go on with the calls of a file.

        A clock that was set back does not let times begin again: they are never before those in the file.

        Args:
            connection: The file.
            created: When it was made, in seconds since 1970.
        """
        ((last,),) = connection.execute("SELECT coalesce(max(started), 0) FROM calls")
        names = _Names.of(connection, "endpoints"), _Names.of(connection, "agents")
        return cls(max(int((time.time() - created) * 1e6), last), names)

    def add(
        self, connection: sqlite3.Connection, calls: Mapping[tuple[int, int], Sequence[CallRow]]
    ) -> tuple[_Names, _Names]:
        """Write the calls of some deltas; returns what :meth:`keep` takes once they are in the file.

        Args:
            connection: The file, in a transaction.
            calls: Calls by the task and the number of their delta, begun on this machine's monotonic clock.
        """
        names = self._names
        try:
            rows = list(self._values(calls, names))
        except KeyError:  # of a new name, which is rare: to look for them first would be a good part of the cost
            names = _holding(names, connection, [call for made in calls.values() for call in made])
            rows = list(self._values(calls, names))
        connection.executemany(_CALL, rows)
        return names

    def used(self, connection: sqlite3.Connection, tools: Mapping[tuple[int, int], Sequence[ToolRow]]) -> None:
        """Write the tool calls of some deltas; see :meth:`add`."""
        rows = (
            (*place, *figures, max(0, begun - self._began))
            for place, made in tools.items()
            for *figures, begun in map(astuple, made)
        )
        connection.executemany(_USE, rows)

    def keep(self, names: tuple[_Names, _Names]) -> None:
        """Remember the names' numbers; what was rolled back has none."""
        self._names = names

    def _values(
        self, calls: Mapping[tuple[int, int], Sequence[CallRow]], names: tuple[_Names, _Names]
    ) -> Iterator[tuple[int, ...]]:
        """Return the calls of some deltas as rows."""
        origin, endpoints, agents = self._began, *(table.known for table in names)
        for (task, seq), made in calls.items():
            # By tuples and by name, which is the fastest way of those that were measured.
            for to, draws, prompt, cached, generated, tries, queue, first, micros, begun, who in map(astuple, made):
                started = begun - origin if begun > origin else 0
                yield (
                    task, seq, endpoints[to], draws, prompt, cached, generated, tries, queue, first, micros, started,
                    agents[who],
                )  # fmt: skip
