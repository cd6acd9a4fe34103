"""Notebooks for pools of environments, importable by workers: one that is used again, and one that starts ahead."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from notebook import Notebook, Paper

from trunkline.types import Task


class Slate(Notebook):
    """A notebook that can be wiped, and counts how many are live."""

    live: ClassVar[int] = 0
    most: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.open = False

    def _opens(self) -> None:
        if not self.open:
            self.open = True
            Slate.live += 1
            Slate.most = max(Slate.most, Slate.live)

    async def start(self) -> None:
        """Start ahead of a task."""
        self._opens()
        self.done.append("start")

    async def fresh(self, task: Task) -> None:
        self._opens()
        await asyncio.sleep(0)
        await super().fresh(task)

    async def restore(self, snapshot: bytes) -> None:
        self._opens()
        await super().restore(snapshot)

    async def reset(self, task: Task) -> None:
        """Begin again."""
        self.done.append("reset")
        self.words = [task.id]

    async def close(self) -> None:
        Slate.live -= self.open
        self.open = False
        await super().close()


class PaperSlate(Paper):
    """A sheet without snapshots that can be wiped."""

    async def reset(self, task: Task) -> None:
        """Begin again."""
        self.done.append("reset")
        self.words = [task.id]
