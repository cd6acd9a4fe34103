"""Strategies that go on from an earlier run, for tests; importable by workers."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from trunkline.strategies.base import Fork, View


class More(msgspec.Struct, frozen=True):
    """``n`` more chains, whatever an earlier run has."""

    n: int = 1
    continues: ClassVar[bool] = True

    def rollouts(self) -> int:
        return max(1, self.n)

    def start(self, view: View) -> list[Fork]:
        return [Fork(n=self.n)] if self.n else []


class Few(More):
    """One more chain, of four that it might have begun."""

    def rollouts(self) -> int:
        return 4


class Squeamish(More):
    """One more chain, but for Brazil."""

    def start(self, view: View) -> list[Fork]:
        if view.tree.task.id == "Brazil":
            raise RuntimeError("not there")
        return super().start(view)
