"""What became of a team's rows: how often each role was asked, and what depended on it. All is from the deltas."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from trunkline._core import Tree as Core
from trunkline.errors import TreeError
from trunkline.tree.records import Record, Records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_Ask: TypeAlias = "tuple[str, tuple[bool, bool] | None]"

__all__ = ["RowCounts", "Rows"]


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one role of a team: a row is a turn that it took in a rollout.

    Attributes:
        active: Rows whose reply something depends on.
        inactive: Other rows: the role was asked, and nobody was told what it said.
        valid: Active rows that are valid actions, as the role's projection reads them.
        rounds: The most times that it was asked in one rollout; the k-th time is its round k.
        whole: Rows that a loop over whole batches would carry for it: rounds times rollouts.
        active_ratio: Active rows on the paths of all rollouts, what a fork begins with included, as a share of
            ``whole``; so rows that a fork shares count for each rollout, as they would there.
        valid_share: ``valid`` as a share of ``active``; 0 without any.
    """

    active: int
    inactive: int
    valid: int
    rounds: int
    whole: int
    active_ratio: float
    valid_share: float


class _Count:
    """One role's rows."""

    def __init__(self) -> None:
        self.seen: Counter[tuple[bool, bool]] = Counter()
        self.carried = 0
        self.rounds = 0

    def rows(self, rollouts: int) -> Rows:
        seen, whole = self.seen, self.rounds * rollouts
        active, valid = seen[True, True] + seen[True, False], seen[True, True]
        return Rows(
            active=active,
            inactive=seen.total() - active,
            valid=valid,
            rounds=self.rounds,
            whole=whole,
            active_ratio=self.carried / whole if whole else 0.0,
            valid_share=valid / active if active else 0.0,
        )


class RowCounts:
    """Counts the rows of a team, tree by tree."""

    def __init__(self) -> None:
        self._counts: defaultdict[str, _Count] = defaultdict(_Count)
        self._rollouts = 0

    def add(self, deltas: Sequence[bytes], taken: int = 0) -> None:
        """Count a tree.

        Args:
            deltas: Its deltas.
            taken: How many of them, the first ones, are an earlier run's. Rows in these are no rows of this run, but
                its rollouts go on from them.

        Raises:
            TreeError: They are damaged, or what is on record of a turn is not what a team notes.
        """
        core = Core()
        for data in deltas[:taken]:
            core.apply(data)
        earlier = Records(core) if taken else None
        for data in deltas[taken:]:
            core.apply(data)
        records = Records(core)
        self._rollouts += core.rollouts
        for rollout in range(core.rollouts):
            known = len(earlier.own(rollout)) if earlier is not None else 0
            for name, note in _asks(records.own(rollout)[known:]):
                if note is not None:
                    self._counts[name].seen[note] += 1
            self._carry(_asks(records.of(rollout)))

    def _carry(self, path: Iterable[_Ask]) -> None:
        """Count what lies on the path of one rollout."""
        asked: Counter[str] = Counter()
        for name, note in path:
            asked[name] += 1
            if note is not None and note[0]:
                self._counts[name].carried += 1
        for name, times in asked.items():
            count = self._counts[name]
            count.rounds = max(count.rounds, times)

    def by_role(self) -> dict[str, Rows]:
        """Return the rows of each role that was asked."""
        return {name: count.rows(self._rollouts) for name, count in self._counts.items()}


def _asks(records: Iterable[Record]) -> Iterator[_Ask]:
    """Return who was asked, and what is on record of the row; None where a role got no turn."""
    for record in records:
        if record.kind == "ask":
            yield record.key, _note(record.data) if record.nodes else None


def _note(data: Sequence[Any]) -> tuple[bool, bool]:
    """Whether a row is active, and valid."""
    match data:
        case [_, _, [bool(active), bool(valid), *_]]:
            return active, valid
        case _:
            raise TreeError("what is on record of a turn is not what a team notes of a row")
