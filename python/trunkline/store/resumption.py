"""Going on in a run file: whether it is sound, how far it has come, and that it goes on from here."""

from __future__ import annotations

import math
import sqlite3
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trunkline.printable import printable
from trunkline.store.calltable import CallTable
from trunkline.store.disk import as_text, damaged, keep_log, put_meta, transaction
from trunkline.store.lock import Holder
from trunkline.store.redact import redact
from trunkline.store.standing import Standing, standing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["Resumed", "Resumption", "look", "resume", "resumptions"]

_KEY = "resumed"

_CHECKED = """
SELECT quick_check FROM (SELECT 'sqlite_schema' AS name UNION ALL SELECT name FROM sqlite_schema WHERE type = 'table')
JOIN pragma_quick_check(name) WHERE name <> 'deltas' AND quick_check <> 'ok'
"""


class Resumption(msgspec.Struct, frozen=True):
    """One time that a run was resumed.

    Attributes:
        at: When, in seconds since 1970.
        finished: Tasks that were done by then.
        state: How the run had ended; ``running`` after it was killed.
        changed: Settings that are others from then on: field, what it was, what it is.
        forced: Whether some of these give the results another meaning.
    """

    at: float
    finished: int
    state: str
    changed: list[str] = []
    forced: bool = False


class Resumed(NamedTuple):
    """What a writer goes on with.

    Attributes:
        standing: How far the run has come.
        calls: The table of its calls.
        seconds: Wall time that it has taken.
    """

    standing: Standing
    calls: CallTable
    seconds: float


def resumptions(meta: Mapping[str, str]) -> list[Resumption]:
    """The times that a run was resumed, by its table ``meta``.

    Raises:
        msgspec.MsgspecError: It cannot be read.
    """
    return msgspec.json.decode(meta.get(_KEY, "[]"), type=list[Resumption])


def resume(
    path: Path,
    connection: sqlite3.Connection,
    *,
    durable: bool,
    facts: Mapping[str, str],
    changed: Sequence[str],
    forced: bool,
) -> Resumed:
    """Look at a file, and note that its run goes on.

    Args:
        path: The file.
        connection: The same, open for writing.
        durable: Whether what is committed from now on survives a loss of power, too.
        facts: What stands in the table ``meta`` from now on.
        changed: Settings that are others from here on.
        forced: Whether some of them give the results another meaning.

    Raises:
        DamagedRunFile: The file is damaged.
        sqlite3.Error: It cannot be written.
    """
    try:
        look(connection)
        meta = dict(connection.execute("SELECT key, value FROM meta"))
        found = standing(connection, meta)
        times = resumptions(meta)
        resumed = Resumed(found, CallTable.of(connection, _number(meta["created"])), _number(meta["seconds"]))
    except KeyError as problem:
        raise damaged(path, f"meta has no {problem}") from None
    except (ValueError, TypeError, msgspec.MsgspecError, sqlite3.OperationalError) as problem:
        if getattr(problem, "sqlite_errorcode", None) is not None:
            raise
        # Without a code it is Python that speaks: a text is none.
        raise damaged(path, printable(str(problem), 300)) from None
    times.append(Resumption(time.time(), len(found.finished), found.state, list(changed), forced))
    keep_log(connection, durable=durable)
    with transaction(connection):
        put_meta(
            connection,
            {
                **facts,
                "state": "running",
                "holder": as_text(msgspec.to_builtins(Holder.here())),
                _KEY: as_text(redact(msgspec.to_builtins(times))),
            },
        )
        connection.execute("DELETE FROM meta WHERE key = 'finished'")
    return resumed


def look(connection: sqlite3.Connection) -> None:
    """Have SQLite check its pages, but for those of deltas: they may be most of the file, and have checksums.

    Raises:
        ValueError: Something is wrong.
    """
    for (word,) in connection.execute(_CHECKED):
        raise ValueError(word)


def _number(text: str) -> float:
    """Return what stands in ``meta`` as a number that can be reckoned with."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no time")
    return value
