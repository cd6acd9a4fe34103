"""Accuracy by the values of a field."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import msgspec

from trunkline.scoring.metrics import Estimate
from trunkline.scoring.metrics.intervals import RewardCounter
from trunkline.store.stats.tasks import tried
from trunkline.store.stats.where import fields_of
from trunkline.types import Termination

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trunkline.store.schema import RolloutRow
    from trunkline.store.stats.where import FieldReader
    from trunkline.types import Task


class Category(msgspec.Struct, frozen=True):
    """The rollouts with one value of a field.

    Attributes:
        value: The value: a text as it is, others as JSON. Not safe to print.
        rollouts: How many they are, without those that were asked again.
        accuracy: Accuracy of one try; None if nothing is scored.
    """

    value: str
    rollouts: int
    accuracy: Estimate | None


def by_category(
    fields: Mapping[str, FieldReader], tasks: Iterable[tuple[Task, Sequence[RolloutRow]]], most: int | None = None
) -> dict[str, list[Category]]:
    """Sum rollouts up by the values of each field, those with most rollouts first.

    Args:
        fields: What reads a field, by its name.
        tasks: Tasks with their rollouts.
        most: How many values of a field are given; all when None.
    """
    rewards: dict[str, dict[str, RewardCounter]] = {name: {} for name in fields}
    counts: dict[str, Counter[str]] = {name: Counter() for name in fields}
    for task, rows in tasks:
        known = [(fields_of(task, row), tried(row).reward) for row in rows if row.termination != Termination.RETRIED]
        for name, read in fields.items():
            by: defaultdict[str, list[float]] = defaultdict(list)
            for values, reward in known:
                value = read(values)
                by[value if isinstance(value, str) else json.dumps(value)].append(reward)
            for value, own in by.items():
                rewards[name].setdefault(value, RewardCounter()).add(own)
                counts[name][value] += len(own)
    return {
        name: [
            Category(value, found[value], rewards[name][value].accuracy())
            for value in sorted(found, key=lambda value: (-found[value], value))[:most]
        ]
        for name, found in counts.items()
    }
