"""Where a program stands in its record, and how it ended: what no program can change by catching exceptions."""

from __future__ import annotations

import asyncio
import hashlib
import random
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from trunkline import errors
from trunkline.errors import LLMError, ProgramError, ReplayDiverged
from trunkline.llm.text import excerpt
from trunkline.printable import said
from trunkline.rollout.journal import Record
from trunkline.rollout.replay import Replay, difference, shown
from trunkline.rollout.rollout import Finished
from trunkline.tree.failure import Failure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from trunkline.rollout.errands import Errands
    from trunkline.rollout.journal import How, Journal
    from trunkline.rollout.replay import Place
    from trunkline.rollout.rollout import Rollout

__all__ = ["Standing", "as_json", "failed"]

T = TypeVar("T")

_SHOWN: Final = 300
"""Characters of arguments that a record keeps to be shown."""


class Standing:
    """Where the program of one rollout stands.

    Args:
        rollout: The rollout.
        errands: Does what the program asks for.
        journal: What is on record in its tree.
        seed: The run's seed.

    Attributes:
        random: Chance that is the same whenever the program is run again.
    """

    def __init__(self, rollout: Rollout, errands: Errands, journal: Journal, seed: int) -> None:
        self.random = random.Random()
        self._rollout = rollout
        self._errands = errands
        self._core = errands.core
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
            kind: See :class:`~trunkline.rollout.journal.Record`.
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
            self._errands.grew()
            return list(made)

    def _write(self, place: Place, nodes: Sequence[int], *data: Any) -> None:
        """Put on record what came of something, in the step in which its nodes were appended."""
        how: How = "alone" if place.alone else ""
        self._journal.write(Record(self._rollout.id, place.kind, place.key, place.nth, data, nodes, how))

    def _gave_up(self, place: Place) -> None:
        """Put on record that the program gave something up, unless its rollout is over."""
        if self._closed or self._end is not None or (self._task is not None and self._task.cancelling()):
            return
        self._journal.write(Record(self._rollout.id, place.kind, place.key, place.nth, place.data, (), "given up"))
        self._errands.grew()

    async def _turn(self, place: Place) -> None:
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

    async def _in_order(self, place: Place, work: Awaitable[T]) -> T:
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
        await self._errands.close()

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
        raise ProgramError(f"{what} cannot be JSON: {said(problem)}") from None


def _plain(value: object) -> str:
    """A text that is more than one, as JSON holds it."""
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


_encoder = msgspec.json.Encoder(order="deterministic", enc_hook=_plain)
