"""Keys of deltas in a run file: one number holds the task's number and the delta's number in its tree.

SQLite finds a row by one number at once, and such a table keeps large values without a loss of space.
"""

from __future__ import annotations

from typing import Final

__all__ = ["BEGUN", "DELTAS", "SEQ", "TASK", "delta_key", "delta_keys"]

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


def delta_key(task: int, seq: int) -> int:
    """Return the key of a delta.

    Args:
        task: The task's number.
        seq: The delta's number in its tree.
    """
    return task << 32 | seq


def delta_keys(task: int) -> tuple[int, int]:
    """Return the first and the last key that a delta of a task can have."""
    return delta_key(task, 0), delta_key(task + 1, 0) - 1
