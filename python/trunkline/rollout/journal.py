"""The journal of one tree: what programs were told that the tree's nodes do not say, as marks in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trunkline._core import MESSAGE
from trunkline.tree.records import How, Record, Records

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["How", "Journal", "Record"]


class Journal(Records):
    """Reads and writes the records of a tree. What is written is read once somebody asks.

    Args:
        core: The tree.
    """

    def own(self, rollout: int) -> list[Record]:
        """What a rollout's program did itself, in order."""
        self.read()
        return super().own(rollout)

    def of(self, rollout: int) -> list[Record]:
        """What is on record for a rollout's program from its very beginning, the parts of others included."""
        self.read()
        return super().of(rollout)

    def write(self, record: Record) -> None:
        """Write a record, in the step in which its nodes were appended. Turns come with theirs; see :class:`Parked`."""
        rollout, kind, key, nth, data, nodes, how = record
        entry = (rollout, nth, kind, key, nodes, data, how)
        self._core.mark(msgspec.json.encode({"record": entry}).decode())

    def opened(self, rollout: int) -> None:
        """Note whose records a rollout begins with, in the step in which it is opened.

        These are the records of the one that first came to the state it grows from, until another node was appended
        there. A rollout that grows from the prompt begins with none.
        """
        facts = self._core.rollout(rollout)
        before = set(self._core.path(facts.point))
        source = self._source(rollout, facts.path[:-2], before)
        if source is None:
            return
        own = self.own(source)
        count = next((place for place, record in enumerate(own) if not before.issuperset(record.nodes)), len(own))
        self._core.mark(msgspec.json.encode({"forked": (rollout, source, count)}).decode())

    def _source(self, rollout: int, trunk: Sequence[int], before: set[int]) -> int | None:
        """Who first came to where a rollout grows from; None at the prompt, where nobody has done anything."""
        core = self._core
        if trunk:
            return next(number for number in range(rollout) if core.rollout(number).path == trunk)
        if all(core.node(node).kind != MESSAGE for node in before):
            return None
        # Before any turn, a program has appended messages.
        who = (one for one in range(rollout) for record in self.own(one) if not before.isdisjoint(record.nodes))
        return next(who, None)
