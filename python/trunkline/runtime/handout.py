"""Which tasks are handed out, and when that is enough: all of them, or until so many groups were kept."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from trunkline.bounds import whole
from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Handout", "Refill"]


class Refill(NamedTuple):
    """Tasks as a pool that is drawn from until enough groups were kept.

    Attributes:
        groups: Groups to keep.
        max_tasks: The most tasks that may be handed out for them.
    """

    groups: int
    max_tasks: int

    @classmethod
    def of(cls, groups: int | None, max_tasks: int | None, tasks: int) -> Refill | None:
        """Check what a run was told; None if it was told nothing.

        Args:
            groups: Groups to keep.
            max_tasks: The most tasks to hand out; all when None.
            tasks: Tasks of the run.

        Raises:
            ConfigError: So many groups cannot be had.
        """
        if groups is None:
            if max_tasks is not None:
                raise ConfigError("max_tasks says how many tasks groups may take: give groups as well")
            return None
        whole("groups", groups, 1)
        most = tasks if max_tasks is None else min(tasks, whole("max_tasks", max_tasks, 1))
        if groups > most:
            raise ConfigError(f"groups is {groups}, and there are {most} tasks to make them of: give more tasks")
        return cls(groups, most)


class Handout:
    """Hands tasks out in their order.

    With a refill, groups that were kept and tasks that grow never exceed the groups that are wanted. So a task is
    handed out only if those before it cannot be enough: what is handed out is the shortest beginning of the tasks that
    has enough kept groups, for any number of workers and any order in which they finish.

    Args:
        tasks: Tasks of the run.
        refill: How many groups are wanted of them; all tasks are handed out when None.
        finished: Tasks that are done already.
        begun: Tasks that were handed out before and are not done: they come first.
        kept: Groups of finished tasks that were kept.
    """

    def __init__(
        self,
        tasks: int,
        refill: Refill | None = None,
        *,
        finished: Iterable[int] = (),
        begun: Iterable[int] = (),
        kept: int = 0,
    ) -> None:
        self._back = sorted(begun)
        known = {*finished, *self._back}
        most = tasks if refill is None else refill.max_tasks
        # Last one first, so that the next is at the end.
        self._fresh = [index for index in range(most - 1, -1, -1) if index not in known]
        self._groups = refill.groups if refill else None
        self._growing = len(self._back)
        self.kept = kept

    @property
    def open(self) -> int:
        """Tasks that grow, and those that may still be handed out."""
        return self._growing + self.left

    @property
    def growing(self) -> int:
        """Tasks that were handed out and have not ended."""
        return self._growing

    @property
    def left(self) -> int:
        """Tasks that may still be handed out."""
        return 0 if self.full else len(self._fresh)

    @property
    def more(self) -> bool:
        """Whether a task that was never handed out is needed now."""
        return bool(self._fresh) and (self._groups is None or self.kept + self._growing < self._groups)

    @property
    def full(self) -> bool:
        """Whether as many groups were kept as are wanted."""
        return self._groups is not None and self.kept >= self._groups

    @property
    def short(self) -> bool:
        """Whether groups are missing that no task is left for."""
        return self._groups is not None and not self.open and not self.full

    def take(self) -> int | None:
        """Return the index of the next task, which grows from now on; None if there is none, or none is needed now."""
        if self._back:
            return heappop(self._back)
        if not self.more:
            return None
        self._growing += 1
        return self._fresh.pop()

    def put_back(self, indices: Iterable[int]) -> None:
        """Take back tasks that were handed out and go on elsewhere; they are handed out again before all others."""
        for index in indices:
            heappush(self._back, index)

    def done(self, *, kept: bool) -> None:
        """Note that a task has ended.

        Args:
            kept: Whether its group is one to train on.
        """
        self._growing -= 1
        self.kept += kept
