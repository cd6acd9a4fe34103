"""Replay: a program that runs again is given what is on record, in the order of the record, until there is no more.

What a program does at the same time ends in the order in which it began, one at a time: whatever comes of one thing is
done before the next one ends. So a program that awaits nothing but its rollout does the same things in the same order,
whoever answers first.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Final, Self

from trunkline.errors import ReplayDiverged
from trunkline.llm.text import excerpt, without_secrets
from trunkline.rollout.ticks import after

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trunkline.rollout.journal import Record

__all__ = ["Place", "Replay", "difference", "shown"]

PATIENCE: Final = 1.0
"""Seconds without any progress after which a program that is run again has not come to what its record has next."""

_BEFORE: Final = 30
"""Characters that are shown of two texts before the first difference."""


class Place:
    """The place in line of one thing that a program does.

    Args:
        line: The line.
        kind: What is done.
        key: Which one of its kind.
        nth: How many of the same the program had begun before.
        number: Where in the record it stands; None where it is new.

    Attributes:
        alone: Whether nobody else stood in line, from its beginning to its end.
        joins: Whether a turn that was asked for before it had not ended when it began.
        data: What the record is to say of it should it be given up.
        woken: What it waits for.
        waits: Whether that is for others to leave the line.
    """

    __slots__ = ("_line", "alone", "data", "joins", "key", "kind", "nth", "number", "waits", "woken")

    def __init__(self, line: Replay, kind: str, key: str, nth: int, number: int | None) -> None:
        self._line = line
        self.kind = kind
        self.key = key
        self.nth = nth
        self.number = number
        self.alone = False
        self.joins = False
        self.data: Sequence[object] = ()
        self.waits = False
        self.woken: asyncio.Future[None] | None = None

    @property
    def record(self) -> Record | None:
        """What is on record for it."""
        return None if self.number is None else self._line.records[self.number]

    @property
    def name(self) -> str:
        """What to call it in a message."""
        return f"{self.kind} {self.key}".rstrip()

    def __enter__(self) -> Self:
        self._line.enter(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._line.leave(self, given_up=kind is not None and issubclass(kind, asyncio.CancelledError))


class Replay:
    """The records of a program that are still to come, and the line of what it does.

    Args:
        records: What is on record, from the program's beginning.
        passed: Called when something on record has been given out.
        gave_up: Called when the program gives up something new.
    """

    def __init__(self, records: Sequence[Record], passed: Callable[[], None], gave_up: Callable[[Place], None]) -> None:
        self.records = [record for record in records if record.kind != "now"]
        self._numbers = {(one.kind, one.key, one.nth): number for number, one in enumerate(self.records)}
        self._times = deque(record for record in records if record.kind == "now")
        self._begun: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._passed = passed
        self._gave_up = gave_up
        self._done = 0
        self._left: set[int] = set()
        # Those in line: on record by number, new ones in the order of their calls, and which of these have not begun.
        self._known: dict[int, Place] = {}
        self._new: dict[Place, None] = {}
        self._waiting: dict[Place, None] = {}
        self._moves = 0
        self._watch: asyncio.TimerHandle | None = None

    @property
    def over(self) -> bool:
        """Whether nothing is left on record: what is done now is new."""
        return self._done == len(self.records)

    @property
    def next(self) -> Record | None:
        """What the record has next."""
        return None if self.over else self.records[self._done]

    def time(self) -> Record | None:
        """Return the next time of day on record, which waits for nobody."""
        return self._times.popleft() if self._times else None

    def place(self, kind: str, key: str) -> Place:
        """Return the place of the next thing of a kind that is done; it is entered by ``with``."""
        nth = self._begun[kind, key]
        self._begun[kind, key] = nth + 1
        return Place(self, kind, key, nth, self._numbers.get((kind, key, nth)))

    def enter(self, place: Place) -> None:
        """Stand in line."""
        place.alone = not self._known and not self._new
        place.joins = any(other.kind == "ask" for line in (self._known.values(), self._new) for other in line)
        if place.number is None:
            self._new[place] = self._waiting[place] = None
        else:
            self._known[place.number] = place
        self._moves += 1

    def leave(self, place: Place, *, given_up: bool) -> None:
        """Leave the line, and let the next one go on."""
        self._moves += 1
        if place.number is None:
            del self._new[place]
            self._waiting.pop(place, None)
            if given_up:
                self._gave_up(place)
        else:
            del self._known[place.number]
            self._left.add(place.number)
            while self._done in self._left:
                self._left.discard(self._done)
                self._done += 1
            self._passed()
        if self._known or self._new:
            self._next()

    async def caught_up(self, place: Place) -> None:
        """Wait until everything on record has been given out, and what is new and came before has begun.

        Raises:
            ReplayDiverged: The program does not come to what the record has next.
        """
        while not (self.over and next(iter(self._waiting)) is place):
            await self._sleep(place)
        del self._waiting[place]
        self._next()

    async def turn(self, place: Place) -> None:
        """Wait until everything before it has ended, and the program has done what it does upon that.

        Raises:
            ReplayDiverged: The program does not come to what the record has next.
        """
        while not self._first(place):
            await self._sleep(place)
        record = place.record
        if record is not None and record.alone and place.alone and len(self._known) == 1 and not self._new:
            # Nobody else was in line then, so nobody is on the way to it now.
            await asyncio.sleep(0)
            return
        place.woken = asyncio.get_running_loop().create_future()
        if record is None or not record.given_up:
            after(place.woken)
        await place.woken
        place.alone = place.alone and len(self._new) == 1

    def _first(self, place: Place) -> bool:
        if place.number is not None:
            return place.number == self._done
        return self.over and next(iter(self._new)) is place

    async def _sleep(self, place: Place) -> None:
        """Wait until it may be its turn; nobody waits forever for what a record has and a program does not do."""
        loop = asyncio.get_running_loop()
        place.woken, place.waits = loop.create_future(), True
        if self._watch is None and not self.over:
            self._watch = loop.call_later(PATIENCE, self._look, loop, self._moves)
        try:
            await place.woken
        finally:
            place.waits = False

    def _next(self) -> None:
        """Wake whoever may go on."""
        if not self.over:
            _wake(self._known.get(self._done))
            return
        for line in (self._waiting, self._new):
            _wake(next(iter(line), None))

    def _look(self, loop: asyncio.AbstractEventLoop, moves: int) -> None:
        """See whether the program has done anything lately; in a busy loop it gets its turns before it is judged."""
        self._watch = None
        if self.over:
            return
        # What was given up takes as long as it took then.
        if moves == self._moves and self._done not in self._known:
            judge = loop.create_future()
            judge.add_done_callback(lambda _: self._judge(moves))
            after(judge)
        self._watch = loop.call_later(PATIENCE, self._look, loop, self._moves)

    def _judge(self, moves: int) -> None:
        """End a program that has come to something else than what its record has next."""
        if self.next is None or moves != self._moves:
            return
        for place in (*self._known.values(), *self._new):
            if place.waits and place.woken is not None and not place.woken.done():
                what = f"comes to {shown(place.name)}, where its record goes on with {shown(self.next.name)}"
                place.woken.set_exception(ReplayDiverged(f"the program, run again, {what}"))
                return

    def close(self) -> None:
        """Give up whoever still waits."""
        if self._watch is not None:
            self._watch.cancel()
        for place in (*self._known.values(), *self._new):
            if place.woken is not None:
                place.woken.cancel()


def _wake(place: Place | None) -> None:
    if place is not None and place.waits and place.woken is not None and not place.woken.done():
        place.woken.set_result(None)


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
