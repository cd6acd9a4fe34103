"""The garbage collector of a process in which rollouts grow: thousands of them are millions of objects that stay."""

from __future__ import annotations

import gc
import threading
from typing import Final

__all__ = ["Collector", "collector"]

_RELAXED: Final = (50_000, 20, 50)
"""Thresholds while rollouts grow. With Python's own a row-step of 4,096 rows costs about twice as much: what lives is
walked again and again, and nothing is found."""


class Collector:
    """Lets the collector look less often while runs are played here, in however many threads.

    One that is switched off, or looks less often already, is left alone.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._runs = 0
        self._before: tuple[int, int, int] | None = None
        self._meanwhile: tuple[int, int, int] | None = None

    def relax(self) -> None:
        """A run begins."""
        with self._guard:
            self._runs += 1
            found = gc.get_threshold()
            if self._runs == 1 and 0 < found[0] < _RELAXED[0]:
                gc.set_threshold(*map(max, found, _RELAXED))
                # Some versions of Python have no third threshold, and say 0 whatever it is set to.
                self._before, self._meanwhile = found, gc.get_threshold()

    def restore(self) -> None:
        """A run has ended; after the last one everything is as before, unless somebody else has changed it."""
        with self._guard:
            self._runs -= 1
            if not self._runs and self._before is not None:
                if gc.get_threshold() == self._meanwhile:
                    gc.set_threshold(*self._before)
                self._before = None


collector: Final = Collector()
"""That of this process."""
