"""The progress that a run file holds; its resumptions and rescorings."""

from __future__ import annotations

import math
import sqlite3
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from trunkline._internal.text import printable, redact
from trunkline.errors import RunFileError, TreeError
from trunkline.scoring.metrics import Estimate
from trunkline.store import schema
from trunkline.store.call_table import CallTable
from trunkline.store.derive import rebuilt
from trunkline.store.lock import Holder
from trunkline.store.schema import CallRow, RolloutRow, TakenRow, delta_key, delta_keys, meta_entry
from trunkline.store.sqlite import as_text, damaged, keep_log, transaction
from trunkline.store.stats.calls import estimated_usage, probes, retry_causes
from trunkline.store.stats.tasks import FilterStats, each_task
from trunkline.store.sums import Seal, unfinished_sums
from trunkline.types import FAILED, Termination

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trunkline import _core


# The names in these statements are our own.
_TAKEN = f"SELECT task, {', '.join(schema.TAKEN_COLUMNS)} FROM taken ORDER BY task"  # noqa: S608
_ROLLOUTS = f"SELECT task, {', '.join(schema.ROLLOUT_COLUMNS)} FROM rollouts ORDER BY task"  # noqa: S608
_ENDS = "SELECT termination, count(*) FROM rollouts WHERE termination <> 'retried' GROUP BY termination"
_CALLS = (
    "SELECT coalesce(sum(draws), 0), coalesce(sum(attempts - 1) FILTER (WHERE attempts > 0), 0), "
    "coalesce(sum(prompt) FILTER (WHERE counted), 0), coalesce(sum(generated) FILTER (WHERE counted), 0) FROM "
    "(SELECT *, attempts > 0 AND prompt >= 0 AND generated >= 0 AS counted FROM calls)"
)


class RunProgress(msgspec.Struct, kw_only=True):
    """The contents of a run file when it was opened; empty for a new one."""

    state: str = ""  # how the run had ended; empty for one that was made
    finished: list[int] = []  # tasks that are done
    begun: list[int] = []  # tasks that were begun and are not done
    taken: dict[int, TakenRow] = {}  # what was taken over of an earlier run, by task
    rollouts: int = 0  # rollouts of finished tasks
    ended: int = 0  # rollouts that have ended
    failed: int = 0  # rollouts of finished tasks that broke in this run, not in an earlier one that it continues
    turns: int = 0  # model turns that the calls brought
    retries: int = 0  # attempts beyond the first
    prompt: int = 0  # prompt tokens of the calls
    generated: int = 0  # generated tokens of the calls
    lost: int = 0  # finished tasks that were given up because workers died of them
    kept: int = 0  # groups of finished tasks that can be trained on; counted only where the run wants so many
    served: list[str] = []  # names of the models that answered
    estimated: dict[str, int] = {}  # generated tokens that are estimated, by endpoint
    retry_causes: dict[str, int] = {}  # retries by cause, as far as it is known
    probes: list[CallRow] = []  # requests that were sent to find out what servers can do


class _ProgressSettings(msgspec.Struct):
    refill: dict[str, int] | None = None
    reward: str | None = None


def run_progress(connection: sqlite3.Connection, meta: dict[str, str]) -> RunProgress:
    """Read how far a run has come, and check every tree that will continue."""
    settings = msgspec.json.decode(meta.get("settings", ""), type=_ProgressSettings)
    found = RunProgress(
        state=meta.get("state", ""),
        finished=[task for (task,) in connection.execute("SELECT task FROM trees ORDER BY task")],
        begun=[task for (task,) in connection.execute(schema.BEGUN)],
        taken={task: msgspec.convert(values, TakenRow) for task, *values in connection.execute(_TAKEN)},
        served=msgspec.json.decode(meta.get("served", "[]"), type=list[str]),
        estimated=estimated_usage(meta),
        retry_causes=retry_causes(meta),
        probes=probes(meta),
    )
    for word, count in connection.execute(_ENDS):
        found.ended += count
        found.failed += count if word in FAILED else 0
    ((found.lost,),) = connection.execute("SELECT count(*) FROM events WHERE kind = 'quarantined'")
    ((found.rollouts,),) = connection.execute("SELECT count(*) FROM rollouts WHERE termination IS NOT 'retried'")
    ((found.turns, found.retries, found.prompt, found.generated),) = connection.execute(_CALLS)
    if settings.refill is not None:
        found.kept = _kept(connection, scored=settings.reward is not None)
    for task in found.begun:
        core = _rebuild(connection, task)
        ended = [core.rollout(number).termination for number in range(core.rollouts)]
        found.ended += sum(word not in {None, Termination.RETRIED} for word in ended)
    begun, done = set(found.begun), set(found.finished)
    for task, row in found.taken.items():
        # What had ended, or broken, in an earlier run did not do so here.
        found.ended -= row.rollouts - row.growing if task in done or task in begun else 0
        found.failed -= row.failed if task in done else 0
    return found


def _kept(connection: sqlite3.Connection, *, scored: bool) -> int:
    filter_stats = FilterStats(scored=scored)
    broken = {task for (task,) in connection.execute("SELECT task FROM trees WHERE error IS NOT NULL")}
    rollouts = ((task, msgspec.convert(values, RolloutRow)) for task, *values in connection.execute(_ROLLOUTS))
    filter_stats.add(each_task(rollouts))
    return len(filter_stats.kept - broken)


def _rebuild(connection: sqlite3.Connection, task: int) -> _core.CoreTree:
    try:
        core = rebuilt(data for (data,) in connection.execute(schema.DELTAS, delta_keys(task)))
        core.check()
    except (TreeError, TypeError) as problem:
        raise ValueError(f"task number {task}: {printable(str(problem), 200)}") from None
    return core


_EXTENT = (
    "SELECT (SELECT count(*) FROM deltas WHERE delta BETWEEN ? AND ?), (SELECT count(*) FROM trees WHERE task = ?)"
)
_KEY = "resumed"

_CHECKED = """
SELECT quick_check FROM (SELECT 'sqlite_schema' AS name UNION ALL SELECT name FROM sqlite_schema WHERE type = 'table')
JOIN pragma_quick_check(name) WHERE name <> 'deltas' AND quick_check <> 'ok'
"""


class Resumption(msgspec.Struct, frozen=True):
    """One time that a run was resumed."""

    at: float  # when, in seconds since 1970
    finished: int  # tasks that were done by then
    state: str  # how the run had ended; ``running`` after it was killed
    changed: list[str] = []  # settings that are others from then on: field, what it was, what it is
    forced: bool = False  # whether some of these give the results another meaning


class Resumed(NamedTuple):
    """The state that a writer continues from."""

    progress_so_far: RunProgress  # how far the run has come
    calls: CallTable  # the table of its calls
    seconds: float  # wall time that it has taken
    seal: Seal  # its checksums


def resumptions(meta: Mapping[str, str]) -> list[Resumption]:
    """The times that a run was resumed, by its table ``meta``."""
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
    """Check a file, and record that its run continues."""
    try:
        look(connection)
        meta = dict(connection.execute("SELECT key, value FROM meta"))
        found = run_progress(connection, meta)
        times = resumptions(meta)
        calls, seconds = CallTable.of(connection, _number(meta["created"])), _number(meta["seconds"])
        Seal.stored(meta)
    except KeyError as problem:
        raise damaged(path, f"meta has no {problem}") from None
    except (ValueError, TypeError, msgspec.MsgspecError, sqlite3.OperationalError) as problem:
        if getattr(problem, "sqlite_errorcode", None) is not None:
            raise
        # An error without a code comes from Python: the text cannot be decoded.
        raise damaged(path, printable(str(problem), 300)) from None
    times.append(Resumption(time.time(), len(found.finished), found.state, list(changed), forced))
    keep_log(connection, durable=durable)
    facts = {
        **facts,
        "state": "running",
        "holder": as_text(msgspec.to_builtins(Holder.here())),
        _KEY: as_text(redact(msgspec.to_builtins(times))),
    }
    seal = Seal.resumed(connection, facts, without=["finished"])
    return Resumed(found, calls, seconds, seal)


def reopen(path: Path, connection: sqlite3.Connection, tasks: Sequence[tuple[int, int, bytes | None]]) -> None:
    """Make finished tasks unfinished, each with the number of its next delta and that delta: all of them, or none."""
    with transaction(connection):
        for task, seq, delta in tasks:
            ((known, done),) = connection.execute(_EXTENT, (*delta_keys(task), task))
            if (known, done) != (seq, 1):
                raise RunFileError(f"{printable(str(path))} was written by another process meanwhile: try again")
            if delta is not None:
                connection.execute("INSERT INTO deltas VALUES (?, ?)", (delta_key(task, seq), delta))
            connection.execute("DELETE FROM rollouts WHERE task = ?", (task,))
            connection.execute("DELETE FROM trees WHERE task = ?", (task,))
        Seal.load(connection).with_tables(unfinished_sums(connection)).put(connection, {})


def look(connection: sqlite3.Connection) -> None:
    """Have SQLite check its pages but those of deltas, which may be most of the file and have checksums."""
    for (word,) in connection.execute(_CHECKED):
        raise ValueError(word)


def _number(text: str) -> float:
    """Read a finite number of ``meta``."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no time")
    return value


RESCORINGS: Final = "scorings"
"""Key of the file's ``meta`` table under which they stand."""


class Scoring(msgspec.Struct, frozen=True, kw_only=True):
    """One time that a run was scored again."""

    reward: str  # what the reward is called, with its options
    before: str | None  # what that was called which the run was scored by until then; None for none
    accuracy: Estimate | None  # the run's accuracy until then
    at: float  # when it was begun, in seconds since 1970
    trunkline: str  # the version of this package that did it
    done: int = 0  # tasks that are scored by it, of those of which something has grown, in their order
    finished: bool = False  # whether these are all


def rescorings(meta: Mapping[str, str]) -> list[Scoring]:
    """The times that a run was scored again, in their order; none where the entry is damaged."""
    return meta_entry(meta, RESCORINGS, list[Scoring], [])


def under_way(meta: Mapping[str, str]) -> Scoring | None:
    """The unfinished rescoring, if any: meanwhile the run's rewards are of two kinds."""
    known = rescorings(meta)
    return known[-1] if known and not known[-1].finished else None


def reward_of(known: Sequence[Scoring], before: str | None, place: int) -> str | None:
    """The name of the reward of the task at a place among those with deltas."""
    if not known or known[-1].finished or place < known[-1].done:
        return before
    return reward_of(known[:-1], known[-1].before, place)
