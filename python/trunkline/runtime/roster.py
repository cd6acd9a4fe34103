"""The roster: which engines there are, what each has taken on, and how much more it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Roster"]


class _Place(msgspec.Struct):
    """One engine.

    Attributes:
        up: Whether it has said that it is ready.
        credits: How many more tasks it takes.
        tasks: What it has taken on and not finished.
    """

    up: bool = False
    credits: int = 0
    tasks: set[int] = msgspec.field(default_factory=set)


class Roster:
    """The engines of a run that are alive, by their seats."""

    def __init__(self) -> None:
        self._places: dict[int, _Place] = {}

    def __iter__(self) -> Iterator[int]:
        """Yield the seats."""
        return iter(list(self._places))

    def __bool__(self) -> bool:
        """Whether any engine is alive."""
        return bool(self._places)

    @property
    def starting(self) -> list[int]:
        """Engines that are not up yet."""
        return [seat for seat, place in self._places.items() if not place.up]

    @property
    def up(self) -> int:
        """How many engines are up."""
        return sum(place.up for place in self._places.values())

    @property
    def busy(self) -> bool:
        """Whether an engine has a task."""
        return any(place.tasks for place in self._places.values())

    def add(self, seat: int) -> None:
        """Note an engine that was started."""
        self._places[seat] = _Place()

    def ready(self, seat: int, slots: int) -> None:
        """Note that an engine is up, and how many tasks it takes at a time."""
        place = self._places[seat]
        place.up, place.credits = True, slots

    def is_up(self, seat: int) -> bool:
        """Whether an engine is there and up."""
        place = self._places.get(seat)
        return place is not None and place.up

    def freest(self) -> int | None:
        """The engine that takes the most more tasks; None if none takes any."""
        free = [(place.credits, -seat) for seat, place in self._places.items() if place.up and place.credits > 0]
        return -max(free)[1] if free else None

    def take(self, seat: int, task: int) -> None:
        """Note that an engine was given a task."""
        place = self._places[seat]
        place.credits -= 1
        place.tasks.add(task)

    def done(self, seat: int, task: int) -> None:
        """Note that an engine has finished a task."""
        place = self._places[seat]
        place.credits += 1
        place.tasks.discard(task)

    def gone(self, seat: int) -> list[int]:
        """Strike an engine off; returns the tasks it had not finished."""
        place = self._places.pop(seat, None)
        return [] if place is None else sorted(place.tasks)
