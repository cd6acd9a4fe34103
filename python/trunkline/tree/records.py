"""What programs did, as the marks of one tree have it.

A record is the mark ``{"record": [rollout, nth, kind, key, nodes, data, how]}``, written in the step in which the nodes
were appended that it is about. The mark ``{"forked": [rollout, source, count]}`` says whose records a rollout begins
with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec

from trunkline.errors import TreeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline._core import Tree as Core

__all__ = ["How", "Record", "Records"]

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


class Records:
    """Reads the records of a tree.

    Args:
        core: The tree, whose marks are read now.

    Raises:
        TreeError: A rollout is said to begin with what cannot be.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._records: dict[int, list[Record]] = {}
        self._forked: dict[int, tuple[int, int]] = {}
        self._marks = 0
        self.read()

    def read(self) -> None:
        """Read the marks that were written since."""
        texts = self._core.marks(self._marks)
        self._marks += len(texts)
        for text in texts:
            mark = _decoder.decode(text)
            if mark.forked is not None:
                rollout, source, count = mark.forked
                if not (0 <= source < rollout and count >= 0):
                    raise TreeError(f"rollout {rollout} cannot begin with {count} records of rollout {source}")
                self._forked[rollout] = source, count
            if mark.record is not None:
                rollout, nth, kind, key, nodes, data, how = mark.record
                self._records.setdefault(rollout, []).append(Record(rollout, kind, key, nth, data, nodes, how))

    def own(self, rollout: int) -> list[Record]:
        """What a rollout's program did itself, in order."""
        return self._records.get(rollout, [])

    def of(self, rollout: int) -> list[Record]:
        """What is on record for a rollout's program from its very beginning, the parts of others included."""
        return [*self._inherited(rollout), *self.own(rollout)]

    def _inherited(self, rollout: int) -> list[Record]:
        parts = []
        while rollout in self._forked:
            rollout, count = self._forked[rollout]
            parts.append(self.own(rollout)[:count])
        return [record for part in reversed(parts) for record in part]
