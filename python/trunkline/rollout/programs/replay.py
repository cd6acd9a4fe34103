"""Journal and deterministic replay.

What a program does at the same time ends in the order in which it began, one at a time: whatever comes of one thing is
done before the next one ends. So a program that awaits nothing but its rollout does the same things in the same order,
whoever answers first.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import threading
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import msgspec

from trunkline import errors
from trunkline._core import MESSAGE
from trunkline._internal.text import excerpt, format_error, from_difference, without_secrets
from trunkline.errors import LLMError, ProgramError, ReplayDiverged
from trunkline.rollout.types import Finished
from trunkline.tree.records import Failure, How, Record, Records

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from trunkline.rollout.programs.executor import ProgramExecutor
    from trunkline.rollout.rollout import Rollout


__all__ = [
    "How",
    "Journal",
    "Record",
    "Replay",
    "ReplaySlot",
    "ReplayState",
    "after",
    "as_json",
    "difference",
    "failed",
    "shown",
]


class Journal(Records):
    """Reads and writes the records of a tree. What is written is read once somebody asks.

    Args:
        core: The tree.
    """

    def own(self, rollout: int) -> list[Record]:
        """What a rollout's program did itself, in order."""
        self.read()
        return super().own(rollout)

    def of(self, rollout: int) -> list[Record]:
        """What is on record for a rollout's program from its very beginning, the parts of others included."""
        self.read()
        return super().of(rollout)

    def write(self, record: Record) -> None:
        """Write a record, in the step in which its nodes were appended. Turns come with theirs: ``PendingTurn``."""
        rollout, kind, key, nth, data, nodes, how = record
        entry = (rollout, nth, kind, key, nodes, data, how)
        self._core.mark(msgspec.json.encode({"record": entry}).decode())

    def opened(self, rollout: int) -> None:
        """Note whose records a rollout begins with, in the step in which it is opened.

        These are the records of the one that first came to the state it grows from, until another node was appended
        there. A rollout that grows from the prompt begins with none.
        """
        facts = self._core.rollout(rollout)
        before = set(self._core.path(facts.point))
        source = self._source(rollout, facts.path[:-2], before)
        if source is None:
            return
        own = self.own(source)
        count = next((place for place, record in enumerate(own) if not before.issuperset(record.nodes)), len(own))
        self._core.mark(msgspec.json.encode({"forked": (rollout, source, count)}).decode())

    def _source(self, rollout: int, trunk: Sequence[int], before: set[int]) -> int | None:
        """Who first came to where a rollout grows from; None at the prompt, where nobody has done anything."""
        core = self._core
        if trunk:
            return next(number for number in range(rollout) if core.rollout(number).path == trunk)
        if all(core.node(node).kind != MESSAGE for node in before):
            return None
        # Before any turn, a program has appended messages.
        who = (one for one in range(rollout) for record in self.own(one) if not before.isdisjoint(record.nodes))
        return next(who, None)


_TICKS: Final = 12
"""Turns of the event loop that a program has to come from one result to what it does next: a task that ends, and the
gather or group that waits for it, take three together."""


def after(waiting: asyncio.Future[None]) -> None:
    """Let a future of the running loop come true after a dozen turns of that loop.

    A task that slept for each turn would cost far more, and so would a callback in each turn for each who waits.
    """
    loop = asyncio.get_running_loop()
    clock: _LoopTurns | None = getattr(_here, "clock", None)
    if clock is None or clock.loop is not loop:
        clock = _here.clock = _LoopTurns(loop)
    clock.add(waiting)


class _LoopTurns:
    """Counts the turns of one loop while anybody waits.

    Args:
        loop: The loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._new: list[asyncio.Future[None]] = []
        self._turns: deque[list[asyncio.Future[None]]] = deque([] for _ in range(_TICKS))
        self._left = 0

    def add(self, waiting: asyncio.Future[None]) -> None:
        self._new.append(waiting)
        self._left += 1
        if self._left == 1:
            self.loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._turns.append(self._new)
        self._new = []
        due = self._turns.popleft()
        self._left -= len(due)
        for waiting in due:
            if not waiting.done():
                waiting.set_result(None)
        if self._left:
            self.loop.call_soon(self._tick)


_here = threading.local()


PATIENCE: Final = 1.0
"""Seconds without any progress after which a program that is run again has not come to what its record has next."""

_BEFORE: Final = 30
"""Characters that are shown of two texts before the first difference."""


class ReplaySlot:
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

    def __init__(
        self, records: Sequence[Record], passed: Callable[[], None], gave_up: Callable[[ReplaySlot], None]
    ) -> None:
        self.records = [record for record in records if record.kind != "now"]
        self._numbers = {(one.kind, one.key, one.nth): number for number, one in enumerate(self.records)}
        self._times = deque(record for record in records if record.kind == "now")
        self._begun: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._passed = passed
        self._gave_up = gave_up
        self._done = 0
        self._left: set[int] = set()
        # Those in line: on record by number, new ones in the order of their calls, and which of these have not begun.
        self._known: dict[int, ReplaySlot] = {}
        self._new: dict[ReplaySlot, None] = {}
        self._waiting: dict[ReplaySlot, None] = {}
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

    def place(self, kind: str, key: str) -> ReplaySlot:
        """Return the place of the next thing of a kind that is done; it is entered by ``with``."""
        nth = self._begun[kind, key]
        self._begun[kind, key] = nth + 1
        return ReplaySlot(self, kind, key, nth, self._numbers.get((kind, key, nth)))

    def enter(self, place: ReplaySlot) -> None:
        """Stand in line."""
        place.alone = not self._known and not self._new
        place.joins = any(other.kind == "ask" for line in (self._known.values(), self._new) for other in line)
        if place.number is None:
            self._new[place] = self._waiting[place] = None
        else:
            self._known[place.number] = place
        self._moves += 1

    def leave(self, place: ReplaySlot, *, given_up: bool) -> None:
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

    async def caught_up(self, place: ReplaySlot) -> None:
        """Wait until everything on record has been given out, and what is new and came before has begun.

        Raises:
            ReplayDiverged: The program does not come to what the record has next.
        """
        while not (self.over and next(iter(self._waiting)) is place):
            await self._sleep(place)
        del self._waiting[place]
        self._next()

    async def turn(self, place: ReplaySlot) -> None:
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

    def _first(self, place: ReplaySlot) -> bool:
        if place.number is not None:
            return place.number == self._done
        return self.over and next(iter(self._new)) is place

    async def _sleep(self, place: ReplaySlot) -> None:
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


def _wake(place: ReplaySlot | None) -> None:
    if place is not None and place.waits and place.woken is not None and not place.woken.done():
        place.woken.set_result(None)


def shown(text: str) -> str:
    """A name that may be anybody's, as a message may show it."""
    return f"'{without_secrets(excerpt(text, 80))}'"


def difference(was: bytes | str, now: bytes | str) -> str:
    """Show a recorded text and another one where they begin to differ."""
    start, *texts = from_difference(was, now, _BEFORE)
    before, after = (without_secrets(excerpt(text[:300], 120)) for text in texts)
    return f"'{after}' where the record has '{before}' (from character {start})"


T = TypeVar("T")

_SHOWN: Final = 300
"""Characters of arguments that a record keeps to be shown."""


class ReplayState:
    """Where the program of one rollout stands.

    Args:
        rollout: The rollout.
        executor: Does what the program asks for.
        journal: What is on record in its tree.
        seed: The run's seed.

    Attributes:
        random: Chance that is the same whenever the program is run again.
    """

    def __init__(self, rollout: Rollout, executor: ProgramExecutor, journal: Journal, seed: int) -> None:
        self.random = random.Random()
        self._rollout = rollout
        self._executor = executor
        self._core = executor.core
        self._journal = journal
        self._seed = seed
        self._leaf = 0
        self._owner = -1
        self._end: BaseException | None = None
        self._closed = False
        self._task = asyncio.current_task()
        self._replay = Replay(journal.of(rollout.id), self._passed, self._gave_up)
        self._passed()

    def _passed(self) -> None:
        """Go on with what a rollout did, from its fork point on and with its own chance, once its records come."""
        if self._owner == self._rollout.id:
            return
        waiting = self._replay.next
        owner = self._rollout.id if waiting is None else waiting.rollout
        if owner == self._owner:
            return
        self._owner = owner
        facts = self._core.rollout(owner)
        self._leaf = facts.point
        self.random.seed(f"{self._seed} {facts.path} {self._rollout.task.id}")

    async def _recorded(
        self,
        kind: str,
        key: str,
        given: bytes,
        run: Callable[[], Any],
        noted: Callable[[list[Any]], None] = lambda _: None,
    ) -> list[Any]:
        """Return what is on record for something that appends nothing, or do it and write that down.

        Args:
            kind: See :class:`~trunkline.rollout.programs.replay.Record`.
            key: Likewise.
            given: What it is done with.
            run: Does it.
            noted: Called with it in the step in which it is written down.
        """
        self._check()
        mark = [hashlib.blake2b(given, digest_size=8).hexdigest(), excerpt(given, _SHOWN)]
        with self._replay.place(kind, key) as place:
            if (record := place.record) is not None:
                await self._turn(place)
                digest, was, *made = record.data
                if digest != mark[0]:
                    differs = difference(was, mark[1])
                    raise self._ended(ReplayDiverged(f"run again, the program gives {shown(record.name)} {differs}"))
                return made
            await self._watched(self._replay.caught_up(place))
            made = await self._in_order(place, run())
            await self._turn(place)
            self._write(place, [], *mark, *made)
            noted(made)
            self._executor.grew()
            return list(made)

    def _write(self, place: ReplaySlot, nodes: Sequence[int], *data: Any) -> None:
        """Put on record what came of something, in the step in which its nodes were appended."""
        how: How = "alone" if place.alone else ""
        self._journal.write(Record(self._rollout.id, place.kind, place.key, place.nth, data, nodes, how))

    def _gave_up(self, place: ReplaySlot) -> None:
        """Put on record that the program gave something up, unless its rollout is over."""
        if self._closed or self._end is not None or (self._task is not None and self._task.cancelling()):
            return
        self._journal.write(Record(self._rollout.id, place.kind, place.key, place.nth, place.data, (), "given up"))
        self._executor.grew()

    async def _turn(self, place: ReplaySlot) -> None:
        """Wait for its turn."""
        await self._watched(self._replay.turn(place))

    def _check(self) -> None:
        """Refuse to go on with a rollout that is over, whatever the program made of being told so."""
        if self._closed or (self._task is not None and self._task.cancelling()):
            raise asyncio.CancelledError
        if self._end is not None:
            raise self._end

    def _ended(self, end: BaseException) -> BaseException:
        """Note how the rollout ends; the first counts."""
        if self._end is None:
            self._end = end
        return self._end

    async def _in_order(self, place: ReplaySlot, work: Awaitable[T]) -> T:
        """Do something; where a limit ends the rollout there, what came before it is done first."""
        try:
            return await work
        except Finished as end:
            await self._turn(place)
            raise self._ended(end) from None
        except (LLMError, asyncio.CancelledError):
            raise
        except BaseException as error:  # noqa: BLE001 - it is raised again, now and at every later step
            raise self._ended(error) from None

    async def _watched(self, waiting: Awaitable[None]) -> None:
        """Wait; a divergence that shows meanwhile, no program can catch for good."""
        try:
            await waiting
        except ReplayDiverged as error:
            raise self._ended(error) from None
        self._check()

    async def close(self) -> None:
        """Give up what the program left behind: nothing comes of it any more."""
        self._closed = True
        self._replay.close()
        await self._executor.close()

    def over(self) -> BaseException | None:
        """Return how the rollout ended, where it is not the program that says so."""
        if self._end is not None:
            return self._end
        if self._task is not None and self._task.cancelling():
            return asyncio.CancelledError()
        return self.short()

    def short(self) -> ReplayDiverged | None:
        """Return what is wrong where a program that was run again ends before its record does."""
        if (waiting := self._replay.next) is None:
            return None
        return ReplayDiverged(f"the program, run again, ends where its record goes on with {shown(waiting.name)}")


def failed(failure: str) -> LLMError:
    """Return the error that a recorded failure was."""
    known = Failure.decode(failure)
    kind = getattr(errors, known.kind, LLMError)
    if not (isinstance(kind, type) and issubclass(kind, LLMError)):
        kind = LLMError
    return kind(known.message, attempts=known.attempts, retryable=known.retryable)


def as_json(value: Any, what: str) -> bytes:
    """Encode a value.

    Raises:
        ProgramError: It is no JSON.
    """
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as problem:
        raise ProgramError(f"{what} cannot be JSON: {format_error(problem)}") from None


def _plain(value: object) -> str:
    """A text that is more than one, as JSON holds it."""
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


_encoder = msgspec.json.Encoder(order="deterministic", enc_hook=_plain)
