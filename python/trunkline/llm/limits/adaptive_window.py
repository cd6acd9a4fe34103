"""How many requests may be in flight at one endpoint: fewer after trouble, slowly more after it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

CUT: Final = 0.7
"""What a burst of 429s, or a slowdown, leaves of the window."""

HOLD: Final = 5.0
"""Seconds after a cut that count as the same burst, and in which the window does not grow."""

RECOVERY: Final = 50.0
"""Seconds in which a window grows from nothing to its cap, so that after any cut 90 % are back within a minute."""

_FLOOR: Final = 0.25
"""Part of its cap below which a slowdown alone does not narrow a window: the work may have become harder."""

_QUICK: Final = 1.0
"""Seconds up to which no reply counts as slow."""

_SETTLED: Final = 16
"""Replies after which the average time for a token is used."""

_DRIFT: Final = 1024
"""Replies over which the best average follows a workload that has become slower for good."""

FIRST: Final = 4
"""Requests at once until one was served, so that a wrong key or URL is not sent hundreds of times."""

_OFFSET: Final = 32
"""Tokens that a prompt counts as: a reply of one token is not thirty times as slow as one of thirty."""


class Window:
    """Additive increase, multiplicative decrease of the requests in flight (Chiu and Jain 1989).

    It shrinks once per burst of 429s, however many answers the burst has, and when replies take ``slowdown`` times as
    long for a token as the endpoint's best moving average. It grows by a constant rate in time, so that recovery takes
    as long for an endpoint with ten-second replies as for a fast one. After an outage it starts from one request and
    grows with each reply up to half of what it was (slow start). Between ``begin`` and ``open`` it is
    ``narrow``.
    """

    def __init__(self, cap: int, *, adaptive: bool = True, slowdown: float = 5.0) -> None:
        self.cap = cap
        self.size = float(cap)
        self.narrow = False
        self.adaptive = adaptive
        self._slowdown = slowdown
        self._cut = -math.inf
        self._grown = -math.inf
        self._restart = 0.0
        self._replies = 0
        self._mean = self._best = 0.0

    def begin(self) -> None:
        if self.cap > FIRST:
            self.size, self.narrow, self._grown = float(FIRST), True, math.inf
            # These few replies are no measure of the pace under load.
            self._replies = -FIRST

    def open(self) -> None:
        if self.narrow:
            self.size, self.narrow, self._grown = float(self.cap), False, -math.inf

    def resize(self, cap: int) -> None:
        """Change the cap; a window that nothing has narrowed stays as large as its cap."""
        whole = self.size >= self.cap
        self.cap = cap
        self.size = float(cap) if whole else min(self.size, float(cap))

    def grow(self, now: float) -> None:
        """Grow for the time that has passed; for windows below their cap."""
        if now > self._grown:
            self.size = min(float(self.cap), self.size + (now - self._grown) * self.cap / RECOVERY)
            self._grown = now

    def refused(self, begun: float, now: float) -> None:
        """Note a 429 of a request that was sent at ``begun``, by the same clock as ``now``."""
        if begun >= self._cut + HOLD:
            self._shrink(now, 1.0)
        elif self.adaptive:
            self._grown = max(self._grown, now + HOLD)

    def replied(self, replies: Iterable[tuple[float, int]], in_flight: int, now: float) -> None:
        """Note replies that came together: their seconds and tokens, and the requests in flight with the first one."""
        if not self.adaptive:
            return
        if self._grown == math.inf:
            self._grown = now
        for took, generated in replies:
            if self.size < self._restart:
                self.size += 1.0
            pace = took / (generated + _OFFSET)
            if self._replies >= _SETTLED:
                best, mean = self._best, self._mean
                mean += (pace - mean) / _SETTLED
                # The window can be the cause only where it is in use.
                used = took > _QUICK and 2 * in_flight >= self.size
                if used and mean > self._slowdown * best and now >= self._cut + HOLD:
                    self._shrink(now, self.cap * _FLOOR)
                self._mean, self._best = mean, mean if mean < best else best + (mean - best) / _DRIFT
            else:
                self._replies += 1
                if self._replies > 0:
                    self._mean += (pace - self._mean) / self._replies
                    self._best = self._mean
            in_flight -= 1

    def restart(self) -> None:
        self.open()
        if self.adaptive:
            self._restart = self.size / 2
            self.size = 1.0
            self._grown = math.inf

    def _shrink(self, now: float, floor: float) -> None:
        self.open()
        if self.adaptive:
            self.size = max(1.0, min(self.size, floor), self.size * CUT)
            self._restart = 0.0
            self._cut = now
            self._grown = now + HOLD
