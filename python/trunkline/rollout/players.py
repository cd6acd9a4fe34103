"""Who grows in one tree, and how growth ends before its time: at once, leaving nothing behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from trunkline.rollout.rollout import Finished
from trunkline.store.schema import Ending
from trunkline.types import Termination

if TYPE_CHECKING:
    from trunkline.rollout.barrier import Barrier

__all__ = ["Players"]


class Players:
    """The tasks that play rollouts.

    Args:
        barrier: Where they wait between two rounds.

    Attributes:
        ending: How growth ended.
        over: Whether it was cut: nothing starts any more.
        sealed: Whether no fork is paid for any more: nothing starts, and what grows goes on.
    """

    def __init__(self, barrier: Barrier) -> None:
        self.ending = Ending()
        self.over = False
        self.sealed = False
        self._barrier = barrier
        self._playing: dict[int, asyncio.Task[None]] = {}
        self._cut: set[int] = set()
        self._keep = False

    def __len__(self) -> int:
        """How many rollouts are being played."""
        return len(self._playing)

    def enter(self, rollout: int) -> None:
        """Note that the current task plays a rollout; raises :class:`Finished` if growth is over."""
        if self.over:
            self._cut.add(rollout)
            raise self._end()
        task = asyncio.current_task()
        assert task is not None
        self._playing[rollout] = task

    def leave(self, rollout: int) -> None:
        """Note that a rollout has ended: it cannot be cut any more."""
        self._playing.pop(rollout, None)

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
        self.over, self._keep = True, keep
        self.ending = Ending(word, why, self.ending.refused)
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
        self.sealed |= rollouts > 0
        if self.ending.word == "finished":
            self.ending = Ending("budget", why, rollouts)
        else:
            self.ending = self.ending._replace(refused=self.ending.refused + rollouts)

    def _end(self) -> Finished:
        return Finished(Termination.CENSORED, None, self.ending.why or "")
