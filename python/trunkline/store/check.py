"""Checking a run file: what follows from the deltas is derived again and compared, and calls are held against them."""

from __future__ import annotations

import contextlib
import math
import re
import sqlite3
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline import _core
from trunkline._core import TURN, CoreTree, checksum
from trunkline._internal.text import printable, quoted, redact
from trunkline.errors import TreeError
from trunkline.store import schema
from trunkline.store.derive import calls_of, rows, taken
from trunkline.store.schema import CallRow, EventRow, ToolRow, TreeEnding, delta_keys
from trunkline.store.sqlite import READ_ERRORS, versions_of
from trunkline.store.stats.calls import CallStats
from trunkline.store.sums import SEALED, Seal, rows_sum, unfinished_sums
from trunkline.types import Task, Usage

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence


# The names in these statements are our own.
_TOLD = f"substr(data, 5, 2) <> x'{_core.OLDEST_FORMAT.to_bytes(2, 'little').hex()}'"
"""Whether a delta has its calls."""

_CALLS = f"SELECT task, call, {schema.CALL_NAMED} FROM {schema.CALLS_NAMED} ORDER BY call"  # noqa: S608
_CALLS_OF = (
    f"SELECT task, seq, {schema.CALL_NAMED} FROM {schema.CALLS_NAMED} "  # noqa: S608
    f"JOIN deltas ON delta = (task << 32) + seq WHERE {_TOLD} ORDER BY call"
)
_TOOLS_OF = (
    f"SELECT task, seq, {', '.join(schema.TOOL_COLUMNS)} FROM uses "  # noqa: S608
    f"JOIN deltas ON delta = (task << 32) + seq WHERE {_TOLD} ORDER BY use"
)
_TOLD_DELTAS = (
    f"SELECT {schema.TASK}, {schema.SEQ}, data FROM deltas "  # noqa: S608
    f"LEFT JOIN taken ON taken.task = {schema.TASK} "
    f"WHERE {_TOLD} AND {schema.SEQ} >= coalesce(taken.deltas, 0) ORDER BY delta"
)
_LOOSE = (
    "SELECT task, count(*) FROM calls WHERE NOT EXISTS "
    "(SELECT 1 FROM deltas WHERE delta = (calls.task << 32) + calls.seq) GROUP BY task ORDER BY task"
)
_GAPS = "SELECT coalesce(max({key}) - count(*) + (min({key}) <> 1), 0) FROM {table}"

_UNKNOWN = -1
_FIGURES = [column for column in schema.CALL_COLUMNS if column not in {"endpoint", "agent"}]
_LEAST = {"prompt": _UNKNOWN, "cached": _UNKNOWN, "generated": _UNKNOWN, "first": _UNKNOWN}
_COMPARED = ("prompt", "cached", "generated", "unreported")

_TOKENS = ("flat", "tree", "longest", "flat_generated", "tree_generated", "unreported", "exact")

CallsByAgent = defaultdict[str, CallStats]


def audit(connection: sqlite3.Connection, brought: dict[int, CallsByAgent]) -> Iterator[str]:
    """Yield a line for each problem in the calls; those that did not fail go into ``brought``, by task."""
    for task, count in connection.execute(_LOOSE):
        yield f"calls: {count} of task number {_shown(task)} came with a delta that is not there"
    yield from _gaps(connection, "calls", "call")
    for task, number, *values in connection.execute(_CALLS):
        try:
            call = _call(values)
        except ValueError as problem:  # msgspec's own errors derive from it
            yield f"call {number}: {printable(str(problem), 120)}"
        else:
            if not call.failed:
                brought.setdefault(task, defaultdict(CallStats))[call.agent].add(call)


def _chained(rows: Iterable[tuple[Any, ...]]) -> dict[int, int]:
    """The checksum of each task's rows in order, without when each began, which a file counts from its beginning."""
    found: dict[int, int] = {}
    for task, *row in rows:
        found[task] = checksum((row,), found.get(task, 0))
    return found


def _untold(connection: sqlite3.Connection) -> Iterator[tuple[str, int]]:
    """Yield tasks whose rows of calls differ from those in their deltas, each with the table's name."""
    begun = schema.CALL_COLUMNS.index("started") + 2
    stored = {
        "calls": _chained((*row[:begun], *row[begun + 1 :]) for row in connection.execute(_CALLS_OF)),
        "uses": _chained(row[:-1] for row in connection.execute(_TOOLS_OF)),
    }
    found: dict[str, dict[int, int]] = {"calls": {}, "uses": {}}
    for task, seq, data in connection.execute(_TOLD_DELTAS):
        try:
            calls, tools = calls_of(data) or ([], [])
        except (TreeError, TypeError):
            continue
        for call in calls:
            _, *figures, _, _ = msgspec.structs.astuple(call)
            row = (seq, str(redact(call.endpoint)), *figures, str(redact(call.agent)))
            found["calls"][task] = checksum((row,), found["calls"].get(task, 0))
        for tool in tools:
            row = (seq, tool.rollout, tool.tool, int(tool.failed), tool.micros)
            found["uses"][task] = checksum((row,), found["uses"].get(task, 0))
    for table, sums in found.items():
        other = sums.items() ^ stored[table].items()
        yield from ((table, task) for task in sorted({task for task, _ in other}, key=str))


def _gaps(connection: sqlite3.Connection, table: str, key: str) -> Iterator[str]:
    ((gaps,),) = connection.execute(_GAPS.format(table=table, key=key))
    if gaps:
        yield f"{table}: {gaps} are missing between the first and the last"


def _tools(connection: sqlite3.Connection) -> Iterator[str]:
    """Check tool calls by themselves; only their checksums confirm them."""
    yield from _gaps(connection, "uses", "use")
    for number, *values in connection.execute(f"SELECT use, {', '.join(schema.TOOL_COLUMNS)} FROM uses ORDER BY use"):  # noqa: S608
        try:
            row = msgspec.convert((*values[:2], bool(values[2]), *values[3:]), ToolRow)
            if values[2] not in {0, 1} or min(row.rollout, row.micros, row.started) < 0:
                raise ValueError(f"{printable(str(values), 100)} cannot be")
        except ValueError as problem:
            yield f"tool call {number}: {printable(str(problem), 120)}"


def _events(connection: sqlite3.Connection) -> Iterator[str]:
    yield from (
        f"events: number {_shown(number)} of kind {_shown(kind)} is of task number {_shown(task)}"
        for number, kind, task in connection.execute(_STRAYS)
    )
    yield from _gaps(connection, "events", "event")
    for number, at, kind, worker, data in connection.execute("SELECT event, at, kind, worker, data FROM events"):
        try:
            row = EventRow(at, kind, worker, None, msgspec.json.decode(data, type=dict[str, Any]))
            if not math.isfinite(msgspec.convert(row, EventRow).at):
                raise ValueError(f"its time is {at}")
        except (ValueError, TypeError) as problem:
            yield f"event {number}: {printable(str(problem), 120)}"


def _made(connection: sqlite3.Connection) -> dict[str, str]:
    """The SQL of each table, view and trigger, with spaces normalised."""
    found = connection.execute("SELECT type, name, sql FROM sqlite_schema WHERE type <> 'index' AND sql IS NOT NULL")
    return {f"{kind} {name}": re.sub(r"\s*([(),]|\s)\s*", r"\1", sql) for kind, name, sql in found}


def _layout(connection: sqlite3.Connection) -> Iterator[str]:
    """Compare the tables with those of the schema; other tables and views are left alone."""
    with contextlib.closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(schema.TABLES)
        wanted = _made(fresh)
    there = _made(connection)
    ((version,),) = connection.execute("PRAGMA user_version")
    if version < schema.SCHEMA_VERSION:
        wanted = {
            name: sql.replace(f",{' INTEGER,'.join(schema.SUM_COLUMNS)} INTEGER", "") for name, sql in wanted.items()
        }
    for name, sql in wanted.items():
        if name not in there:
            yield f"SQLite: there is no {name}"
        elif there[name] != sql:
            yield f"SQLite: {name} is not made as it was: {printable(there[name], 200)}"
    for name in there:
        if name.startswith("trigger "):
            yield f"SQLite: there is a {printable(name, 100)}, which can change rows"


_NUMBERS = ("created", "updated", "seconds")
_STATES = {"beginning", "running", "done", "exhausted", "interrupted", "failed", "budget", "deadline"}


def _meta(connection: sqlite3.Connection) -> Iterator[str]:
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    for key in _NUMBERS:
        try:
            if not math.isfinite(float(meta[key])) or float(meta[key]) < 0:
                raise ValueError
        except (KeyError, ValueError, TypeError):
            yield f"meta: {key} is {_shown(meta.get(key))}, which is no time"
    try:
        msgspec.json.decode(meta.get("settings", ""), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, TypeError) as problem:
        yield f"meta: settings: {printable(str(problem), 120)}"
    if (state := meta.get("state")) is not None and state not in _STATES:
        yield f"meta: state is {_shown(state)}"


def _sealed(connection: sqlite3.Connection, said: Sequence[str]) -> Iterator[str]:
    """Compare rows with their checksums where no other problem was found; earlier schemas have none."""

    def wrong(*places: str) -> bool:
        return not any(line.startswith(f"{place}: ") for line in said for place in places)

    ((version,),) = connection.execute("PRAGMA user_version")
    if version < schema.SCHEMA_VERSION:
        return
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    try:
        seal = Seal.stored(meta)
    except (ValueError, TypeError) as problem:
        yield f"meta: sums: {printable(str(problem), 120)}"
        return
    if seal is None:
        yield "meta: no sums"
        return
    ((finished,),) = connection.execute("SELECT count(*) FROM trees")
    found = {table: checksum(connection.execute(query)) == seal.tables.get(table) for table, query in SEALED.items()}
    found |= {table: sums == seal.tables.get(table) for table, sums in unfinished_sums(connection).items()}
    found |= {"meta": seal.holds(meta), "trees": finished == seal.finished}
    for place in (place for place, holds in found.items() if not holds and wrong(place)):
        yield f"{place}: its rows are not those that were written"
    names = dict(connection.execute("SELECT task, id FROM tasks"))
    for place, task in dict.fromkeys((*_contradicted(connection), *_untold(connection))):
        name = f"task {_shown(names.get(task))}"
        if wrong(place, name):
            yield f"{name}: {place}: its rows are not those that were written"


def _contradicted(connection: sqlite3.Connection) -> Iterator[tuple[str, int]]:
    """Yield finished tasks whose rows differ from their checksums, each with the table's name."""
    for table, column, query in (("calls", "calls_sum", schema.CALL_ROWS), ("uses", "tools_sum", schema.TOOL_ROWS)):
        sums = connection.execute(f"SELECT task, {column} FROM trees WHERE {column} IS NOT NULL")  # noqa: S608
        left = {task: found if isinstance(found, int) else -1 for task, found in sums}
        for row in connection.execute(query):
            if row[0] in left:
                left[row[0]] -= checksum((row,))
        yield from ((table, task) for task, rest in left.items() if rest & schema.SUM_MASK)
    for task, stored in connection.execute("SELECT task, rows_sum FROM trees WHERE rows_sum IS NOT NULL").fetchall():
        if rows_sum(connection, task) != stored:
            yield "rollouts", task


def _call(values: list[Any]) -> CallRow:
    call = msgspec.convert(values, CallRow)
    for column in _FIGURES:
        if getattr(call, column) < _LEAST.get(column, 0):
            raise ValueError(f"{column} is {getattr(call, column)}")
    return call


def turns_by_agent(core: CoreTree) -> Counter[str]:
    """Count the model turns of a tree by agent; equal ones are one."""
    nodes = (core.node(node) for node in range(1, len(core)))
    return Counter(node.agent for node in nodes if node.kind == TURN)


def misfits(core: CoreTree, by_agent: Mapping[str, CallStats], paid: Usage, before: Counter[str]) -> Iterator[str]:
    """Compare the calls of a task with its turns.

    A turn in the file has its call in the file. A call can have brought fewer turns than draws: some were of no use, or
    their rollouts were no more. Where each call brought one draw and each draw is a turn, both have the same usage.
    """
    calls, turns = sum(by_agent.values(), CallStats()), Usage() - paid
    for rollout in range(core.rollouts):
        turns += Usage(*core.rollout(rollout).usage)
    if turns.calls > calls.draws:
        yield f"calls: they brought {calls.draws} completions, but {turns.calls} turns are in the deltas"
    draws = Counter({agent: stats.draws for agent, stats in by_agent.items()})
    if "" not in draws:
        yield from _misnamed(turns_by_agent(core) - before, draws)
    if calls.plural or turns.calls != calls.draws:
        return
    for name in _COMPARED:
        here, there = getattr(calls, name), getattr(turns, name)
        if here != there:
            yield f"calls: {name} is {here} in the rows and {there} in the deltas"


def _misnamed(turns: Counter[str], draws: Counter[str]) -> Iterator[str]:
    """Compare turns and completions by agent; agents whose names were hidden are compared together."""
    named = turns.keys() & draws.keys()
    pairs = [(quoted(agent, 60), turns[agent], draws[agent]) for agent in sorted(named)]
    unnamed = [counts.total() - sum(counts[agent] for agent in named) for counts in (turns, draws)]
    for agent, made, brought in [*pairs, ("others", unnamed[0], unnamed[1])]:
        if made > brought:
            yield f"calls: those of {agent} brought {brought} completions, but {made} turns are in the deltas"


# The names in these statements are our own.
_ROLLOUTS = f"SELECT {', '.join(schema.ROLLOUT_COLUMNS)} FROM rollouts WHERE task = ? ORDER BY rollout"  # noqa: S608
_TAKEN = f"SELECT {', '.join(schema.TAKEN_COLUMNS)} FROM taken WHERE task = ?"  # noqa: S608
_TREE = f"SELECT {', '.join(schema.TREE_COLUMNS)} FROM trees WHERE task = ?"  # noqa: S608
_DELTAS = f"SELECT {schema.SEQ}, data FROM deltas WHERE delta BETWEEN ? AND ? ORDER BY delta"  # noqa: S608
_STRAYS = "SELECT event, kind, task FROM events WHERE task NOT IN (SELECT task FROM tasks)"
_ORPHANS = "SELECT DISTINCT task FROM {} WHERE task NOT IN (SELECT task FROM tasks) ORDER BY task"
_TABLES = {"deltas": f"(SELECT {schema.TASK} AS task FROM deltas)"} | {  # noqa: S608
    table: table for table in ("taken", "calls", "uses", "rollouts", "trees")
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


def _rebuild(
    connection: sqlite3.Connection, number: int, most: int | None = None
) -> tuple[_core.CoreTree, int, list[str]]:
    core = _core.CoreTree()
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


def _task(
    connection: sqlite3.Connection, number: int, calls: Mapping[str, CallStats], *, digests: bool
) -> Iterator[str]:
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
    facts = dict(zip(schema.TREE_COLUMNS, stored, strict=True))
    tree, rollouts = rows(core, facts["error"], TreeEnding(facts["ended"], facts["why"], facts["refused"]))
    if not digests:
        tree = msgspec.structs.replace(tree, digest=facts["digest"])
    if (facts["exact"], tree.exact) == (0, 1) and _unasked(core):
        # Earlier versions counted such a tree by the servers' figures.
        tree = msgspec.structs.replace(tree, **{column: facts[column] for column in _TOKENS})
    if deltas == 0 and tree.error is None:
        yield "it is marked as finished, but has no deltas"
    for problem in _differences(schema.TREE_COLUMNS, stored, msgspec.structs.astuple(tree)):
        yield f"trees: {problem}"
    expected = {row.rollout: msgspec.structs.astuple(row) for row in rollouts}
    for row in held:
        derived = expected.pop(row[0], None)
        if derived is None:
            yield f"rollout {_shown(row[0])}: there is a row, but none in the deltas"
            continue
        for problem in _differences(schema.ROLLOUT_COLUMNS, row, derived):
            yield f"rollout {row[0]}: {problem}"
    for rollout in expected:
        yield f"rollout {rollout}: no row, but it is in the deltas"


def _unasked(core: CoreTree) -> bool:
    """Whether a rollout ends behind a message that no model was given, which has no token ids."""
    leaves = (core.rollout(number).leaf for number in range(core.rollouts))
    return any(core.tokens_of(leaf) is None for leaf in leaves)


def _taken(
    connection: sqlite3.Connection, number: int, *, digests: bool
) -> Generator[str, None, tuple[Usage, Counter[str]]]:
    """Check the row of a task taken over; return its earlier usage and turns by agent."""
    stored = connection.execute(_TAKEN, (number,)).fetchone()
    if stored is None:
        return Usage(), Counter()
    core, deltas, _ = _rebuild(connection, number, stored[0])
    row = taken(core, deltas)
    if not digests:
        row = msgspec.structs.replace(row, digest=stored[schema.TAKEN_COLUMNS.index("digest")])
    for problem in _differences(schema.TAKEN_COLUMNS, stored, msgspec.structs.astuple(row)):
        yield f"taken: {problem}"
    return row.usage, turns_by_agent(core)


def _tasks(connection: sqlite3.Connection, calls: dict[int, CallsByAgent], *, digests: bool) -> Iterator[str]:
    for number, name, record in connection.execute("SELECT task, id, record FROM tasks ORDER BY task").fetchall():
        where = f"task {_shown(name)}"
        try:
            task = msgspec.json.decode(record, type=Task)
            if task.id != name:
                yield f"{where}: id is {_shown(task.id)} in its record"
        except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as problem:
            yield f"{where}: record: {printable(str(problem), 120)}"
        if not isinstance(number, int):  # a damaged page of an integer key can read as NULL
            yield f"{where}: its number is {_shown(number)}"
            continue
        for line in _task(connection, number, calls.get(number, {}), digests=digests):
            yield f"{where}: {line}"


def _run(connection: sqlite3.Connection) -> Iterator[str]:
    yield from _layout(connection)
    for (line,) in connection.execute("PRAGMA integrity_check(20)"):
        if line != "ok":
            yield f"SQLite: {printable(str(line), 200)}"
    for table, rows_of in _TABLES.items():
        for (number,) in connection.execute(_ORPHANS.format(rows_of)):
            yield f"{table}: rows of task number {_shown(number)}, which is in no row of tasks"
    made = versions_of(connection)
    digests = made is None or made.digest == schema.HERE.digest
    if made is None:
        yield "meta: no versions that can be read"
    elif not digests:
        here = schema.HERE.digest
        yield f"meta: digests of version {made.digest} cannot be compared, version {here} is computed here"
    calls: dict[int, CallsByAgent] = {}
    yield from audit(connection, calls)
    yield from _tools(connection)
    yield from _events(connection)
    yield from _meta(connection)
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
    """Whether a run took only as many tasks as it needed, and finished all that it began."""
    (wanted,) = connection.execute(
        "SELECT json_extract(value, '$.refill.groups') FROM meta WHERE key = 'settings'"
    ).fetchone()
    return wanted is not None and connection.execute(schema.BEGUN).fetchone() is None


def check(connection: sqlite3.Connection) -> list[str]:
    """Compare all rows of a run file with its deltas; returns one printable line for each problem."""
    problems: list[str] = []
    try:
        # One transaction, so that a running run is seen at one moment.
        connection.execute("BEGIN")
        try:
            problems.extend(_run(connection))
            problems.extend(_sealed(connection, problems))
        finally:
            connection.execute("COMMIT")
    except (*READ_ERRORS, OverflowError) as problem:
        problems.append(f"SQLite: {printable(str(problem), 200)}")
    return problems
