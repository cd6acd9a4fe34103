"""Restarts: when a worker is started in the place of one that died, and when its place is given up."""

from __future__ import annotations

__all__ = ["Restarts"]

_MOST = 5
"""Workers of one place that may die in a row without having got anywhere."""

_FIRST = 0.1
_LONGEST = 5.0
"""Seconds before a place is filled again that was filled in vain; twice as long each time."""


class Restarts:
    """Decides place by place, as a supervisor does that restarts one for one."""

    def __init__(self) -> None:
        self._vain: dict[int, int] = {}

    def began(self, seat: int, instead: int | None = None) -> None:
        """Note that a worker was started, ``instead`` of one that is gone."""
        self._vain[seat] = 0 if instead is None else self._vain.pop(instead, 0)

    def knows(self, seat: int) -> bool:
        """Whether a worker has a place."""
        return seat in self._vain

    def progress(self, seat: int) -> None:
        """Note that something a worker made is in the run file."""
        if seat in self._vain:
            self._vain[seat] = 0

    def died(self, seat: int, *, known: bool = False) -> float | None:
        """Note that a worker died, or could not be started.

        Args:
            seat: The worker, or the one whose place it was to take.
            known: Whether one of its tasks is suspected anyway: then its place is not at fault.

        Returns:
            Seconds until another is to be started; None when its place is given up.
        """
        if known:
            return 0.0
        vain = self._vain[seat] = self._vain[seat] + 1
        if vain >= _MOST:
            del self._vain[seat]
            return None
        return min(_LONGEST, _FIRST * 2 ** (vain - 2)) if vain > 1 else 0.0
