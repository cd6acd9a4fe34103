"""The pulse of the workers: who answers, and who has not for too long."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["BEAT", "Pulse"]

logger = logging.getLogger(__name__)

BEAT = 1.0
"""Seconds between two pings."""

WARN = 5.0
HUNG = 30.0
"""Seconds of silence until a worker is warned of, and until it is ended."""


class Pulse:
    """Counts for each worker how many beats ago it was heard.

    In beats of the controller and not by a clock: when the controller itself was stopped for a minute, nobody is dead.
    """

    def __init__(self) -> None:
        self._silent: dict[int, int] = {}

    @property
    def silent(self) -> dict[int, float]:
        """Seconds since each worker was heard that has not answered the last ping."""
        # The first ping was sent a beat before anybody could have answered it.
        return {seat: (beats - 1) * BEAT for seat, beats in self._silent.items() if beats > 1}

    def heard(self, seat: int) -> None:
        """Note that a worker said something."""
        self._silent.pop(seat, None)

    def gone(self, seat: int) -> None:
        """Forget a worker."""
        self._silent.pop(seat, None)

    def beat(self, seats: Iterable[int]) -> dict[int, float]:
        """Let a beat pass.

        Args:
            seats: The workers that are asked for an answer now.

        Returns:
            Those that hang, each with its seconds of silence.
        """
        hung = {}
        for seat in seats:
            silent = self._silent[seat] = self._silent.get(seat, 0) + 1
            # The first ping was sent a beat before anybody could have answered it.
            since = (silent - 1) * BEAT
            if since >= HUNG:
                hung[seat] = since
            elif WARN <= since < WARN + BEAT:
                logger.warning("worker %d has not answered for %.0f s: something blocks its event loop", seat, since)
        return hung
