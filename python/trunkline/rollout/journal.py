"""The journal of one tree: what programs were told that the tree's nodes do not say, as marks in it.

A record is the mark ``{"record": [rollout, nth, kind, key, nodes, data, how]}``, written in the step in which the nodes
were appended that it is about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec

from trunkline._core import MESSAGE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline._core import Tree as Core

__all__ = ["How", "Journal", "Record"]

How: TypeAlias = Literal["", "alone", "given up"]
"""How something came to its end: beside other things, while nothing else was under way, or not at all."""


class Record(NamedTuple):
    """Something that a program did, and what came of it.

    Attributes:
        rollout: Whose program did it.
        kind: ``ask``, ``use``, ``observe``, ``tool``, ``call`` or ``now``.
        key: Which one: a role, a tool, a function; empty where there is but one.
        nth: How many of the same the program had begun before.
        data: What came of it, as JSON; what it is depends on the kind.
        nodes: The nodes it appended.
        how: See :data:`How`.
    """

    rollout: int
    kind: str
    key: str
    nth: int
    data: Sequence[Any]
    nodes: Sequence[int]
    how: How = ""

    @property
    def alone(self) -> bool:
        """Whether nothing else was under way, from its beginning to its end."""
        return self.how == "alone"

    @property
    def given_up(self) -> bool:
        """Whether the program gave it up: nothing came of it."""
        return self.how == "given up"

    @property
    def name(self) -> str:
        """What to call it in a message."""
        return f"{self.kind} {self.key}".rstrip()


class _Mark(msgspec.Struct, omit_defaults=True):
    """The marks of programs; other kinds are skipped.

    Attributes:
        record: Rollout, nth, kind, key, nodes, data, how.
        forked: Rollout, the one that it takes its first records from, and how many of those that are its own.
    """

    record: tuple[int, int, str, str, list[int], list[Any], How] | None = None
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
                rollout, nth, kind, key, nodes, data, how = mark.record
                self._own(rollout).append(Record(rollout, kind, key, nth, data, nodes, how))

    def _own(self, rollout: int) -> list[Record]:
        return self._records.setdefault(rollout, [])

    def write(self, record: Record) -> None:
        """Write a record, in the step in which its nodes were appended."""
        rollout, kind, key, nth, data, nodes, how = record
        entry = (rollout, nth, kind, key, nodes, data, how)
        self._core.mark(msgspec.json.encode({"record": entry}).decode())
        self._own(rollout).append(record)

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
        own = self._own(source)
        count = next((place for place, record in enumerate(own) if not before.issuperset(record.nodes)), len(own))
        self._core.mark(msgspec.json.encode({"forked": (rollout, source, count)}).decode())
        self._forked[rollout] = source, count

    def _source(self, rollout: int, trunk: Sequence[int], before: set[int]) -> int | None:
        """Who first came to where a rollout grows from; None at the prompt, where nobody has done anything."""
        core = self._core
        if trunk:
            return next(number for number in range(rollout) if core.rollout(number).path == trunk)
        if all(core.node(node).kind != MESSAGE for node in before):
            return None
        # Before any turn, a program has appended messages.
        who = (one for one in range(rollout) for record in self._own(one) if not before.isdisjoint(record.nodes))
        return next(who, None)

    def of(self, rollout: int) -> list[Record]:
        """What is on record for a rollout's program from its very beginning, the parts of others included."""
        return [*self._inherited(rollout), *self._own(rollout)]

    def _inherited(self, rollout: int) -> list[Record]:
        if rollout not in self._forked:
            return []
        source, count = self._forked[rollout]
        return [*self._inherited(source), *self._own(source)[:count]]
