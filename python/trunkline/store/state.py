"""How far a run has come, read from its file to go on in it. What finished tasks grew is not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trunkline import _core
from trunkline.errors import TreeError
from trunkline.printable import printable
from trunkline.store.deltakey import BEGUN, DELTAS, delta_keys
from trunkline.store.judgements import Judgements
from trunkline.store.schema import ROLLOUT_COLUMNS, TAKEN_COLUMNS, RolloutRow, TakenRow
from trunkline.types import FAILED

if TYPE_CHECKING:
    import sqlite3

__all__ = ["Standing", "standing"]

# The names in these statements are our own.
_TAKEN = f"SELECT task, {', '.join(TAKEN_COLUMNS)} FROM taken ORDER BY task"  # noqa: S608
_ROLLOUTS = f"SELECT task, {', '.join(ROLLOUT_COLUMNS)} FROM rollouts"  # noqa: S608
_ENDS = "SELECT termination, count(*) FROM rollouts WHERE termination IS NOT NULL GROUP BY termination"
_CALLS = (
    "SELECT coalesce(sum(draws), 0), coalesce(sum(attempts - 1) FILTER (WHERE attempts > 0), 0), "
    "coalesce(sum(prompt) FILTER (WHERE counted), 0), coalesce(sum(generated) FILTER (WHERE counted), 0) FROM "
    "(SELECT *, attempts > 0 AND prompt >= 0 AND generated >= 0 AS counted FROM calls)"
)


class Standing(msgspec.Struct, kw_only=True):
    """What a run file held when it was opened; nothing, for one that was made.

    Attributes:
        state: How the run had ended; empty for one that was made.
        finished: Tasks that are done.
        begun: Tasks that were begun and are not done.
        taken: What was taken over of an earlier run, by task.
        rollouts: Rollouts of finished tasks.
        ended: Rollouts that have ended.
        failed: Rollouts of finished tasks that broke in this run, not in an earlier one that it continues.
        turns: Model turns that the calls brought.
        retries: Attempts beyond the first.
        prompt: Prompt tokens of the calls.
        generated: Generated tokens of the calls.
        lost: Finished tasks that were given up because workers died of them.
        kept: Groups of finished tasks that can be trained on; counted only where the run wants so many.
        served: Who answered.
    """

    state: str = ""
    finished: list[int] = []
    begun: list[int] = []
    taken: dict[int, TakenRow] = {}
    rollouts: int = 0
    ended: int = 0
    failed: int = 0
    turns: int = 0
    retries: int = 0
    prompt: int = 0
    generated: int = 0
    lost: int = 0
    kept: int = 0
    served: list[str] = []


class _Settings(msgspec.Struct):
    """What of a run's settings it depends on what is read."""

    refill: dict[str, int] | None = None
    reward: str | None = None


def standing(connection: sqlite3.Connection, meta: dict[str, str]) -> Standing:
    """Read how far a run has come, and look at every tree that is to go on.

    Args:
        connection: The file.
        meta: Its table of that name.

    Raises:
        ValueError: The file is damaged; the message says where.
        sqlite3.Error: The file is damaged, or cannot be read.
    """
    settings = msgspec.json.decode(meta.get("settings", ""), type=_Settings)
    found = Standing(
        state=meta.get("state", ""),
        finished=[task for (task,) in connection.execute("SELECT task FROM trees ORDER BY task")],
        begun=[task for (task,) in connection.execute(BEGUN)],
        taken={task: msgspec.convert(values, TakenRow) for task, *values in connection.execute(_TAKEN)},
        served=msgspec.json.decode(meta.get("served", "[]"), type=list[str]),
    )
    for word, count in connection.execute(_ENDS):
        found.ended += count
        found.failed += count if word in FAILED else 0
    ((found.lost,),) = connection.execute("SELECT count(*) FROM events WHERE kind = 'quarantined'")
    ((found.rollouts,),) = connection.execute("SELECT count(*) FROM rollouts")
    ((found.turns, found.retries, found.prompt, found.generated),) = connection.execute(_CALLS)
    if settings.refill is not None:
        found.kept = _kept(connection, scored=settings.reward is not None)
    for task in found.begun:
        core = _rebuild(connection, task)
        found.ended += core.rollouts - len(core.growing)
    begun, done = set(found.begun), set(found.finished)
    for task, row in found.taken.items():
        # What had ended, or broken, in an earlier run did not do so here.
        found.ended -= row.rollouts - row.growing if task in done or task in begun else 0
        found.failed -= row.failed if task in done else 0
    return found


def _kept(connection: sqlite3.Connection, *, scored: bool) -> int:
    """Count the groups that can be trained on."""
    judgements = Judgements(scored=scored)
    for task, *values in connection.execute(_ROLLOUTS):
        judgements.add(task, msgspec.convert(values, RolloutRow))
    broken = {task for (task,) in connection.execute("SELECT task FROM trees WHERE error IS NOT NULL")}
    return len(judgements.kept - broken)


def _rebuild(connection: sqlite3.Connection, task: int) -> _core.Tree:
    """Return the tree of a task that is to go on."""
    core = _core.Tree()
    try:
        for (data,) in connection.execute(DELTAS, delta_keys(task)):
            core.apply(data)
        core.check()
    except (TreeError, TypeError) as problem:
        raise ValueError(f"task number {task}: {printable(str(problem), 200)}") from None
    return core
