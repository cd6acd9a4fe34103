"""Decisions of a tree runner as marks in its tree, each written in the step that carries it out."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trunkline._core import TURN, CoreTree
from trunkline.llm.request import Sampling
from trunkline.rollout.side_effects import unresolved_effects
from trunkline.rollout.types import KeptPrefix
from trunkline.store.schema import TreeEnding
from trunkline.strategies.base import _TOOK
from trunkline.tree.records import read_marks

if TYPE_CHECKING:
    from trunkline.errors import UnknownEffect
    from trunkline.strategies.base import Fork


class CarriedOver(NamedTuple):
    """How many rollouts and marks a tree had before its run began, and which of the rollouts were growing."""

    rollouts: int = 0
    marks: int = 0
    growing: tuple[int, ...] = ()

    @classmethod
    def of(cls, core: CoreTree) -> CarriedOver:
        """Return the counts of a tree as it is now."""
        return cls(core.rollouts, len(core.marks()), tuple(core.growing))


class ForkRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a fork says of its rollouts that the tree does not hold: prefix kept of a turn, step limit, sampling."""

    first: int
    n: int
    turn: int | None = None
    at: int | None = None
    steps: int | None = None
    sampling: Sampling | None = None

    @classmethod
    def by(cls, fork: Fork, first: int) -> ForkRecord:
        """Return the record of a fork whose first rollout this is."""
        inside = fork.point if fork.at is not None else None
        return cls(first, fork.n, inside, fork.at, fork.steps, fork.sampling)

    @property
    def kept(self) -> KeptPrefix | None:
        """The prefix of a turn that its rollouts continue; None where they begin a turn."""
        return None if self.turn is None or self.at is None else KeptPrefix(self.turn, self.at)


class RoundMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """A round began: ended rollouts told to the strategy, turns of those continued, reasons of those stopped, forks."""

    round: int
    told: tuple[int, ...] = ()
    go: dict[int, int] = {}
    stop: dict[int, str] = {}
    forks: tuple[ForkRecord, ...] = ()


class CutMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """Growth was cut: word of the ending, reason, whether growing rollouts stay open, rollouts already over."""

    cut: str
    why: str
    keep: bool = False
    spared: tuple[int, ...] = ()


class RefusedMark(msgspec.Struct, frozen=True):
    """A budget refused to pay for so many new rollouts; ``why`` is the ledger's text."""

    refused: int
    why: str


class JudgedMark(msgspec.Struct, frozen=True):
    """Filters judged the tree when it had so many rollouts."""

    judged: int


class ServedMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """Budget requests were answered: granted ones with the leaf of their rollout, denied ones with the reason."""

    served: dict[int, int]
    denied: dict[int, str] = {}


class SpentMark(msgspec.Struct, frozen=True):
    """A rollout spent amounts of the task's limited currencies."""

    spent: dict[str, int]
    rollout: int


class RetryMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """A finished tree grows on, without its strategy, by the first and the number of these rollouts.

    Older rollouts that have not ended stay so. ``ending`` is that of the tree before, where it still holds.
    """

    again: tuple[int, int]
    forks: tuple[ForkRecord, ...] = ()
    ending: TreeEnding | None = None


Mark = RoundMark | CutMark | RefusedMark | JudgedMark | ServedMark | SpentMark | RetryMark

_KINDS: dict[str, type[Mark]] = {
    kind.__struct_fields__[0]: kind
    for kind in (RoundMark, CutMark, RefusedMark, JudgedMark, ServedMark, SpentMark, RetryMark)
}


def write(core: CoreTree, mark: Mark) -> None:
    """Append a mark to a tree."""
    core.mark(msgspec.json.encode(mark).decode())


@lru_cache(maxsize=16)
def plain_round(number: int) -> str:
    """Return the mark of a round that begins with nothing but forks that the tree holds."""
    return msgspec.json.encode(RoundMark(number)).decode()


class Checkpoint:
    """State of an earlier runner of the same tree, read from its marks; of a source run only fork records count."""

    __slots__ = (
        "_core",
        "_forks",
        "_served",
        "_since",
        "_spent",
        "before",
        "endings",
        "judged",
        "last",
        "reopened",
        "retried",
        "told",
        "unresolved",
    )

    def __init__(self, core: CoreTree, taken: CarriedOver) -> None:
        self.last: RoundMark | None = None
        self.told: set[int] = set()
        self.endings: list[CutMark | RefusedMark] = []
        self.before: TreeEnding | None = None
        self.judged = False
        self.reopened = self.retried = 0
        self.unresolved: dict[int, UnknownEffect] = {}
        self._core = core
        self._forks: dict[int, ForkRecord] = {}
        self._served = ServedMark({})
        self._spent: Counter[str] = Counter()
        # By rollout since the last service: one that was served a second time, after a break, did spend once.
        self._since: dict[int, Counter[str]] = {}
        self.unresolved = unresolved_effects(core)
        for number, mark in read_marks(core, _KINDS, "the tree"):
            if isinstance(mark, RoundMark | RetryMark):
                for fork in mark.forks:
                    self._forks.update(dict.fromkeys(range(fork.first, fork.first + fork.n), fork))
            if number >= taken.marks:
                self._take(mark)

    @classmethod
    def of(cls, core: CoreTree, taken: CarriedOver) -> Checkpoint:
        """Return the state of a tree; that of trees without marks is one object."""
        return cls(core, taken) if core.marks() else _UNMARKED

    def _take(self, mark: Mark) -> None:
        match mark:
            case RoundMark():
                self.last = mark
                self.told.update(mark.told)
            case CutMark() | RefusedMark():
                self.endings.append(mark)
            case JudgedMark():
                self.judged = True
            case RetryMark():
                first, count = mark.again
                self.reopened = first
                self.retried += count
                self.told.update(range(first))
                self.before, self.endings = mark.ending, []
                self.judged = False
            case ServedMark():
                self._served = mark
                self._spent = sum(self._since.values(), self._spent)
                self._since = {}
            case SpentMark():
                self._since[mark.rollout] = Counter(mark.spent)

    def fork(self, rollout: int) -> ForkRecord | None:
        """Return the record of a rollout's fork."""
        return self._forks.get(rollout)

    def took(self, rollout: int) -> bool:
        """Whether a rollout ended because it used the steps that its fork allowed."""
        fork = self.fork(rollout)
        limited = fork is not None and fork.steps is not None
        return limited and self._core.rollout(rollout).error == _TOOK

    @property
    def released(self) -> set[int]:
        """Rollouts that were continued in the last round and have made no turn since."""
        core, going = self._core, {} if self.last is None else self.last.go
        return {number for number, turns in going.items() if number in core.growing and self._turns(number) == turns}

    @property
    def stopped(self) -> dict[int, str]:
        """Rollouts that were stopped in the last round and have not ended, with the reason."""
        stop = {} if self.last is None else self.last.stop
        return {number: why for number, why in stop.items() if number in self._core.growing}

    @property
    def decided(self) -> dict[int, str | None]:
        """Rollouts whose budget request was answered last and that have not moved since; a reason if denied."""
        denied = {number: why for number, why in self._served.denied.items() if number in self._core.growing}
        return denied | {number: None for number in self._served.served if self._stands(number)}

    @property
    def spent(self) -> Counter[str]:
        """Amounts spent of the task's budget, without those in flight, which are spent again."""
        return sum((spent for number, spent in self._since.items() if not self._stands(number)), self._spent)

    @property
    def unsettled(self) -> dict[int, int]:
        """Turns that were granted last and whose cost is not recorded, by rollout."""
        served = self._served.served.items()
        turns = {number: self._after(number, node) for number, node in served if number not in self._since}
        return {number: turn for number, turn in turns.items() if turn is not None}

    def settle(self, rollout: int, spent: dict[str, int]) -> None:
        """Record the cost of something that was granted last."""
        write(self._core, SpentMark(spent, rollout))
        self._since[rollout] = Counter(spent)

    def _turns(self, number: int) -> int:
        return self._core.rollout(number).turns

    def _stands(self, number: int) -> bool:
        """Whether a rollout is still at the leaf where its request was granted."""
        facts = self._core.rollout(number)
        return (
            facts.termination is None
            and number not in self.unresolved
            and self._served.served.get(number) == facts.leaf
        )

    def _after(self, number: int, node: int) -> int | None:
        """Return the turn of a rollout that follows a node."""
        path = self._core.path(self._core.rollout(number).leaf)
        turn = next(iter(path[path.index(node) + 1 :]), None)
        return turn if turn is not None and self._core.node(turn).kind == TURN else None


_UNMARKED = Checkpoint(CoreTree(), CarriedOver())
