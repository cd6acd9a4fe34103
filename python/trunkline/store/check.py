"""Checking a run file: what follows from the deltas is derived again and compared, and calls are held against them."""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline import _core
from trunkline.errors import TreeError
from trunkline.printable import printable, quoted
from trunkline.store.audit import CallTotals, audit, misfits, turns_by_agent
from trunkline.store.deltakey import BEGUN, SEQ, TASK, delta_keys
from trunkline.store.derive import rows, taken
from trunkline.store.identify import versions_of
from trunkline.store.schema import HERE, ROLLOUT_COLUMNS, TAKEN_COLUMNS, TREE_COLUMNS, Ending
from trunkline.types import Task, Usage

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

__all__ = ["check"]

# The names in these statements are our own.
_ROLLOUTS = f"SELECT {', '.join(ROLLOUT_COLUMNS)} FROM rollouts WHERE task = ? ORDER BY rollout"  # noqa: S608
_TAKEN = f"SELECT {', '.join(TAKEN_COLUMNS)} FROM taken WHERE task = ?"  # noqa: S608
_TREE = f"SELECT {', '.join(TREE_COLUMNS)} FROM trees WHERE task = ?"  # noqa: S608
_DELTAS = f"SELECT {SEQ}, data FROM deltas WHERE delta BETWEEN ? AND ? ORDER BY delta"  # noqa: S608
_ORPHANS = "SELECT DISTINCT task FROM {} WHERE task NOT IN (SELECT task FROM tasks) ORDER BY task"
_TABLES = {"deltas": f"(SELECT {TASK} AS task FROM deltas)"} | {  # noqa: S608
    table: table for table in ("taken", "calls", "rollouts", "trees")
}


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    return quoted(value) if isinstance(value, str) else printable(repr(value), 60)


def _differences(columns: tuple[str, ...], stored: tuple[Any, ...], derived: tuple[Any, ...]) -> Iterator[str]:
    for column, here, there in zip(columns, stored, derived, strict=True):
        # Types count: 1 and "1" are different cells. A real column gives back 1.0 for 1, which compares
        # equal.
        same = here == there and isinstance(here, str) == isinstance(there, str)
        if not same:
            yield f"{column} is {_shown(here)} in the row and {_shown(there)} in the deltas"


def _rebuild(connection: sqlite3.Connection, number: int, most: int | None = None) -> tuple[_core.Tree, int, list[str]]:
    core = _core.Tree()
    count = 0
    for seq, data in connection.execute(_DELTAS, delta_keys(number)):
        if count == most:
            break
        count += 1
        try:
            new = core.apply(data)
        except (TreeError, TypeError) as problem:
            return core, count, [f"delta {seq}: {printable(str(problem), 200)}"]
        if not new:
            return core, count, [f"delta {seq} repeats an earlier one"]
    try:
        core.check()
    except TreeError as problem:
        return core, count, [f"the tree: {printable(str(problem), 200)}"]
    return core, count, []


def _task(connection: sqlite3.Connection, number: int, calls: CallTotals, *, digests: bool) -> Iterator[str]:
    core, deltas, problems = _rebuild(connection, number)
    if problems:
        # What cannot be derived cannot be compared.
        yield from problems
        return
    paid, before = yield from _taken(connection, number, digests=digests)
    yield from misfits(core, calls, paid, before)
    stored = connection.execute(_TREE, (number,)).fetchone()
    held = connection.execute(_ROLLOUTS, (number,)).fetchall()
    if stored is None:
        if held:
            yield "trees: no row, but rollouts has some"
        return
    facts = dict(zip(TREE_COLUMNS, stored, strict=True))
    tree, rollouts = rows(core, facts["error"], Ending(facts["ended"], facts["why"], facts["refused"]))
    if not digests:
        tree = msgspec.structs.replace(tree, digest=facts["digest"])
    if deltas == 0 and tree.error is None:
        yield "it is marked as finished, but has no deltas"
    for problem in _differences(TREE_COLUMNS, stored, msgspec.structs.astuple(tree)):
        yield f"trees: {problem}"
    expected = {row.rollout: msgspec.structs.astuple(row) for row in rollouts}
    for row in held:
        derived = expected.pop(row[0], None)
        if derived is None:
            yield f"rollout {_shown(row[0])}: there is a row, but none in the deltas"
            continue
        for problem in _differences(ROLLOUT_COLUMNS, row, derived):
            yield f"rollout {row[0]}: {problem}"
    for rollout in expected:
        yield f"rollout {rollout}: no row, but it is in the deltas"


def _taken(
    connection: sqlite3.Connection, number: int, *, digests: bool
) -> Generator[str, None, tuple[Usage, Counter[str]]]:
    """Check what was taken over of an earlier run, and return what that had cost there, and its turns by agent."""
    stored = connection.execute(_TAKEN, (number,)).fetchone()
    if stored is None:
        return Usage(), Counter()
    core, deltas, _ = _rebuild(connection, number, stored[0])
    row = taken(core, deltas)
    if not digests:
        row = msgspec.structs.replace(row, digest=stored[TAKEN_COLUMNS.index("digest")])
    for problem in _differences(TAKEN_COLUMNS, stored, msgspec.structs.astuple(row)):
        yield f"taken: {problem}"
    return row.usage, turns_by_agent(core)


def _tasks(connection: sqlite3.Connection, calls: dict[int, CallTotals], *, digests: bool) -> Iterator[str]:
    for number, name, record in connection.execute("SELECT task, id, record FROM tasks ORDER BY task").fetchall():
        where = f"task {_shown(name)}"
        try:
            task = msgspec.json.decode(record, type=Task)
            if task.id != name:
                yield f"{where}: id is {_shown(task.id)} in its record"
        except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as problem:
            yield f"{where}: record: {printable(str(problem), 120)}"
        for line in _task(connection, number, calls.get(number, CallTotals()), digests=digests):
            yield f"{where}: {line}"


def _run(connection: sqlite3.Connection) -> Iterator[str]:
    for (line,) in connection.execute("PRAGMA integrity_check(20)"):
        if line != "ok":
            yield f"SQLite: {printable(str(line), 200)}"
    for table, rows_of in _TABLES.items():
        for (number,) in connection.execute(_ORPHANS.format(rows_of)):
            yield f"{table}: rows of task number {_shown(number)}, which is in no row of tasks"
    made = versions_of(connection)
    digests = made is None or made.digest == HERE.digest
    if made is None:
        yield "meta: no versions that can be read"
    elif not digests:
        yield f"meta: digests of version {made.digest} cannot be compared, version {HERE.digest} is computed here"
    calls: dict[int, CallTotals] = {}
    yield from audit(connection, calls)
    yield from _tasks(connection, calls, digests=digests)
    (state,) = connection.execute("SELECT value FROM meta WHERE key = 'state'").fetchone() or (None,)
    if state is None:
        yield "meta: no state"
    elif state == "done":
        (missing,) = connection.execute(
            "SELECT count(*) FROM tasks WHERE task NOT IN (SELECT task FROM trees)"
        ).fetchone()
        if missing and not _refilled(connection):
            yield f"meta: the run is done, but {missing} of its tasks are not finished"


def _refilled(connection: sqlite3.Connection) -> bool:
    """Whether a run took only as many tasks as it needed; those that it began, or went on with, are finished."""
    (wanted,) = connection.execute(
        "SELECT json_extract(value, '$.refill.groups') FROM meta WHERE key = 'settings'"
    ).fetchone()
    return wanted is not None and connection.execute(BEGUN).fetchone() is None


def check(connection: sqlite3.Connection) -> list[str]:
    """Compare all rows of a run file with what its deltas say.

    Args:
        connection: The file, open for reading.

    Returns:
        One printable line for each problem.
    """
    problems: list[str] = []
    try:
        # One transaction, so that a run that goes on meanwhile is seen at one moment.
        connection.execute("BEGIN")
        try:
            problems.extend(_run(connection))
        finally:
            connection.execute("COMMIT")
    except sqlite3.Error as problem:
        problems.append(f"SQLite: {printable(str(problem), 200)}")
    return problems
