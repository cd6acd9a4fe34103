"""How many recorded tool calls ran again so that a rollout could begin where it forks: it stands in the rollout's note.

They are no calls of the rollout, which made none of them: no count of tool calls has them.
"""

from __future__ import annotations

import re
from typing import Final

from trunkline.score.verdicts import entries

__all__ = ["noted", "replays"]

_NOTE: Final = re.compile(r"tool calls replayed: (\d{1,9})", re.ASCII)


def noted(count: int) -> str:
    """Return what to add to the note of a rollout for which so many calls ran again."""
    return f"tool calls replayed: {count}"


def replays(note: str | None) -> int:
    """Return how many calls ran again, as a rollout's note says: of one that was gone on with, each time."""
    said = (_NOTE.fullmatch(entry) for entry in entries(note) if isinstance(entry, str))
    return sum(int(found[1]) for found in said if found)
