"""The way into one endpoint: who is in, and who waits."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trunkline.llm.quota import Quota
    from trunkline.llm.window import Window

__all__ = ["Gate"]


class Gate:
    """The way into one endpoint.

    Args:
        window: How much may be in flight.
        quota: The endpoint's own rates, as far as it told them.

    Attributes:
        in_flight: Requests let in and not back yet.
        ahead: Requests, 0 or 1, whose rates are booked but that are not in yet.
        tokens: What all these are booked for, where rates count tokens.
        waiting: Requests that wait to be let in.
        closed: Whether nobody is let in, and who waits leaves.
        urgent: Whether one request, a probe, passes a full window and a closed gate.
        row: Who waits for a slot and has all else, with the numbers they drew when they came.
        slots: The most that may be in flight, however large the window is; see :mod:`.tenant`.
        owed: How many of these slots are lost as soon as requests come back.
        back: How many were lost so, until somebody asks.
    """

    __slots__ = (
        "ahead",
        "back",
        "closed",
        "in_flight",
        "owed",
        "quota",
        "row",
        "slots",
        "tokens",
        "turn",
        "urgent",
        "waiting",
        "window",
    )

    def __init__(self, window: Window, quota: Quota) -> None:
        self.window = window
        self.quota = quota
        self.in_flight = self.ahead = self.tokens = self.waiting = 0
        self.closed = self.urgent = False
        self.row: deque[tuple[int, asyncio.Future[bool]]] = deque()
        # Held by the one request that is getting its rates; an asyncio.Lock is first come, first served.
        self.turn = asyncio.Lock()
        self.slots = sys.maxsize
        self.owed = self.back = 0

    def close(self) -> None:
        """Let nobody in, and send away who waits."""
        self.closed = True
        for _, parked in self.row:
            if not parked.done():
                parked.set_result(False)
        self.row.clear()

    def first(self) -> int | None:
        """The number of the first in the row, if there is one who still waits."""
        while self.row and self.row[0][1].done():
            self.row.popleft()
        return self.row[0][0] if self.row else None

    def lacking(self) -> int:
        """Slots that those who wait could use at once, as far as the window lets them in; 0 if rates hold them up."""
        if self.first() is None:
            return 0
        window = self.window
        if window.size >= window.cap:
            return self.waiting
        return min(self.waiting, max(int(self.urgent), int(window.size) - self.in_flight))
