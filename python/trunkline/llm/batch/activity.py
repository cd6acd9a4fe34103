"""Rollouts of an event loop by activity: running, asking, in a tool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trunkline._core import ActivityCounter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_RUNS, _ASKS, _AWAY, _ENDED = range(4)


class Activity:
    """Counts the growing rollouts of one event loop: running, asking, or away in a tool.

    With ``llms``, the activities of several LLMs by name, each of them is told of every rollout.
    """

    __slots__ = ("_counter", "_llms", "_still")

    def __init__(
        self, still: Callable[[], None] = lambda: None, *, core: bool = True, llms: Mapping[str, Activity] | None = None
    ) -> None:
        self._counter = ActivityCounter() if core else MaskActivityCounter()
        self._still = still
        self._llms = dict(llms or {})

    def open(self) -> RolloutActivity:
        lanes = {name: activity.open() for name, activity in self._llms.items()}
        return RolloutActivity(self._counter, self._still, lanes)

    @property
    def running(self) -> int:
        """Rollouts between a reply and their next request, which comes soon."""
        return self._counter.running

    @property
    def asking(self) -> int:
        """Rollouts that wait for a reply, or for permission to ask."""
        return self._counter.asking

    @property
    def away(self) -> int:
        """Rollouts in a tool, whose next request comes at an unknown time."""
        return self._counter.away


class UnreadActivity:
    """Takes the place of ``Activity`` and its rollouts where no LLM reads what rollouts do; counts nothing."""

    __slots__ = ()

    def open(self) -> UnreadActivity:
        return self

    def run(self) -> None: ...

    def ask(self, *llms: str) -> None: ...

    def leave(self) -> None: ...

    def end(self) -> None: ...


UNREAD: Final = UnreadActivity()


class RolloutActivity:
    """One growing rollout. Ending it is final; later calls have no effect."""

    __slots__ = ("_counter", "_lanes", "_number", "_still")

    def __init__(
        self,
        counter: ActivityCounter | MaskActivityCounter,
        still: Callable[[], None],
        lanes: Mapping[str, RolloutActivity],
    ) -> None:
        self._counter = counter
        self._still = still
        self._lanes = lanes
        self._number = counter.open()

    def run(self) -> None:
        self._counter.run(self._number)
        if self._lanes:
            for lane in self._lanes.values():
                lane.run()

    def ask(self, *llms: str) -> None:
        """The rollout waits for replies of these LLMs; to others it is away. Names do not matter where there is one."""
        if self._counter.ask(self._number):
            self._still()
        if self._lanes:
            for name, lane in self._lanes.items():
                if name in llms:
                    lane.ask()
                else:
                    lane.leave()

    def leave(self) -> None:
        if self._counter.leave(self._number):
            self._still()
        for lane in self._lanes.values():
            lane.leave()

    def end(self) -> None:
        if self._counter.end(self._number):
            self._still()
        for lane in self._lanes.values():
            lane.end()


class MaskActivityCounter:
    """The counter without the core: a byte per rollout, counted on demand."""

    __slots__ = ("_states",)

    def __init__(self) -> None:
        self._states = bytearray()

    def open(self) -> int:
        self._states.append(_RUNS)
        return len(self._states) - 1

    def run(self, lane: int) -> None:
        self._enter(lane, _RUNS)

    def ask(self, lane: int) -> bool:
        """The rollout waits. True if it was the last that ran."""
        return self._enter(lane, _ASKS) == _RUNS and not self.running

    def leave(self, lane: int) -> bool:
        """The rollout is in a tool. True if it was the last that ran."""
        return self._enter(lane, _AWAY) == _RUNS and not self.running

    def end(self, lane: int) -> bool:
        """The rollout is done. True if none runs now."""
        return self._enter(lane, _ENDED) != _ENDED and not self.running

    def _enter(self, lane: int, state: int) -> int:
        """Set the state of a rollout that has not ended, and return the earlier one; ``_ENDED`` if nothing changes."""
        before = self._states[lane]
        if before in (state, _ENDED):
            return _ENDED
        self._states[lane] = state
        return before

    @property
    def running(self) -> int:
        return self._states.count(_RUNS)

    @property
    def asking(self) -> int:
        return self._states.count(_ASKS)

    @property
    def away(self) -> int:
        return self._states.count(_AWAY)
