"""How many recorded tool calls ran again so that a rollout could begin where it forks: it stands in the rollout's note.

They are no calls of the rollout, which made none of them: no count of tool calls has them.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["noted", "replays"]

_NOTE: Final = re.compile(r"\btool calls replayed: (\d{1,9})\b")


def noted(count: int) -> str:
    """Return what to note on a rollout for which so many calls ran again."""
    return f"tool calls replayed: {count}"


def replays(note: str | None) -> int:
    """Return how many calls ran again, as a rollout's note says; others may have added to it."""
    found = _NOTE.search(note or "")
    return int(found[1]) if found else 0
