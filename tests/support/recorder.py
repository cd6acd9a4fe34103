"""What a run would have written by the time it breaks off: a tree's deltas, one for every change that is told of."""

from __future__ import annotations

from collections.abc import Iterable

from trunkline._core import CoreTree
from trunkline.llm.types import Reply
from trunkline.rollout.types import TurnSink


class Recorder(TurnSink):
    """A sink without back-pressure that takes a delta whenever the tree grew.

    Args:
        core: The tree.
    """

    def __init__(self, core: CoreTree) -> None:
        self.core = core
        self.deltas: list[bytes] = []

    async def reserve(self) -> None: ...

    def release(self) -> None: ...

    def called(self, reply: Reply) -> None: ...

    async def durable(self) -> None: ...

    def grew(self, size: int = 0, turns: int = 0) -> None:
        if (data := self.core.delta()) is not None:
            self.deltas.append(data)


def replayed(deltas: Iterable[bytes]) -> CoreTree:
    """The tree that some deltas make."""
    core = CoreTree()
    for data in deltas:
        core.apply(data)
    return core
