"""By which rewards a run was scored again after it was over, and how far that has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from trunkline.score.metrics import Estimate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["SCORINGS", "Scoring", "reward_of", "scorings", "under_way"]

SCORINGS: Final = "scorings"
"""Key of the file's ``meta`` table under which they stand."""


class Scoring(msgspec.Struct, frozen=True, kw_only=True):
    """One time that a run was scored again.

    Attributes:
        reward: What the reward is called, with its options.
        before: What that was called which the run was scored by until then; None for none.
        accuracy: The run's accuracy until then.
        at: When it was begun, in seconds since 1970.
        trunkline: The version of this package that did it.
        done: Tasks that are scored by it, of those of which something has grown, in their order.
        finished: Whether these are all.
    """

    reward: str
    before: str | None
    accuracy: Estimate | None
    at: float
    trunkline: str
    done: int = 0
    finished: bool = False


def scorings(meta: Mapping[str, str]) -> list[Scoring]:
    """The times that a run was scored again, by its table ``meta``, in their order; none where that cannot be read."""
    try:
        return msgspec.json.decode(meta.get(SCORINGS, "[]"), type=list[Scoring])
    except (msgspec.MsgspecError, UnicodeError):
        return []


def under_way(meta: Mapping[str, str]) -> Scoring | None:
    """The scoring that was begun and is not finished, if there is one: the run's rewards are of two kinds meanwhile."""
    known = scorings(meta)
    return known[-1] if known and not known[-1].finished else None


def reward_of(known: Sequence[Scoring], before: str | None, place: int) -> str | None:
    """What the reward is called that a task is scored by.

    Args:
        known: The times that the run was scored again.
        before: What the run's settings say.
        place: The place of the task among those of which something has grown.
    """
    if not known or known[-1].finished or place < known[-1].done:
        return before
    return reward_of(known[:-1], known[-1].before, place)
