"""Filters for tests; importable by workers."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from trunkline.scoring.filters.base import Group
from trunkline.scoring.notes import Verdict


class Unlucky(msgspec.Struct, frozen=True):
    """Drops the groups of some countries whole."""

    countries: tuple[str, ...] = ("Brazil", "Japan")

    def judge(self, group: Group) -> Iterator[tuple[int, Verdict]]:
        if group.tree.task.id in self.countries:
            for rollout in group.rollouts:
                yield rollout.id, Verdict("unlucky", "drop", f"{group.tree.task.id} is out", count_in_baseline=False)


class Breaking(msgspec.Struct, frozen=True):
    """Raises on some countries."""

    def judge(self, group: Group) -> Iterator[tuple[int, Verdict]]:
        if group.tree.task.id == "Japan":
            raise RuntimeError("cannot say")
        yield 0, Verdict("breaking", "mask")


class Pairs(msgspec.Struct, frozen=True):
    """Drops groups of so many rollouts."""

    size: int = 2

    def judge(self, group: Group) -> Iterator[tuple[int, Verdict]]:
        if len(group.rollouts) == self.size:
            for rollout in group.rollouts:
                yield rollout.id, Verdict("pairs", "drop")


class Rewarded(msgspec.Struct, frozen=True):
    """Masks whoever has a reward of 1, and says so."""

    def judge(self, group: Group) -> Iterator[tuple[int, Verdict]]:
        for rollout in group.live:
            if rollout.reward == 1.0:
                yield rollout.id, Verdict("rewarded", "mask", f"{rollout.task.id}: {rollout.reward}")
