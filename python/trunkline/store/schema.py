"""The tables of a run file, their rows, keys and checksums, and numbered names.

SQLite finds a row by one number at once, and such a table keeps large values without a loss of space.
"""

from __future__ import annotations

import platform
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar
from zlib import crc32

import msgspec
from msgspec.structs import astuple

from trunkline import _core
from trunkline._internal.text import JSON, redact
from trunkline.types import Usage

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Mapping, Sequence


APPLICATION_ID: Final = 0x54524C4E
"""``TRLN``, in the header of every run file."""

SCHEMA_VERSION: Final = 8

READ_VERSIONS: Final = (7, SCHEMA_VERSION)
"""Schemas that are read; a file of 7, which has no checksums of rows, is one of 8 once it is written."""

TABLES: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE tasks (task INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, record BLOB NOT NULL);
CREATE TABLE deltas (delta INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE taken (
    task INTEGER PRIMARY KEY, deltas INTEGER NOT NULL, rollouts INTEGER NOT NULL, growing INTEGER NOT NULL,
    failed INTEGER NOT NULL, digest TEXT NOT NULL, calls INTEGER NOT NULL, prompt INTEGER NOT NULL,
    cached INTEGER NOT NULL, generated INTEGER NOT NULL, unreported INTEGER NOT NULL, retries INTEGER NOT NULL,
    tools INTEGER NOT NULL, tool_errors INTEGER NOT NULL, bridged INTEGER NOT NULL, realigned INTEGER NOT NULL,
    forked INTEGER NOT NULL, llm_micros INTEGER NOT NULL, tool_micros INTEGER NOT NULL, paths INTEGER NOT NULL,
    replayed INTEGER NOT NULL
);
CREATE TABLE endpoints (endpoint INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE agents (agent INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE calls (
    call INTEGER PRIMARY KEY, task INTEGER NOT NULL, seq INTEGER NOT NULL, endpoint INTEGER NOT NULL,
    draws INTEGER NOT NULL, prompt INTEGER NOT NULL, cached INTEGER NOT NULL, generated INTEGER NOT NULL,
    attempts INTEGER NOT NULL, queue INTEGER NOT NULL, first INTEGER NOT NULL, micros INTEGER NOT NULL,
    started INTEGER NOT NULL, agent INTEGER NOT NULL
);
CREATE TABLE uses (
    use INTEGER PRIMARY KEY, task INTEGER NOT NULL, seq INTEGER NOT NULL, rollout INTEGER NOT NULL, tool TEXT NOT NULL,
    failed INTEGER NOT NULL, micros INTEGER NOT NULL, started INTEGER NOT NULL
);
CREATE TABLE rollouts (
    task INTEGER NOT NULL, rollout INTEGER NOT NULL, path TEXT NOT NULL, subgroup INTEGER NOT NULL,
    leaf INTEGER NOT NULL, termination TEXT, answer TEXT, error TEXT, reward REAL, note TEXT, turns INTEGER NOT NULL,
    calls INTEGER NOT NULL, prompt INTEGER NOT NULL, cached INTEGER NOT NULL, generated INTEGER NOT NULL,
    unreported INTEGER NOT NULL, retries INTEGER NOT NULL, tools INTEGER NOT NULL,
    tool_errors INTEGER NOT NULL, bridged INTEGER NOT NULL, realigned INTEGER NOT NULL, forked INTEGER NOT NULL,
    llm_micros INTEGER NOT NULL, tool_micros INTEGER NOT NULL, length INTEGER, action TEXT,
    PRIMARY KEY (task, rollout)
) WITHOUT ROWID;
CREATE TABLE trees (
    task INTEGER PRIMARY KEY, nodes INTEGER NOT NULL, rollouts INTEGER NOT NULL, digest TEXT NOT NULL,
    flat INTEGER NOT NULL, tree INTEGER NOT NULL, longest INTEGER NOT NULL, flat_generated INTEGER NOT NULL,
    tree_generated INTEGER NOT NULL, unreported INTEGER NOT NULL, exact INTEGER NOT NULL, error TEXT,
    ended TEXT NOT NULL, why TEXT, refused INTEGER NOT NULL, rows_sum INTEGER, calls_sum INTEGER, tools_sum INTEGER
);
CREATE TABLE events (
    event INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, worker INTEGER, task INTEGER, data TEXT NOT NULL
);
"""
"""Statements that make the tables, each ended by a semicolon. Keys of ``deltas`` are those of ``deltakey``."""


class CallRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request. Written with the delta of its turns, or of its end; derived from nothing.

    Attributes:
        endpoint: The endpoint that answered, or was asked last; in the file, its number in ``endpoints``.
        draws: Completions it brought; 0 if it failed for good.
        prompt: Prompt tokens as the server reported them, cached ones included; -1 where it did not, as below.
        cached: Cached prompt tokens.
        generated: Completion tokens of all draws together.
        attempts: Requests that were sent, the successful one included; 0 for a reply from the cache.
        queue: Microseconds it waited for a slot or a limit; 0 if it failed.
        first: Microseconds from the last attempt to the first byte of its answer; -1 where not known.
        micros: Microseconds of the whole call, waits and retries included.
        started: When it began, in microseconds: in the file, since the file was made; before, on the machine's
            monotonic clock.
        agent: The agent that asked; in the file, its number in ``agents``; empty where it is not kept.
    """

    endpoint: str
    draws: int
    prompt: (
        int  # prompt tokens as the server reported them, cached ones included; -1 where it did not; so in the next two
    )
    cached: int
    generated: int
    attempts: int
    queue: int
    first: int
    micros: int
    started: int
    agent: str = ""

    @property
    def failed(self) -> bool:
        """Whether it was sent and brought nothing."""
        return not self.draws and self.attempts > 0

    @property
    def reported(self) -> bool:
        """Whether it has usage; a call that lacks one figure counts in no total."""
        return self.prompt >= 0 and self.generated >= 0


class ToolRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One tool call. Written with the delta of its observation; trees hold no times of single calls.

    Attributes:
        rollout: The rollout that made it.
        tool: The tool's name; of a tool that does not exist, no name that a model made up.
        failed: Whether it failed.
        micros: Microseconds that it took, waiting for its turn included.
        started: When it began, as for :class:`CallRow`.
    """

    rollout: int
    tool: str
    failed: bool
    micros: int
    started: int


class EventRow(NamedTuple):
    """Something that happened during a run and is part of no tree.

    Attributes:
        at: When, in seconds since 1970.
        kind: ``died``, ``quarantined``, ``recycled``, ``stale`` and others.
        worker: The worker's number; None where no worker is concerned.
        task: The task's number; None where no task is concerned.
        data: What there is to say beside it, by names.
    """

    at: float
    kind: str
    worker: int | None
    task: int | None
    data: dict[str, JSON]


class RolloutRow(msgspec.Struct, frozen=True, array_like=True):
    """One rollout; derived from the deltas.

    Attributes:
        rollout: Its number in its tree.
        path: Its fork path, numbers separated by commas.
        subgroup: The initial chain it was expanded for.
        leaf: Its last node.
        termination: Why it ended; None if it did not.
        answer: Its final answer.
        error: What went wrong.
        reward: Its reward; None while unscored.
        note: Its last note, such as verdicts of filters.
        turns: Model turns on its path, shared ones included.
        calls: Model calls it made itself; so are the counts that follow.
        prompt: Prompt tokens, cached ones included.
        cached: Cached prompt tokens.
        generated: Completion tokens.
        unreported: Calls without usage.
        retries: Attempts beyond the first.
        tools: Tool calls.
        tool_errors: Of these, calls that failed.
        bridged: Turns whose prompt drifted from its path's token ids, and whose path was kept.
        realigned: Such turns whose prompt replaced the rest of the path.
        forked: Such turns whose prompt began a sample of its own.
        llm_micros: Microseconds in model calls.
        tool_micros: Microseconds in tool calls.
        length: Generated tokens on its path, shared ones included; None where a turn on it has no usage.
        action: What its first turn does (:func:`trunkline.scoring.answers.action`); None if it took none.
    """

    rollout: int
    path: str
    subgroup: int
    leaf: int
    termination: str | None
    answer: str | None
    error: str | None
    reward: float | None
    note: str | None
    turns: int
    calls: int
    prompt: int
    cached: int
    generated: int
    unreported: int
    retries: int
    tools: int
    tool_errors: int
    bridged: int
    realigned: int
    forked: int
    llm_micros: int
    tool_micros: int
    length: int | None = None
    action: str | None = None

    @property
    def usage(self) -> Usage:
        """What its own calls cost."""
        return Usage(*(getattr(self, name) for name in Usage.__struct_fields__))


class TreeRow(msgspec.Struct, frozen=True, array_like=True):
    """One finished task; all fields before ``error`` are derived from the deltas.

    Attributes:
        nodes: Nodes of its tree, the root included.
        rollouts: Rollouts that were opened.
        digest: The tree's digest.
        flat: Tokens if every rollout were a chain of its own.
        tree: Tokens with shared parts counted once.
        longest: Tokens of the longest path.
        flat_generated: Generated ones among ``flat``.
        tree_generated: Generated ones among ``tree``.
        unreported: Model turns without usage.
        exact: 1 if tokens are counted from their ids, else 0.
        error: Why the task as a whole broke, such as a dead worker.
        ended: How growth ended, see :class:`TreeEnding`; ``broken`` where there is an error.
        why: As in :class:`TreeEnding`.
        refused: As in :class:`TreeEnding`.
    """

    nodes: int
    rollouts: int
    digest: str
    flat: int
    tree: int
    longest: int
    flat_generated: int
    tree_generated: int
    unreported: int
    exact: int = 0
    error: str | None = None
    ended: str = "finished"
    why: str | None = None
    refused: int = 0


class TreeEnding(NamedTuple):
    """How the growth of a tree ended, if it did not break.

    Attributes:
        word: ``finished``: its strategy was done. ``settled``: its answer could no longer change, or a reward was good
            enough. ``enough``: so many rollouts were done as were wanted. ``deadline``: its time or the run's was over.
            ``budget``: its budget or the run's did not pay for all.
        why: In words; None where it is finished.
        refused: Rollouts that were to start and that no budget paid for. They are in no tree.
    """

    word: str = "finished"
    why: str | None = None
    refused: int = 0


class TakenRow(msgspec.Struct, frozen=True, array_like=True):
    """A task as it was when this run took it over from an earlier one, which had paid for it.

    Attributes:
        deltas: Its first deltas, which are the earlier run's.
        rollouts: Its first rollouts, likewise.
        growing: Of these, rollouts that had not ended; they continue in this run.
        failed: Of these, rollouts that had broken.
        digest: The digest of its tree at that time.
        calls: What all of these had cost, as for :class:`RolloutRow`; so are the counts that follow.
        prompt: Prompt tokens.
        cached: Cached prompt tokens.
        generated: Completion tokens.
        unreported: Calls without usage.
        retries: Attempts beyond the first.
        tools: Tool calls.
        tool_errors: Of these, calls that failed.
        bridged: Drifted turns, as for :class:`RolloutRow`.
        realigned: Likewise.
        forked: Likewise.
        llm_micros: Microseconds in model calls.
        tool_micros: Microseconds in tool calls.
        paths: Model turns on the paths of all of these rollouts.
        replayed: Tool calls that had run again to bring environments to fork points.
    """

    deltas: int
    rollouts: int
    growing: int
    failed: int
    digest: str
    calls: int = 0
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    unreported: int = 0
    retries: int = 0
    tools: int = 0
    tool_errors: int = 0
    bridged: int = 0
    realigned: int = 0
    forked: int = 0
    llm_micros: int = 0
    tool_micros: int = 0
    paths: int = 0
    replayed: int = 0

    @property
    def usage(self) -> Usage:
        """What its calls had cost."""
        return Usage(*(getattr(self, name) for name in Usage.__struct_fields__))


class FileVersions(msgspec.Struct, frozen=True):
    """The versions that made a run file; ``versions`` in the table ``meta``."""

    trunkline: str  # the version of this package
    python: str  # the version of Python
    delta: int  # the format of the deltas; one version reads one format
    digest: int  # the version of the digests


HERE: Final = FileVersions(_core.__version__, platform.python_version(), _core.FORMAT, _core.DIGEST_VERSION)
"""The versions that this process writes and reads."""

CALL_COLUMNS: Final = CallRow.__struct_fields__
CALL_NAMED: Final = ", ".join(
    {"endpoint": "endpoints.name", "agent": "agents.name"}.get(column, column) for column in CALL_COLUMNS
)
"""The columns of a call with names in the place of numbers, to be selected from :data:`CALLS_NAMED`."""

CALLS_NAMED: Final = "calls LEFT JOIN endpoints USING (endpoint) LEFT JOIN agents USING (agent)"
ROLLOUT_COLUMNS: Final = RolloutRow.__struct_fields__
TAKEN_COLUMNS: Final = TakenRow.__struct_fields__
TOOL_COLUMNS: Final = ToolRow.__struct_fields__
TREE_COLUMNS: Final = TreeRow.__struct_fields__
SUM_COLUMNS: Final = ("rows_sum", "calls_sum", "tools_sum")
"""Checksums in ``trees``: of the task's rows, calls and tool calls. There are none in schema 7, nor of a task that was
finished in it."""


TASK: Final = "(delta >> 32)"
"""The task's number, of a row in ``deltas``."""

SEQ: Final = "(delta & 4294967295)"
"""The delta's number in its tree, likewise."""

DELTAS: Final = "SELECT data FROM deltas WHERE delta BETWEEN ? AND ? ORDER BY delta"
"""The deltas of a task, in order; takes its :func:`delta_keys`."""

BEGUN: Final = """
SELECT task FROM tasks LEFT JOIN taken USING (task) WHERE task NOT IN (SELECT task FROM trees) AND (
    EXISTS (
        SELECT 1 FROM deltas
        WHERE delta BETWEEN (task << 32) + coalesce(taken.deltas + 1, 0) AND (task << 32) + 4294967295
    )
    OR (taken.deltas IS NOT NULL AND task IN (SELECT task FROM calls))
) ORDER BY task
"""
"""Tasks that this run has begun and that are not done, by their numbers. The first delta behind an earlier run's may be
one that took verdicts off: by itself it begins nothing."""


T = TypeVar("T")
D = TypeVar("D")


def meta_entry(meta: Mapping[str, str], key: str, type: type[T], missing: D) -> T | D:
    """Decode an entry of the table ``meta``; ``missing`` where it is absent or damaged, which a check reports."""
    try:
        return msgspec.json.decode(meta[key], type=type)
    except (KeyError, msgspec.MsgspecError, UnicodeError):
        return missing


def delta_key(task: int, seq: int) -> int:
    """Return the key of a delta."""
    return task << 32 | seq


def delta_keys(task: int) -> tuple[int, int]:
    """The first and the last possible key of a task's deltas."""
    return delta_key(task, 0), delta_key(task + 1, 0) - 1


CALL_ROWS: Final = (
    "SELECT task, seq, endpoint, draws, prompt, cached, generated, attempts, queue, first, micros, started, agent "
    "FROM calls"
)
TOOL_ROWS: Final = "SELECT task, seq, rollout, tool, failed, micros, started FROM uses"
"""Rows of calls and of tool calls, as their checksums are of them; these are added up for each task."""

UNFINISHED: Final = " WHERE task NOT IN (SELECT task FROM trees)"
SUM_MASK: Final = 0xFFFFFFFF
_NOTHING: Final = (0, 0)
_encode = msgspec.msgpack.Encoder().encode


def checksum(row: Sequence[int | float | str | bytes | None], before: int = 0) -> int:
    """The checksum of a row as SQLite returns it, continued from the rows before it."""
    return crc32(_encode(row), before)


_CALL = f"INSERT INTO calls VALUES (NULL, ?, ?{', ?' * len(CALL_COLUMNS)})"  # noqa: S608 - our own names
_USE = f"INSERT INTO uses VALUES (NULL, ?, ?{', ?' * len(TOOL_COLUMNS)})"  # noqa: S608 - our own names


class _Names(NamedTuple):
    """A table of numbered names; immutable, so that a rollback leaves the one before."""

    table: str  # its name
    stored: Mapping[str, int]  # numbers of the names as the file has them, which is without secrets
    known: Mapping[str, int]  # those of names as they were given

    @classmethod
    def of(cls, connection: sqlite3.Connection, table: str) -> Self:
        return cls(table, {name: number for number, name in connection.execute(f"SELECT * FROM {table}")}, {})  # noqa: S608 - our own names

    def holding(self, connection: sqlite3.Connection, names: Iterable[str]) -> Self:
        """Write new names, and return the table with all of them."""
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


_NO_NAMES = _Names("endpoints", {}, {}), _Names("agents", {}, {})


class CallTable:
    """Writes calls and tool calls as rows, and keeps the checksums of unfinished tasks."""

    def __init__(self, passed: int = 0, names: tuple[_Names, _Names] = _NO_NAMES) -> None:
        self._began = time.monotonic_ns() // 1000 - passed
        self._names = names
        # Of tasks that are not finished: the sums of their calls' checksums, and of their tool calls', in the file; and
        # those of the current batch are added to them.
        self._sums: dict[int, tuple[int, int]] = {}
        self._fresh: dict[int, tuple[int, int]] = {}
        self._total = 0, 0

    @classmethod
    def of(cls, connection: sqlite3.Connection, created: float) -> Self:
        """Continue the calls of a file.

        A clock that was set back does not let times begin again: they are never before those in the file.
        """
        ((last,),) = connection.execute("SELECT coalesce(max(started), 0) FROM calls")
        names = _Names.of(connection, "endpoints"), _Names.of(connection, "agents")
        table = cls(max(int((time.time() - created) * 1e6), last), names)
        for query, tools in ((CALL_ROWS, False), (TOOL_ROWS, True)):
            table._count(connection.execute(query + UNFINISHED), tools=tools)
        table.keep(names)
        return table

    @property
    def names(self) -> tuple[_Names, _Names]:
        """The endpoints and the agents that are in the file."""
        return self._names

    def add(
        self, connection: sqlite3.Connection, calls: Mapping[tuple[int, int], Sequence[CallRow]]
    ) -> tuple[_Names, _Names]:
        """Write the calls of some deltas; returns the names for :meth:`keep`, once they are in the file."""
        names = self._names
        try:
            rows = list(self._values(calls, names))
        except KeyError:  # of a new name, which is rare: to look for them first would be a good part of the cost
            endpoints, agents = names
            made = [call for of_delta in calls.values() for call in of_delta]
            names = (
                endpoints.holding(connection, (call.endpoint for call in made)),
                agents.holding(connection, (call.agent for call in made)),
            )
            rows = list(self._values(calls, names))
        connection.executemany(_CALL, rows)
        self._fresh = {}
        self._count(rows, tools=False)
        return names

    def used(self, connection: sqlite3.Connection, tools: Mapping[tuple[int, int], Sequence[ToolRow]]) -> None:
        """Write the tool calls of some deltas; see :meth:`add`."""
        rows = [
            (*place, rollout, tool, int(failed), micros, max(0, begun - self._began))
            for place, made in tools.items()
            for rollout, tool, failed, micros, begun in map(astuple, made)
        ]
        connection.executemany(_USE, rows)
        self._count(rows, tools=True)

    def _count(self, rows: Iterable[tuple[Any, ...]], *, tools: bool) -> None:
        fresh, encode = self._fresh, _encode
        for row in rows:
            calls, used = fresh.get(row[0], _NOTHING)
            found = crc32(encode(row))
            fresh[row[0]] = (calls, used + found) if tools else (calls + found, used)

    def sums(self, task: int) -> tuple[int, int]:
        """The added checksums of a task's calls, and of its tool calls."""
        (calls, used), (more_calls, more_used) = (table.get(task, _NOTHING) for table in (self._sums, self._fresh))
        return calls + more_calls & SUM_MASK, used + more_used & SUM_MASK

    def unfinished(self, finished: Iterable[int] = ()) -> dict[str, int]:
        """The added checksums of the calls and tool calls of unfinished tasks, without those that finish now."""
        calls, used = self._total
        for fresh_calls, fresh_used in self._fresh.values():
            calls, used = calls + fresh_calls, used + fresh_used
        for done_calls, done_used in map(self.sums, finished):
            calls, used = calls - done_calls, used - done_used
        return {"calls": calls & SUM_MASK, "uses": used & SUM_MASK}

    def keep(self, names: tuple[_Names, _Names], finished: Iterable[int] = ()) -> None:
        """Remember the committed state; finished tasks have no more calls."""
        self._names = names
        left = self.unfinished(finished)
        self._total = left["calls"], left["uses"]
        for task, (calls, used) in self._fresh.items():
            before = self._sums.get(task, _NOTHING)
            self._sums[task] = before[0] + calls, before[1] + used
        self._fresh = {}
        for task in finished:
            self._sums.pop(task, None)

    def _values(
        self, calls: Mapping[tuple[int, int], Sequence[CallRow]], names: tuple[_Names, _Names]
    ) -> Iterator[tuple[int, ...]]:
        origin, endpoints, agents = self._began, *(table.known for table in names)
        for (task, seq), made in calls.items():
            # By tuples and by name, which is the fastest way of those that were measured.
            for to, draws, prompt, cached, generated, tries, queue, first, micros, begun, who in map(astuple, made):
                started = begun - origin if begun > origin else 0
                yield (
                    task, seq, endpoints[to], draws, prompt, cached, generated, tries, queue, first, micros, started,
                    agents[who],
                )  # fmt: skip
