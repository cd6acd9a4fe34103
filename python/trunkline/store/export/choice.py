"""Which records an export is to hold."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from trunkline.bounds import shown
from trunkline.errors import ConfigError, UsageError
from trunkline.printable import printable, quoted

if TYPE_CHECKING:
    from trunkline.store.export.leaves import Leaf
    from trunkline.store.reader import RunReader

__all__ = ["Choice"]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted of a run; everything, as it is made.

    Attributes:
        tasks: Ids of the tasks; empty for all.
        ended: Only rollouts that have ended, in whatever way.
        scored: Only rollouts with a reward.
        min_reward: Only rollouts with a reward that is no less.

    Raises:
        ConfigError: The least reward is no number, or what is yes or no is neither.
    """

    tasks: tuple[str, ...] = ()
    ended: bool = False
    scored: bool = False
    min_reward: float | None = None

    def __post_init__(self) -> None:
        # What is annotated need not be what was given.
        for name in ("ended", "scored"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false, not {shown(getattr(self, name))}")
        least: object = self.min_reward
        if least is None:
            return
        if isinstance(least, bool) or not isinstance(least, int | float) or not abs(least) <= sys.float_info.max:
            raise ConfigError(f"min_reward must be a finite number, not {shown(least)}")

    def ids(self, reader: RunReader) -> list[str]:
        """The ids of the tasks that are wanted, in the order of the run.

        Raises:
            UsageError: The run has no such task.
        """
        there = reader.task_ids()
        if not self.tasks:
            return there
        wanted, known = set(self.tasks), set(there)
        for name in self.tasks:
            if name not in known:
                some = ", ".join(quoted(each, 40) for each in there[:5]) or "no task"
                where = printable(str(reader.path))
                raise UsageError(f"no task {quoted(str(name))} in {where}; it begins with {some}")
        return [name for name in there if name in wanted]

    def refuses(self, leaf: Leaf) -> str | None:
        """Why a record is left out, in a few words; None if it is wanted."""
        if self.ended and leaf.first.termination is None:
            return "still growing"
        if (self.scored or self.min_reward is not None) and leaf.reward is None:
            return "unscored"
        if self.min_reward is not None and leaf.reward is not None and leaf.reward < self.min_reward:
            return f"reward below {self.min_reward:g}"
        return None
