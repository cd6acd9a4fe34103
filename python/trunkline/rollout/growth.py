"""Round barrier, running rollouts, early ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from trunkline._core import CoreTree
from trunkline.rollout.checkpoint import CutMark, RefusedMark, write
from trunkline.rollout.types import Finished
from trunkline.store.schema import TreeEnding
from trunkline.tools.environment_pool import PooledEnvironment
from trunkline.types import Termination

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.rollout.environments import EnvironmentHandle
    from trunkline.tools.environment_pool import PoolPlace


NO_ROLLOUTS: Final[frozenset[int]] = frozenset()
"""One object for all trees: most rollouts are in no such set."""


class Barrier(msgspec.Struct, eq=False):
    """Counts growing rollouts and holds those that wait for the next round."""

    growing: int = 0
    waiting: dict[int, asyncio.Future[None]] = {}
    _still: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Count one more growing rollout."""
        self.growing += 1

    def end(self) -> None:
        """Count one growing rollout less."""
        self.growing -= 1
        if not self.growing and self._still is not None and not self._still.done():
            self._still.set_result(None)

    async def wait(self, rollout: int) -> None:
        """Hold a growing rollout until ``go``, whose exception is raised here."""
        turn = self.waiting[rollout] = asyncio.get_running_loop().create_future()
        self.end()
        place = self._place(rollout)
        if place is not None:
            place.pause()
        try:
            await turn
        except asyncio.CancelledError:
            if self.waiting.pop(rollout, None) is not None:
                self.start()  # it is stopped where it waits, and ends as one that grows
            raise
        if place is not None:
            await place.resume()

    def _place(self, _rollout: int) -> PoolPlace | None:
        """Return the place of a rollout in a pool of environments, if it has one."""
        return None

    async def rest(self) -> list[int]:
        """Wait until no rollout grows; return those that wait, ascending."""
        while self.growing:
            self._still = asyncio.get_running_loop().create_future()
            await self._still
        return sorted(self.waiting)

    def go(self, rollout: int, end: Exception | None = None) -> None:
        """Release a waiting rollout, or end it with an exception."""
        turn = self.waiting.pop(rollout)
        self.start()
        if end is None:
            turn.set_result(None)
        else:
            turn.set_exception(end)


class PlayedRollout(Protocol):
    """A rollout, and the task that plays it while it can be cut."""

    id: int
    player: asyncio.Task[None] | None
    environment: EnvironmentHandle | None


class RunningRollouts(Barrier, kw_only=True, eq=False):
    """The tasks that play rollouts, and how growth ended (``over``: cut; ``sealed``: no fork is paid for any more)."""

    core: CoreTree
    live: Mapping[int, PlayedRollout]
    ending: TreeEnding = TreeEnding()
    over: bool = False
    sealed: bool = False
    _leaving: frozenset[int] = NO_ROLLOUTS
    _cut: frozenset[int] = NO_ROLLOUTS
    _spared: frozenset[int] = NO_ROLLOUTS
    # Those whose task was cancelled for it, until they have noticed.
    _struck: frozenset[int] = NO_ROLLOUTS
    _keep: bool = False

    def _place(self, rollout: int) -> PoolPlace | None:
        handle = self.live[rollout].environment
        environment = None if handle is None else handle.environment
        return environment.place if isinstance(environment, PooledEnvironment) else None

    def restore(self, marks: Sequence[CutMark | RefusedMark]) -> None:
        """Apply what an earlier process recorded."""
        for mark in marks:
            self._take(mark)

    def __len__(self) -> int:
        """How many rollouts can be cut, those whose task has not run yet included."""
        return len(set(self.core.growing) - self._leaving)

    def enter(self, rollout: PlayedRollout, task: asyncio.Task[None] | None) -> None:
        """Register the task that plays a rollout; raises ``Finished`` if growth is over."""
        if self.over and rollout.id not in self._spared:
            self._cut |= {rollout.id}
            raise self._end()
        assert task is not None
        rollout.player = task

    def leave(self, rollout: PlayedRollout) -> None:
        """Note that a rollout's program is over: it cannot be cut any more."""
        if rollout.player is not None:
            rollout.player = None
            self._leaving |= {rollout.id}

    def left(self, rollout: PlayedRollout) -> None:
        """Note that a rollout has ended."""
        rollout.player = None
        if self._leaving:
            self._leaving -= {rollout.id}

    def kept(self, rollout: int) -> bool:
        """Whether a rollout was cut and stays open on the tree."""
        return self._keep and rollout in self._cut

    def cut(self, word: str, why: str, *, keep: bool = False) -> None:
        """End all growth, once; with ``keep`` growing rollouts stay open on the tree."""
        if self.over:
            return
        self._note(CutMark(word, why, keep, tuple(sorted(self._leaving))))
        playing = {number: rollout.player for number, rollout in self.live.items() if rollout.player is not None}
        self._cut |= playing.keys()
        self._struck |= playing.keys() - self.waiting.keys()
        for number, task in playing.items():
            if number in self._struck:
                task.cancel()
            else:
                self.go(number, self._end())

    def caught(self, rollout: int) -> Finished:
        """Return the end of a rollout whose cancellation was a cut; raise any other cancellation again."""
        task = asyncio.current_task()
        self._struck -= {rollout}
        if task is None or rollout not in self._cut or task.uncancel():
            raise asyncio.CancelledError
        return self._end()

    def survived(self, rollout: int, task: asyncio.Task[None]) -> None:
        """Take back the cancellation of a cut that a rollout's program swallowed: its task scores it next."""
        if rollout in self._struck:
            self._struck -= {rollout}
            task.uncancel()

    def refuse(self, why: str, rollouts: int = 0) -> None:
        """Record that a budget refused to pay, and for how many new rollouts."""
        if rollouts or self.ending.word == "finished":
            self._note(RefusedMark(rollouts, why))

    def _note(self, mark: CutMark | RefusedMark) -> None:
        """Record a mark in the tree and apply it."""
        write(self.core, mark)
        self._take(mark)

    def _take(self, mark: CutMark | RefusedMark) -> None:
        if isinstance(mark, CutMark):
            self.over, self._keep, self._spared = True, mark.keep, frozenset(mark.spared)
            self.ending = TreeEnding(mark.cut, mark.why, self.ending.refused)
            return
        self.sealed |= mark.refused > 0
        if self.ending.word == "finished":
            self.ending = TreeEnding("budget", mark.why, mark.refused)
        else:
            self.ending = self.ending._replace(refused=self.ending.refused + mark.refused)

    def _end(self) -> Finished:
        return Finished(Termination.CENSORED, None, self.ending.why or "")
