"""The strategy protocol: a policy says where rollouts start; the session grows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from trunkline.bounds import whole

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trunkline.tree.tree import Tree

__all__ = ["Fork", "Strategy"]


class Fork(msgspec.Struct, frozen=True, kw_only=True):
    """Grow ``n`` new rollouts from the task's prompt.

    Attributes:
        n: How many draws to take there.

    Raises:
        ConfigError: If ``n`` is below 1.
    """

    n: int = 1

    def __post_init__(self) -> None:
        whole("Fork: n", self.n, 1)


@runtime_checkable
class Strategy(Protocol):
    """Decides where the rollouts of one task start. It must be a pure function of the tree it is shown."""

    def rollouts(self) -> int:
        """How many rollouts a task is planned to get; progress and a worker's share of tasks are laid out for it."""
        ...

    def start(self, tree: Tree) -> Iterable[Fork]:
        """Yield the forks a task begins with; the tree holds its prompt and nothing else."""
        ...
