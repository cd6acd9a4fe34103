"""Journal and deterministic replay.

What a program does at the same time ends in the order in which it began, one at a time: whatever comes of one thing is
done before the next one ends. So a program that awaits nothing but its rollout does the same things in the same order,
whichever reply comes first.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from trunkline import errors
from trunkline._core import MESSAGE
from trunkline._internal.text import excerpt, format_error, from_difference, without_secrets
from trunkline.errors import LLMError, ProgramError, ReplayDiverged
from trunkline.tree.records import Failure, Record, Records

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from contextvars import Context

__all__ = [
    "TIMER",
    "Journal",
    "Replay",
    "ReplaySlot",
    "as_json",
    "difference",
    "ends_early",
    "failed",
    "shown",
]

TIMER: Final = "timer"
"""Kind of the record that a timer of the program has fired."""


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

    def drawn(self, rollout: int) -> Record | None:
        """What a fork draws again; None for what is no fork, and once it has drawn it."""
        return None if self.own(rollout) or rollout in self.branches else self.following(rollout)

    def branch(self, of: int, equal: int, end: int) -> int:
        """Open a rollout that begins with the first ``equal`` records of another one, in a subgroup of its own.

        It grows from the last turn of these, or from the prompt's ``end``, as the next draw of the state there.
        """
        core = self._core
        nodes = [record.nodes[-1] for record in self.of(of)[:equal] if record.nodes]
        number = core.rollouts
        if nodes:
            core.open(nodes[-1], self._next_path(nodes[-1]), _BRANCH + number)
        else:
            core.fork(end, 1, None, _BRANCH + number)
        for source, records in [*self._parts(of), (of, self.own(of))]:
            if 0 < equal <= len(records):
                self._core.mark(msgspec.json.encode({"forked": (number, source, equal)}).decode())
            equal -= len(records)
        self._core.mark(msgspec.json.encode({"branch": (number, of)}).decode())
        return number

    def _next_path(self, turn: int) -> tuple[int, ...]:
        """The fork path of the next draw behind a turn, for which the core has a state only where a turn follows it."""
        core = self._core
        rollouts = [core.rollout(number) for number in range(core.rollouts)]
        first = next(one for one in rollouts if turn in core.path(one.leaf))
        state = *first.path, core.node(turn).turns
        return *state, 1 + max((one.draw for one in rollouts if one.path[:-1] == state), default=0)

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


_BRANCH: Final = 1 << 30
"""Subgroups of branches begin here, beyond those of any chain."""

_BEFORE: Final = 30
"""Characters that are shown of two texts before the first difference."""


class ReplaySlot:
    """The place in line of one thing that a program does; a ``with`` block leaves the line.

    Args:
        line: The line.
        kind: What is done.
        key: Which one of its kind.
        nth: How many of the same the program had begun before.
        number: Where in the record it stands; None where it is new.
        alone: Whether nothing else stood in line when it began.
        joins: Whether a turn that was asked for before it had not ended when it began.

    Attributes:
        record: What is on record for it.
        data: What the record is to say of it should it be given up.
        ordered: Whether its work begins only when nothing is in line before it.
        turn: Comes true in the program's loop when it is its turn.
        work: What does it, on the worker's loop; None where nothing is to be done, or once the result is used.
        drop: Called with a result that is not used.
        over: Whether the work has come to its end.
        left: Whether it has left the line.
    """

    context: Context | None = None
    data: Sequence[object] = ()
    drop: Callable[[Any], None] | None = None
    error: BaseException | None = None
    left = False
    ordered = False
    over = True
    record: Record | None = None
    result: Any = None
    task: asyncio.Task[None] | None = None
    turn: asyncio.Future[None] | None = None
    work: Callable[[], Coroutine[Any, Any, Any]] | None = None

    def __init__(
        self, line: Replay, kind: str, key: str, nth: int, number: int | None, *, alone: bool, joins: bool
    ) -> None:
        self._line = line
        self.kind = kind
        self.key = key
        self.nth = nth
        self.number = number
        self.alone = alone
        self.joins = joins
        if number is not None:
            self.record = line.records[number]

    @property
    def name(self) -> str:
        """What to call it in a message."""
        return f"{self.kind} {self.key}".rstrip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.left = True
        self._line.leave(self, given_up=kind is not None and issubclass(kind, asyncio.CancelledError))


class Replay:
    """The records of a program that are still to come, and the line of what it does.

    Args:
        records: What is on record, from the program's beginning.
        passed: Called when something on record has been given out.
        gave_up: Called when the program gives up something new.

    Attributes:
        over: Whether nothing is left on record: what is done now is new.
        known: What is in line and on record, by its number there.
        new: What is in line and new, in the order of its calls.
        waiting: What is new and has work that has not begun.
        unused: What left the line before its work was used.
    """

    def __init__(
        self, records: Sequence[Record], passed: Callable[[], None], gave_up: Callable[[ReplaySlot], None]
    ) -> None:
        self.records = [record for record in records if record.kind != "now"]
        self.over = not self.records
        self.known: dict[int, ReplaySlot] = {}
        self.new: dict[ReplaySlot, None] = {}
        self.waiting: list[ReplaySlot] = []
        self.unused: list[ReplaySlot] = []
        self._numbers = {(one.kind, one.key, one.nth): number for number, one in enumerate(self.records)}
        self._times = deque(record for record in records if record.kind == "now")
        self._begun: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._asks = 0
        self._passed = passed
        self._gave_up = gave_up
        self._done = 0
        self._left: set[int] = set()
        kinds = [record.kind for record in self.records]
        self._first_timer = kinds.index(TIMER) if TIMER in kinds else len(kinds)

    def release(self) -> None:
        """Tell of nothing any more."""
        self._passed, self._gave_up = _untold, _untold

    @property
    def timed(self) -> bool:
        """Whether timers that fire are on record by now; earlier versions did not record them."""
        return self._done > self._first_timer

    @property
    def next(self) -> Record | None:
        """What the record has next."""
        return None if self.over else self.records[self._done]

    @property
    def first(self) -> ReplaySlot | None:
        """What is in line and was called first, on record or not."""
        return next(iter(self.known.values()), None) or next(iter(self.new), None)

    def due(self) -> ReplaySlot | None:
        """Return what is in line for what the record has next."""
        return self.known.get(self._done)

    def time(self) -> Record | None:
        """Return the next time of day on record."""
        return self._times.popleft() if self._times else None

    def place(self, kind: str, key: str) -> ReplaySlot:
        """Put the next thing of a kind in line."""
        which = kind, key
        nth = self._begun[which]
        self._begun[which] = nth + 1
        alone, joins = not self.known and not self.new, self._asks > 0
        number = None if self.over else self._numbers.get((kind, key, nth))
        place = ReplaySlot(self, kind, key, nth, number, alone=alone, joins=joins)
        self._asks += kind == "ask"
        if number is None:
            self.new[place] = None
        else:
            self.known[number] = place
        return place

    def leave(self, place: ReplaySlot, *, given_up: bool) -> None:
        """Leave the line."""
        self._asks -= place.kind == "ask"
        if place.number is None:
            del self.new[place]
            if given_up:
                self._gave_up(place)
            if place.work is not None:
                self.unused.append(place)
        else:
            del self.known[place.number]
            self.pass_by(place.number)

    def pass_by(self, number: int) -> None:
        """Note that what the record has there has been given out, or has happened."""
        self._left.add(number)
        while self._done in self._left:
            self._left.discard(self._done)
            self._done += 1
        self.over = self._done == len(self.records)
        self._passed()

    def fired(self) -> None:
        """Note that the timer that the record has next has fired."""
        self.pass_by(self._done)


def _untold(*_: object) -> None:
    """What follows the end of a rollout is told to nothing."""


def shown(text: str) -> str:
    """A name that may be anybody's, as a message may show it."""
    return f"'{without_secrets(excerpt(text, 80))}'"


def ends_early(record: Record) -> ReplayDiverged:
    """Return what is wrong where a program that is run again ends before its record does."""
    return ReplayDiverged(f"the program, run again, ends where its record goes on with {shown(record.name)}")


def difference(was: bytes | str, now: bytes | str) -> str:
    """Show a recorded text and another one where they begin to differ."""
    start, *texts = from_difference(was, now, _BEFORE)
    before, after = (without_secrets(excerpt(text[:300], 120)) for text in texts)
    return f"'{after}' where the record has '{before}' (from character {start})"


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
