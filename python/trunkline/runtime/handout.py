"""Which tasks are handed out, and when that is enough: all of them, or until so many groups were kept."""

from __future__ import annotations

from typing import NamedTuple

from trunkline.bounds import whole
from trunkline.errors import ConfigError

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
    """

    def __init__(self, tasks: int, refill: Refill | None = None) -> None:
        self._tasks = tasks if refill is None else refill.max_tasks
        self._groups = refill.groups if refill else None
        self._next = 0
        self._growing = 0
        self.kept = 0

    @property
    def open(self) -> int:
        """Tasks that grow, and those that may still be handed out."""
        return self._growing + self.left

    @property
    def left(self) -> int:
        """Tasks that may still be handed out."""
        return 0 if self.full else self._tasks - self._next

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
        if self._next == self._tasks or (self._groups is not None and self.kept + self._growing >= self._groups):
            return None
        self._next += 1
        self._growing += 1
        return self._next - 1

    def done(self, *, kept: bool) -> None:
        """Note that a task has ended.

        Args:
            kept: Whether its group is one to train on.
        """
        self._growing -= 1
        self.kept += kept
