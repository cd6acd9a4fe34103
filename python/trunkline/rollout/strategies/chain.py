"""Independent chains: the baseline every tree is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trunkline.bounds import whole
from trunkline.rollout.strategy import Fork

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trunkline.rollout.view import View

__all__ = ["Chain"]


class Chain(msgspec.Struct, frozen=True):
    """``n`` tries of each question, each from the prompt to its end.

    Args:
        n: Rollouts a task, at least 1.

    Raises:
        ConfigError: If ``n`` is below 1.
    """

    n: int = 1

    def __post_init__(self) -> None:
        whole("Chain: n", self.n, 1)

    def rollouts(self) -> int:
        """Return n."""
        return self.n

    def formula(self) -> str:
        """Return how many rollouts, for people."""
        return f"n = {self.n}"

    def start(self, view: View) -> Iterable[Fork]:
        """Yield n forks of the prompt."""
        yield Fork(n=self.n)
