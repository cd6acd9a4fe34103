"""The journal of one tree: what programs were told that the tree's nodes do not say, as marks in it.

A record is the mark ``{"record": [rollout, index, kind, key, nodes, data]}``, written in the step in which the nodes
were appended that it is about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline._core import Tree as Core

__all__ = ["Journal", "Record"]


class Record(NamedTuple):
    """Something that a program did, and what came of it.

    Attributes:
        rollout: Whose program did it.
        kind: ``ask``, ``use``, ``observe``, ``tool``, ``call`` or ``now``.
        key: Which one: a role, a tool, a function; empty where there is but one.
        data: What came of it, as JSON; what it is depends on the kind.
        nodes: The nodes it appended.
    """

    rollout: int
    kind: str
    key: str
    data: Sequence[Any]
    nodes: Sequence[int]

    @property
    def name(self) -> str:
        """What to call it in a message."""
        return f"{self.kind} {self.key}".rstrip()


class _Mark(msgspec.Struct, omit_defaults=True):
    """The marks of programs; other kinds are skipped.

    Attributes:
        record: Rollout, index, kind, key, nodes, data.
        forked: Rollout, the one that it takes its first records from, and how many of those that are its own.
    """

    record: tuple[int, int, str, str, list[int], list[Any]] | None = None
    forked: tuple[int, int, int] | None = None


_decoder = msgspec.json.Decoder(_Mark)


class Journal:
    """Reads and writes the records of a tree.

    Args:
        core: The tree, whose marks are read now.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._records: dict[int, list[Record]] = {}
        self._forked: dict[int, tuple[int, int]] = {}
        for text in core.marks():
            mark = _decoder.decode(text)
            if mark.forked is not None:
                rollout, source, count = mark.forked
                self._forked[rollout] = source, count
            if mark.record is not None:
                rollout, _, kind, key, nodes, data = mark.record
                self._own(rollout).append(Record(rollout, kind, key, data, nodes))

    def _own(self, rollout: int) -> list[Record]:
        return self._records.setdefault(rollout, [])

    def write(self, rollout: int, kind: str, key: str, nodes: Sequence[int], *data: Any) -> None:
        """Write a record, in the step in which its nodes were appended."""
        own = self._own(rollout)
        entry = (rollout, len(own), kind, key, list(nodes), list(data))
        self._core.mark(msgspec.json.encode({"record": entry}).decode())
        own.append(Record(rollout, kind, key, data, nodes))

    def opened(self, rollout: int) -> None:
        """Note whose records a rollout begins with, in the step in which it is opened.

        These are the records of the one that first came to the state it grows from, until another node was appended
        there. A rollout that grows from the prompt begins with none.
        """
        facts = self._core.rollout(rollout)
        trunk = facts.path[:-2]
        if not trunk:
            return
        source = next(number for number in range(rollout) if self._core.rollout(number).path == trunk)
        before = set(self._core.path(facts.point))
        own = self._own(source)
        count = next((place for place, record in enumerate(own) if not before.issuperset(record.nodes)), len(own))
        self._core.mark(msgspec.json.encode({"forked": (rollout, source, count)}).decode())
        self._forked[rollout] = source, count

    def of(self, rollout: int) -> list[Record]:
        """What is on record for a rollout's program from its very beginning, the parts of others included."""
        return [*self._inherited(rollout), *self._own(rollout)]

    def _inherited(self, rollout: int) -> list[Record]:
        if rollout not in self._forked:
            return []
        source, count = self._forked[rollout]
        return [*self._inherited(source), *self._own(source)[:count]]
