"""The strategy protocol: a policy says where rollouts start; the session grows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trunkline.tree.tree import Tree

__all__ = ["Fork", "Strategy"]


class Fork(msgspec.Struct, frozen=True):
    """Grow ``n`` new rollouts from the task's prompt.

    Attributes:
        n: How many draws to take there.
    """

    n: int = 1


@runtime_checkable
class Strategy(Protocol):
    """Decides where the rollouts of one task start. It must be a pure function of the tree it is shown."""

    def rollouts(self) -> int:
        """How many rollouts a task gets: what progress bars and budgets are laid out for."""
        ...

    def start(self, tree: Tree) -> Iterable[Fork]:
        """Yield the forks a task begins with; the tree holds its prompt and nothing else."""
        ...
