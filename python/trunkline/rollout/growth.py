"""Who grows in one tree, and how growth ends before its time: at once, leaving nothing behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from trunkline.rollout.rollout import Finished
from trunkline.rollout.rounds import Cut, Refused, write
from trunkline.store.schema import Ending
from trunkline.types import Termination

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline._core import Tree as Core
    from trunkline.rollout.barrier import Barrier

__all__ = ["Players"]


class Players:
    """The tasks that play rollouts.

    Args:
        core: The tree.
        barrier: Where they wait between two rounds.
        past: What was decided before, where this goes on with a tree.

    Attributes:
        ending: How growth ended.
        over: Whether it was cut: nothing starts any more.
        sealed: Whether no fork is paid for any more: nothing starts, and what grows goes on.
    """

    def __init__(self, core: Core, barrier: Barrier, past: Sequence[Cut | Refused] = ()) -> None:
        self.ending = Ending()
        self.over = False
        self.sealed = False
        self._core = core
        self._barrier = barrier
        self._playing: dict[int, asyncio.Task[None]] = {}
        self._leaving: set[int] = set()
        self._cut: set[int] = set()
        self._spared: frozenset[int] = frozenset()
        self._keep = False
        for mark in past:
            self._take(mark)

    def __len__(self) -> int:
        """How many rollouts can be cut, those included whose task has not run yet."""
        return len(set(self._core.growing) - self._leaving)

    def enter(self, rollout: int) -> None:
        """Note that the current task plays a rollout; raises :class:`Finished` if growth is over."""
        if self.over and rollout not in self._spared:
            self._cut.add(rollout)
            raise self._end()
        task = asyncio.current_task()
        assert task is not None
        self._playing[rollout] = task

    def leave(self, rollout: int) -> None:
        """Note that a rollout's program is over: it cannot be cut any more."""
        if self._playing.pop(rollout, None) is not None:
            self._leaving.add(rollout)

    def left(self, rollout: int) -> None:
        """Note that a rollout has ended."""
        self._leaving.discard(rollout)

    def kept(self, rollout: int) -> bool:
        """Whether a rollout was cut and is to stay as it is, growing."""
        return self._keep and rollout in self._cut

    def cut(self, word: str, why: str, *, keep: bool = False) -> None:
        """End all growth. The first one counts.

        Args:
            word: See :class:`~trunkline.store.schema.Ending`.
            why: In words.
            keep: Leave those that grow as they are.
        """
        if self.over:
            return
        self._note(Cut(word, why, keep, tuple(sorted(self._leaving))))
        self._cut.update(self._playing)
        for rollout, task in self._playing.items():
            if rollout in self._barrier.waiting:
                self._barrier.go(rollout, self._end())
            else:
                task.cancel()

    def caught(self, rollout: int) -> Finished:
        """Turn a cancellation into the end of a rollout that was cut; raises it again for any other."""
        task = asyncio.current_task()
        if task is None or rollout not in self._cut or task.uncancel():
            raise asyncio.CancelledError
        return self._end()

    def refuse(self, why: str, rollouts: int = 0) -> None:
        """Note that a budget did not pay for something.

        Args:
            why: What its ledger says.
            rollouts: Rollouts that were to start.
        """
        if rollouts or self.ending.word == "finished":
            self._note(Refused(rollouts, why))

    def _note(self, mark: Cut | Refused) -> None:
        """Take something in that changes how growth ends, and write it down."""
        write(self._core, mark)
        self._take(mark)

    def _take(self, mark: Cut | Refused) -> None:
        if isinstance(mark, Cut):
            self.over, self._keep, self._spared = True, mark.keep, frozenset(mark.spared)
            self.ending = Ending(mark.cut, mark.why, self.ending.refused)
            return
        self.sealed |= mark.refused > 0
        if self.ending.word == "finished":
            self.ending = Ending("budget", mark.why, mark.refused)
        else:
            self.ending = self.ending._replace(refused=self.ending.refused + mark.refused)

    def _end(self) -> Finished:
        return Finished(Termination.CENSORED, None, self.ending.why or "")
