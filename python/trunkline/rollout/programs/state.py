"""Where the program of a rollout stands: its replay, its position on the path, its chance, how it ends."""

from __future__ import annotations

import asyncio
import hashlib
from functools import cached_property, partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from trunkline._internal.text import excerpt
from trunkline.errors import ReplayDiverged
from trunkline.rollout.programs.host import ProgramHost
from trunkline.rollout.programs.replay import TIMER, Replay, difference, ends_early, shown
from trunkline.rollout.types import Finished
from trunkline.tree.records import How, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from trunkline.rollout.programs.executor import ProgramExecutor
    from trunkline.rollout.programs.replay import Journal, ReplaySlot
    from trunkline.rollout.rollout import Rollout

__all__ = ["ReplayState"]

_SHOWN: Final = 300
"""Characters of arguments that a record keeps to be shown."""


class ReplayState:
    """Where the program of one rollout stands.

    Args:
        rollout: The rollout.
        executor: Does what the program asks for.
        journal: What is on record in its tree.
        seed: The run's seed.
    """

    def __init__(self, rollout: Rollout, executor: ProgramExecutor, journal: Journal, seed: int) -> None:
        self._rollout = rollout
        self._executor = executor
        self._core = executor.core
        self._journal = journal
        self._seed = seed
        self._leaf = 0
        self._owner = -1
        self._replay = Replay(journal.of(rollout.id), self._passed, self._gave_up)
        self._host = ProgramHost(self._replay, executor, self._fired)
        self._turn = self._host.turn
        self._check = self._host.check
        self._ended = self._host.stop
        self._passed()

    @cached_property
    def random(self) -> Random:
        """Chance that is the same whenever the program is run again."""
        return Random(self._chance())

    def _chance(self) -> str:
        """The seed of what the program does now."""
        return f"{self._seed} {self._facts.path} {self._rollout.task.id}"

    def _passed(self) -> None:
        """Go on with what a rollout did, from its fork point on and with its own chance, once its records come."""
        if self._rollout.done is not None and self._replay.over:
            self._ended(Finished(self._rollout.done))  # it ended before: this is about its environment
        if self._owner == self._rollout.id:
            return
        waiting = self._replay.next
        owner = self._rollout.id if waiting is None else waiting.rollout
        if owner == self._owner:
            return
        self._owner = owner
        self._facts = facts = self._executor.facts if owner == self._rollout.id else self._core.rollout(owner)
        self._leaf = facts.point
        if "random" in self.__dict__:
            self.random.seed(self._chance())

    async def _recorded(
        self,
        kind: str,
        key: str,
        given: bytes,
        run: Callable[[ReplaySlot], Coroutine[Any, Any, list[Any]]],
        noted: Callable[[list[Any]], None] = lambda _: None,
        passed: Callable[[Record], None] = lambda _: None,
        told: Callable[[], list[Any]] = list,
        *,
        ordered: bool = False,
    ) -> list[Any]:
        """Return what is on record for something that appends nothing, or do it and write that down.

        Args:
            kind: See ``Record``.
            key: Likewise.
            given: What it is done with.
            run: Does it.
            noted: Called with it in the step in which it is written down.
            passed: Called with what is on record, before it is given out.
            told: What else is then put on record, and returned with it.
            ordered: See ``ReplaySlot``.
        """
        self._check()
        mark = [hashlib.blake2b(given, digest_size=8).hexdigest(), excerpt(given, _SHOWN)]
        with self._replay.place(kind, key) as place:
            if (record := place.record) is not None:
                passed(record)
                await self._turn(place)
                digest, was, *made = record.data
                if digest != mark[0]:
                    differs = difference(was, mark[1])
                    raise self._ended(ReplayDiverged(f"run again, the program gives {shown(record.name)} {differs}"))
                return made
            place.ordered = ordered
            made = await self._turn(place, partial(run, place))
            more = told()
            self._write(place, [], *mark, *made, *more)
            noted(made)
            return [*made, *more]

    def _write(self, place: ReplaySlot, nodes: Sequence[int], *data: Any) -> None:
        """Put on record what came of something, in the step in which its nodes were appended."""
        how: How = "alone" if self._alone(place) else ""
        self._journal.write(Record(self._rollout.id, place.kind, place.key, place.nth, data, nodes, how))
        self._executor.has_grown = True

    def _alone(self, place: ReplaySlot) -> bool:
        """Whether nothing else stood in line from its beginning to its end."""
        return place.alone and len(self._replay.new) == 1

    def _gave_up(self, place: ReplaySlot) -> None:
        """Put on record that the program gave something up, unless its rollout is over."""
        if self._host.stopped:
            return
        self._journal.write(Record(self._rollout.id, place.kind, place.key, place.nth, place.data, (), "given up"))
        self._executor.has_grown = True

    def _fired(self, timer: int) -> None:
        """Put on record that a timer fires."""
        self._journal.write(Record(self._rollout.id, TIMER, "", timer, (), ()))
        self._executor.has_grown = True

    async def play(self, program: Coroutine[Any, Any, Any]) -> Any:
        """Run the program, and return what it returns."""
        return await self._host.run(program)

    async def close(self) -> None:
        """Give up what the program left behind: nothing comes of it any more."""
        await self._host.close()

    def release(self) -> None:
        """Drop what refers back to this object, which is then freed at once and not by the collector."""
        self._host.release()
        self._replay.release()

    def over(self) -> BaseException | None:
        """Return how the rollout ended, where it is not the program that says so."""
        if self._host.end is None and self._host.cancelled:
            return asyncio.CancelledError()
        return self._host.end

    def short(self) -> ReplayDiverged | None:
        """Return what is wrong where a program that was run again ends before its record does."""
        return None if (waiting := self._replay.next) is None else ends_early(waiting)
