"""What rollouts are doing, as far as one must know who waits for company: do they run, ask, or are they away?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Lane", "Lanes"]

_RUNS: Final = 0
_ASKS: Final = 1
_AWAY: Final = 2
_ENDED: Final = 3


class Lanes:
    """Counts the growing rollouts of one event loop by what they do.

    Args:
        still: Called whenever the last lane that ran does not run any more, and when a lane that was away ends.
    """

    __slots__ = ("_counts", "_still")

    def __init__(self, still: Callable[[], None] = lambda: None) -> None:
        self._counts = [0, 0, 0, 0]
        self._still = still

    def open(self) -> Lane:
        """Add a rollout; it runs."""
        return Lane(self._counts, self._still)

    @property
    def running(self) -> int:
        """Rollouts between a reply and their next request: they ask, leave or end by themselves, and soon."""
        return self._counts[_RUNS]

    @property
    def asking(self) -> int:
        """Rollouts that wait for a reply, or until they may ask."""
        return self._counts[_ASKS]

    @property
    def away(self) -> int:
        """Rollouts in a tool: they will ask again, nobody knows when."""
        return self._counts[_AWAY]


class Lane:
    """One rollout while it grows. Ending it is final and may be repeated; after that nothing else has an effect.

    Args:
        counts: Lanes of each state; this one is added.
        still: See :class:`Lanes`.
    """

    __slots__ = ("_counts", "_state", "_still")

    def __init__(self, counts: list[int], still: Callable[[], None]) -> None:
        self._counts = counts
        self._still = still
        self._state = _RUNS
        counts[_RUNS] += 1

    def run(self) -> None:
        """It goes on."""
        self._enter(_RUNS)

    def ask(self, *_llms: str) -> None:
        """It waits for replies, of whichever LLMs: there is one."""
        self._enter(_ASKS)

    def leave(self) -> None:
        """It is in a tool."""
        self._enter(_AWAY)

    def end(self) -> None:
        """It will not ask again."""
        self._enter(_ENDED)

    def _enter(self, state: int) -> None:
        counts, before = self._counts, self._state
        if before in (state, _ENDED):
            return
        counts[before] -= 1
        counts[state] += 1
        self._state = state
        if not counts[_RUNS] and (before == _RUNS or state == _ENDED):
            self._still()
