"""Writing the calls of a run, of models and of tools: endpoints by numbers, times since the file was made."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from msgspec.structs import astuple

from trunkline.store.redact import redact
from trunkline.store.schema import CALL_COLUMNS, TOOL_COLUMNS, CallRow, ToolRow

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["CallTable"]

_CALL = f"INSERT INTO calls VALUES (NULL, ?, ?{', ?' * len(CALL_COLUMNS)})"  # noqa: S608 - our own names


_USE = f"INSERT INTO uses VALUES (NULL, ?, ?{', ?' * len(TOOL_COLUMNS)})"  # noqa: S608 - our own names


class CallTable:
    """Turns calls into rows.

    Args:
        passed: Microseconds since the file was made.
        endpoints: Those that are in the file, by their names there.
    """

    def __init__(self, passed: int = 0, endpoints: Mapping[str, int] | None = None) -> None:
        self._began = time.monotonic_ns() // 1000 - passed
        self._stored = dict(endpoints or {})
        # By the names that replies gave them, which the file has without secrets.
        self._known: dict[str, int] = {}

    @classmethod
    def of(cls, connection: sqlite3.Connection, created: float) -> Self:
        """Go on with the calls of a file.

        A clock that was set back does not let times begin again: they are never before those in the file.

        Args:
            connection: The file.
            created: When it was made, in seconds since 1970.
        """
        ((last,),) = connection.execute("SELECT coalesce(max(started), 0) FROM calls")
        stored = {name: number for number, name in connection.execute("SELECT endpoint, name FROM endpoints")}
        return cls(max(int((time.time() - created) * 1e6), last), stored)

    def add(
        self, connection: sqlite3.Connection, calls: Mapping[tuple[int, int], Sequence[CallRow]]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Write the calls of some deltas; returns what :meth:`keep` takes once they are in the file.

        Args:
            connection: The file, in a transaction.
            calls: Calls by the task and the number of their delta, begun on this machine's monotonic clock.
        """
        known, stored = self._known, self._stored
        fresh = sorted({call.endpoint for made in calls.values() for call in made} - known.keys())
        if fresh:
            known, stored = dict(known), dict(stored)
        for name in fresh:
            shown = str(redact(name))
            if shown not in stored:
                stored[shown] = len(stored)
                connection.execute("INSERT INTO endpoints VALUES (?, ?)", (stored[shown], shown))
            known[name] = stored[shown]
        connection.executemany(_CALL, self._values(calls, known))
        return known, stored

    def used(self, connection: sqlite3.Connection, tools: Mapping[tuple[int, int], Sequence[ToolRow]]) -> None:
        """Write the tool calls of some deltas; see :meth:`add`."""
        rows = (
            (*place, *figures, max(0, begun - self._began))
            for place, made in tools.items()
            for *figures, begun in map(astuple, made)
        )
        connection.executemany(_USE, rows)

    def keep(self, numbers: tuple[dict[str, int], dict[str, int]]) -> None:
        """Remember the endpoints' numbers; what was rolled back has none."""
        self._known, self._stored = numbers

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
