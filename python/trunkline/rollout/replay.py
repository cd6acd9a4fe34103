"""Replay: a program that runs again is given what is on record, in the order of the record, until there is no more.

What a program does at the same time ends in the order in which it began, one at a time: whatever comes of one thing is
done before the next one ends. So a program that awaits nothing but its rollout does the same things in the same order,
whoever answers first.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from trunkline.errors import ReplayDiverged
from trunkline.llm.text import excerpt, without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trunkline.rollout.journal import Record

__all__ = ["Place", "Replay", "difference"]

_TICKS: Final = 12
"""Turns of the event loop that a program has to come from one result to what it does next: a task that ends, and the
gather or group that waits for it, take three together."""

PATIENCE: Final = 1.0
"""Seconds that a program which is run again may take to come to what its record has next."""

_BEFORE: Final = 30
"""Characters that are shown of two texts before the first difference."""


class Place:
    """The place in line of one thing that a program does.

    Args:
        number: Where in the record it stands; None where it is new.

    Attributes:
        begun: Whether it has begun; only what is new begins at all.
        woken: What it waits for.
        waits: Whether that is for others to leave the line.
    """

    __slots__ = ("begun", "number", "waits", "woken")

    def __init__(self, number: int | None) -> None:
        self.number = number
        self.begun = number is not None
        self.waits = False
        self.woken: asyncio.Future[None] | None = None


class Replay:
    """The records of a program that are still to come, and the line of what it does.

    Args:
        records: What is on record, from the program's beginning.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = [record for record in records if record.kind != "now"]
        self._found: dict[tuple[str, str], deque[int]] = defaultdict(deque)
        for number, record in enumerate(self._records):
            self._found[record.kind, record.key].append(number)
        self._times = deque(record for record in records if record.kind == "now")
        self._done = 0
        self._line: dict[Place, None] = {}

    @property
    def over(self) -> bool:
        """Whether nothing is left on record: what is done now is new."""
        return self._done == len(self._records)

    @property
    def next(self) -> Record | None:
        """What the record has next."""
        return None if self.over else self._records[self._done]

    def time(self) -> Record | None:
        """Return the next time of day on record, which waits for nobody."""
        return self._times.popleft() if self._times else None

    def find(self, kind: str, key: str) -> tuple[int, Record] | None:
        """Return the record of the next thing of a kind that is done; None where it is new."""
        numbers = self._found[kind, key]
        if not numbers:
            return None
        number = numbers.popleft()
        return number, self._records[number]

    @contextmanager
    def enter(self, number: int | None = None) -> Iterator[Place]:
        """Stand in line.

        Args:
            number: Where in the record it stands; None where it is new.
        """
        place = Place(number)
        self._line[place] = None
        try:
            yield place
        finally:
            del self._line[place]
            if number is not None and number == self._done:
                self._done += 1
            self._wake()

    async def caught_up(self, place: Place, what: str) -> None:
        """Wait until everything on record has been given out, and what is new and came before has begun.

        Raises:
            ReplayDiverged: The program does not come to what the record has next.
        """
        while not (self.over and next(other for other in self._line if not other.begun) is place):
            await self._sleep(place, what)
        place.begun = True
        self._wake()

    async def turn(self, place: Place, what: str) -> None:
        """Wait until everything before it has ended, and the program has done what it does upon that.

        Raises:
            ReplayDiverged: The program does not come to what the record has next.
        """
        while not self._first(place):
            await self._sleep(place, what)
        loop = asyncio.get_running_loop()
        place.woken = loop.create_future()
        _after(_TICKS, loop, place.woken)
        await place.woken

    def _first(self, place: Place) -> bool:
        if place.number is not None:
            return place.number == self._done
        return self.over and next(other for other in self._line if other.number is None) is place

    async def _sleep(self, place: Place, what: str) -> None:
        """Wait until somebody left the line; nobody waits long for what a record has and a program does not do."""
        place.woken, place.waits = asyncio.get_running_loop().create_future(), True
        try:
            async with asyncio.timeout(None if self.over else PATIENCE):
                await place.woken
        except TimeoutError:
            waiting = self.next
            raise ReplayDiverged(
                f"the program, run again, comes to {shown(what)}, where its record goes on with "
                f"{shown(waiting.name if waiting else 'its end')}"
            ) from None
        finally:
            place.waits = False

    def close(self) -> None:
        """Give up whoever still waits."""
        for place in self._line:
            if place.woken is not None:
                place.woken.cancel()

    def _wake(self) -> None:
        for place in self._line:
            if place.waits and place.woken is not None and not place.woken.done():
                place.woken.set_result(None)


def _after(ticks: int, loop: asyncio.AbstractEventLoop, turn: asyncio.Future[None]) -> None:
    """Give somebody its turn after so many turns of the event loop; a task that slept for each would cost far more."""
    if ticks:
        loop.call_soon(_after, ticks - 1, loop, turn)
    elif not turn.done():
        turn.set_result(None)


def shown(text: str) -> str:
    """A name that may be anybody's, as a message may show it."""
    return f"'{without_secrets(excerpt(text, 80))}'"


def difference(was: bytes | str, now: bytes | str) -> str:
    """Show a recorded text and another one where they begin to differ."""
    one, two = (text.decode("utf-8", "replace") if isinstance(text, bytes) else text for text in (was, now))
    same = next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    start = max(0, same - _BEFORE)
    before, after = (without_secrets(excerpt(text[start : start + 300], 120)) for text in (one, two))
    return f"'{after}' where the record has '{before}' (from character {start})"
