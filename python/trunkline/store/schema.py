"""The tables of a run file, their rows, keys and checksums.

SQLite finds a row by one number at once, and such a table keeps large values without a loss of space.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from trunkline import _core
from trunkline._internal.text import JSON  # noqa: TC001 - rows are converted to it
from trunkline.types import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    """One request. It travels with the delta of its turns, or of its end.

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
    """One tool call. It travels with the delta of its observation; trees hold no times of single calls.

    Attributes:
        rollout: The rollout that made it.
        tool: The tool's name; of a tool that does not exist, no name that a model made up.
        failed: Whether it failed.
        micros: Microseconds that it took, waiting for its turn included.
        started: When it began, as for ``CallRow``.
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


class RolloutRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
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
        action: What its first turn does (``trunkline.scoring.answers.action``); None if it took none.
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
        return Usage(
            self.calls,
            self.prompt,
            self.cached,
            self.generated,
            self.unreported,
            self.retries,
            self.tools,
            self.tool_errors,
            self.bridged,
            self.realigned,
            self.forked,
        )


class TreeRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
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
        ended: How growth ended, see ``TreeEnding``; ``broken`` where there is an error.
        why: As in ``TreeEnding``.
        refused: As in ``TreeEnding``.
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


class TakenRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A task as it was when this run took it over from an earlier one, which had paid for it.

    Attributes:
        deltas: Its first deltas, which are the earlier run's.
        rollouts: Its first rollouts, likewise.
        growing: Of these, rollouts that had not ended; they continue in this run.
        failed: Of these, rollouts that had broken.
        digest: The digest of its tree at that time.
        calls: What all of these had cost, as for ``RolloutRow``; so are the counts that follow.
        prompt: Prompt tokens.
        cached: Cached prompt tokens.
        generated: Completion tokens.
        unreported: Calls without usage.
        retries: Attempts beyond the first.
        tools: Tool calls.
        tool_errors: Of these, calls that failed.
        bridged: Drifted turns, as for ``RolloutRow``.
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
    delta: int  # the latest format of the deltas
    digest: int  # the version of the digests


HERE: Final = FileVersions(_core.__version__, platform.python_version(), _core.FORMAT, _core.DIGEST_VERSION)
"""The versions that this process writes and reads."""

CALL_COLUMNS: Final = CallRow.__struct_fields__
CALL_NAMED: Final = ", ".join(
    {"endpoint": "endpoints.name", "agent": "agents.name"}.get(column, column) for column in CALL_COLUMNS
)
"""The columns of a call with names in the place of numbers, to be selected from ``CALLS_NAMED``."""

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
"""The deltas of a task, in order; takes its ``delta_keys``."""

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
