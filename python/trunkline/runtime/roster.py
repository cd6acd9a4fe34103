"""The roster: which engines there are, what each has taken on, and how much more it takes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Roster"]


class _Place(msgspec.Struct):
    """One engine.

    Attributes:
        since: When it was started, in seconds of the monotonic clock.
        up: Whether it has said that it is ready.
        least: How many tasks it takes at a time, whatever it holds.
        slots: How many tasks it takes at a time now.
        tasks: What it has taken on and not finished.
        retired: Whether it is given nothing any more.
    """

    since: float
    up: bool = False
    least: int = 0
    slots: int = 0
    tasks: set[int] = msgspec.field(default_factory=set)
    retired: bool = False

    @property
    def credits(self) -> int:
        """How many more tasks it takes."""
        return self.slots - len(self.tasks) if self.up and not self.retired else 0


class Roster:
    """The engines of a run that are alive, by their seats."""

    def __init__(self) -> None:
        self._places: dict[int, _Place] = {}
        self._gone: set[int] = set()

    def __iter__(self) -> Iterator[int]:
        """Yield the seats."""
        return iter(list(self._places))

    def __bool__(self) -> bool:
        """Whether any engine is alive."""
        return bool(self._places)

    @property
    def starting(self) -> dict[int, float]:
        """Engines that are not up yet, each with when it was started."""
        return {seat: place.since for seat, place in self._places.items() if not place.up}

    @property
    def ready(self) -> list[int]:
        """Engines that are up."""
        return [seat for seat, place in self._places.items() if place.up]

    @property
    def busy(self) -> bool:
        """Whether an engine has a task."""
        return any(place.tasks for place in self._places.values())

    def add(self, seat: int) -> None:
        """Note an engine that was started."""
        if seat not in self._places and seat not in self._gone:
            self._places[seat] = _Place(time.monotonic())

    def came_up(self, seat: int, slots: int) -> None:
        """Note that an engine is up, and how many tasks it takes at a time."""
        self.add(seat)
        place = self._places[seat]
        place.up, place.least, place.slots = True, slots, slots

    def resize(self, seat: int, slots: int) -> None:
        """Note that an engine takes so many tasks at a time from now on, but no fewer than it said at first."""
        place = self._places[seat]
        place.slots = max(place.least, slots)

    def is_up(self, seat: int) -> bool:
        """Whether an engine is there and up."""
        place = self._places.get(seat)
        return place is not None and place.up

    def is_gone(self, seat: int) -> bool:
        """Whether there was such an engine, and is no more."""
        return seat in self._gone

    def tasks(self, seat: int) -> list[int]:
        """What an engine has taken on and not finished."""
        place = self._places.get(seat)
        return [] if place is None else sorted(place.tasks)

    def slots(self, seat: int) -> int:
        """How many tasks an engine takes at a time."""
        return self._places[seat].slots

    def freest(self, admits: Callable[[int], bool]) -> int | None:
        """The engine that takes the most more tasks, of those that are admitted; None if none takes any."""
        free = [(place.credits, -seat) for seat, place in self._places.items() if place.credits > 0 and admits(seat)]
        return -max(free)[1] if free else None

    def quietest(self) -> int | None:
        """The engine that has the fewest tasks, of those that are given any."""
        quiet = [(len(place.tasks), seat) for seat, place in self._places.items() if place.up and not place.retired]
        return min(quiet)[1] if quiet else None

    def take(self, seat: int, task: int) -> None:
        """Note that an engine was given a task."""
        self._places[seat].tasks.add(task)

    def done(self, seat: int, task: int) -> None:
        """Note that an engine has finished a task."""
        self._places[seat].tasks.discard(task)

    def retire(self, seat: int) -> bool:
        """Give an engine nothing any more; returns whether that is new."""
        place = self._places.get(seat)
        if place is None or place.retired:
            return False
        place.retired = True
        return True

    def idle(self) -> list[int]:
        """Engines that are given nothing any more and have nothing left."""
        return [seat for seat, place in self._places.items() if place.retired and not place.tasks]

    def gone(self, seat: int) -> None:
        """Strike an engine off."""
        self._places.pop(seat, None)
        self._gone.add(seat)
