"""Where a program stands in its record, and how it ended: what no program can change by catching exceptions."""

from __future__ import annotations

import asyncio
import hashlib
import random
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline import errors
from trunkline.errors import LLMError, ProgramError, ReplayDiverged
from trunkline.llm.text import excerpt
from trunkline.printable import said
from trunkline.rollout.replay import Replay, difference, shown
from trunkline.rollout.rollout import Finished
from trunkline.tree.failure import Failure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trunkline.rollout.errands import Errands
    from trunkline.rollout.journal import Journal, Record
    from trunkline.rollout.replay import Place
    from trunkline.rollout.rollout import Rollout

__all__ = ["Standing", "as_json", "failed"]

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
        records = journal.of(rollout.id)
        self._replay = Replay(records)
        self._enter(records[0].rollout if records else rollout.id)

    def _begin(self) -> None:
        """Go on as the rollout itself, once everything that it has from others was given out."""
        waiting = self._replay.next
        self._enter(self._rollout.id if waiting is None else waiting.rollout)

    def _enter(self, owner: int) -> None:
        """Go on with what a rollout did: from its fork point on, with chance of its own."""
        if owner == self._owner:
            return
        self._owner = owner
        facts = self._core.rollout(owner)
        self._leaf = facts.point
        self.random.seed(f"{self._seed} {facts.path} {self._rollout.task.id}")

    async def _recorded(
        self, kind: str, key: str, given: bytes, run: Callable[[], Any], noted: Callable[[], None] = lambda: None
    ) -> list[Any]:
        """Return what is on record for something that appends nothing, or do it and write that down.

        Args:
            kind: See :class:`~trunkline.rollout.journal.Record`.
            key: Likewise.
            given: What it is done with.
            run: Does it.
            noted: Called in the step in which it is written down.
        """
        self._check()
        self._begin()
        mark = [hashlib.blake2b(given, digest_size=8).hexdigest(), excerpt(given, _SHOWN)]
        found = self._replay.find(kind, key)
        with self._replay.enter(None if found is None else found[0]) as place:
            if found is not None:
                _, record = found
                await self._again(place, record)
                digest, was, *made = record.data
                if digest != mark[0]:
                    differs = difference(was, mark[1])
                    raise self._ended(ReplayDiverged(f"run again, the program gives {shown(record.name)} {differs}"))
                return made
            await self._watched(self._replay.caught_up(place, f"{kind} {key}"))
            self._begin()
            made = await self._in_order(place, f"{kind} {key}", run())
            await self._watched(self._replay.turn(place, f"{kind} {key}"))
            self._journal.write(self._rollout.id, kind, key, [], *mark, *made)
            noted()
            self._errands.grew()
            return list(made)

    async def _again(self, place: Place, record: Record) -> None:
        """Come to a record in its turn."""
        await self._watched(self._replay.turn(place, record.name))

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

    async def _in_order(self, place: Place, what: str, work: Awaitable[Any]) -> Any:
        """Do something; where a limit ends the rollout there, what came before it is done first."""
        try:
            done = await work
        except Finished as end:
            await self._watched(self._replay.turn(place, what))
            raise self._ended(end) from None
        except (LLMError, asyncio.CancelledError):
            raise
        except BaseException as error:  # noqa: BLE001 - it is raised again, now and at every later step
            raise self._ended(error) from None
        self._check()
        return done

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
        return msgspec.json.encode(value, order="deterministic")
    except (TypeError, ValueError, OverflowError, RecursionError) as problem:
        raise ProgramError(f"{what} cannot be JSON: {said(problem)}") from None
