"""What a session has decided, as marks in its tree: each is written in the step in which it is carried out."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trunkline._core import TURN
from trunkline.errors import TreeError
from trunkline.llm.request import Sampling
from trunkline.rollout.side_effects import unresolved_effects
from trunkline.rollout.types import KeptPrefix
from trunkline.strategies.base import _TOOK

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trunkline._core import CoreTree
    from trunkline.strategies.base import Fork

__all__ = [
    "CarriedOver",
    "Checkpoint",
    "CutMark",
    "ForkRecord",
    "JudgedMark",
    "Mark",
    "RefusedMark",
    "RoundMark",
    "ServedMark",
    "SpentMark",
    "write",
]


class CarriedOver(NamedTuple):
    """How much of a tree was there before its run began.

    Attributes:
        rollouts: Rollouts, the first ones.
        marks: Marks, likewise.
        growing: Which of the rollouts had not ended.
    """

    rollouts: int = 0
    marks: int = 0
    growing: tuple[int, ...] = ()

    @classmethod
    def of(cls, core: CoreTree) -> CarriedOver:
        """All that there is of a tree."""
        return cls(core.rollouts, len(core.marks()), tuple(core.growing))


class ForkRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a fork says of its rollouts that is not on the tree.

    Attributes:
        first: The first of them.
        n: How many there are.
        turn: The turn that they go on inside of.
        at: How many of its tokens are kept.
        steps: Model turns that each may take.
        sampling: What their first turns are sampled with.
    """

    first: int
    n: int
    turn: int | None = None
    at: int | None = None
    steps: int | None = None
    sampling: Sampling | None = None

    @classmethod
    def by(cls, fork: Fork, numbers: Sequence[int]) -> ForkRecord:
        """What a fork says of the rollouts that it opened."""
        inside = fork.point if fork.at is not None else None
        return cls(numbers[0], len(numbers), inside, fork.at, fork.steps, fork.sampling)

    @property
    def kept(self) -> KeptPrefix | None:
        """What its rollouts go on from, where they fork inside a turn."""
        return None if self.turn is None or self.at is None else KeptPrefix(self.turn, self.at)

    @property
    def says(self) -> bool:
        """Whether it says anything."""
        return (self.at, self.steps, self.sampling) != (None, None, None)


class RoundMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """A round has begun.

    Attributes:
        round: Which one; the first is 0.
        told: Ended rollouts that the strategy was asked about.
        go: Who waited and goes on, with the model turns on its path.
        stop: Who waited and is stopped, with the reason.
        forks: What was opened, where a fork says more of it than the tree does.
    """

    round: int
    told: tuple[int, ...] = ()
    go: dict[int, int] = {}
    stop: dict[int, str] = {}
    forks: tuple[ForkRecord, ...] = ()


class CutMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """Growth was cut.

    Attributes:
        cut: The word for it; see :class:`~trunkline.store.schema.TreeEnding`.
        why: In words.
        keep: Whether those that grew stay as they are.
        spared: Who grew and is not cut: its program was over.
    """

    cut: str
    why: str
    keep: bool = False
    spared: tuple[int, ...] = ()


class RefusedMark(msgspec.Struct, frozen=True):
    """A budget did not pay.

    Attributes:
        refused: For how many rollouts that were to start.
        why: What its ledger says.
    """

    refused: int
    why: str


class JudgedMark(msgspec.Struct, frozen=True):
    """Filters have judged the tree.

    Attributes:
        judged: How many rollouts it had.
    """

    judged: int


class ServedMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """Those who waited to spend of the task's budget were served.

    Attributes:
        served: Who may, with the node where it stands.
        denied: Who may not, with what the ledger says.
    """

    served: dict[int, int]
    denied: dict[int, str] = {}


class SpentMark(msgspec.Struct, frozen=True):
    """Something was paid for out of the task's budget.

    Attributes:
        spent: How much, of each currency with a limit.
        rollout: By whom.
    """

    spent: dict[str, int]
    rollout: int


Mark = RoundMark | CutMark | RefusedMark | JudgedMark | ServedMark | SpentMark

_KINDS: dict[str, type[Mark]] = {
    kind.__struct_fields__[0]: kind for kind in (RoundMark, CutMark, RefusedMark, JudgedMark, ServedMark, SpentMark)
}


def write(core: CoreTree, mark: Mark) -> None:
    """Write a mark into a tree."""
    core.mark(msgspec.json.encode(mark).decode())


def _read(core: CoreTree) -> Iterator[tuple[int, Mark]]:
    """Yield the marks that are a session's, each with its number.

    Raises:
        TreeError: One is damaged.
    """
    for number, text in enumerate(core.marks()):
        kind = _KINDS.get(text[2:].partition('"')[0])
        if kind is not None:
            try:
                yield number, msgspec.json.decode(text, type=kind)
            except msgspec.MsgspecError as problem:
                raise TreeError(f"mark {number} of the tree is damaged: {problem}") from None


class Checkpoint:
    """How far the session had come that grew a tree before.

    Args:
        core: The tree.
        taken: How much of it is an earlier run's, whose session decided nothing for this one; only what it said of
            rollouts that have not begun still holds.

    Attributes:
        last: The round that began last; None where the strategy was not asked yet.
        told: Ended rollouts that the strategy was asked about.
        endings: What has changed how growth ends, in order.
        judged: Whether filters have judged the tree.
        unresolved: By rollout, which call may have taken effect: it ends for that, and spends nothing again.
    """

    def __init__(self, core: CoreTree, taken: CarriedOver) -> None:
        self.last: RoundMark | None = None
        self.told: set[int] = set()
        self.endings: list[CutMark | RefusedMark] = []
        self.judged = False
        self.unresolved = unresolved_effects(core)
        self._core = core
        self._forks: dict[int, ForkRecord] = {}
        self._served = ServedMark({})
        self._spent: Counter[str] = Counter()
        # By rollout since the last service: one that was served a second time, after a break, did spend once.
        self._since: dict[int, Counter[str]] = {}
        for number, mark in _read(core):
            if isinstance(mark, RoundMark):
                for fork in mark.forks:
                    self._forks.update(dict.fromkeys(range(fork.first, fork.first + fork.n), fork))
            if number >= taken.marks:
                self._take(mark)

    def _take(self, mark: Mark) -> None:
        match mark:
            case RoundMark():
                self.last = mark
                self.told.update(mark.told)
            case CutMark() | RefusedMark():
                self.endings.append(mark)
            case JudgedMark():
                self.judged = True
            case ServedMark():
                self._served = mark
                self._spent = sum(self._since.values(), self._spent)
                self._since = {}
            case SpentMark():
                self._since[mark.rollout] = Counter(mark.spent)

    def fork(self, rollout: int) -> ForkRecord | None:
        """What the fork of a rollout said of it."""
        return self._forks.get(rollout)

    def took(self, rollout: int) -> bool:
        """Whether a rollout ended because it took all the steps that its fork gave it."""
        fork = self.fork(rollout)
        limited = fork is not None and fork.steps is not None
        return limited and self._core.rollout(rollout).error == _TOOK

    @property
    def released(self) -> set[int]:
        """Who was let go in the last round, and has not moved since."""
        core, going = self._core, {} if self.last is None else self.last.go
        return {number for number, turns in going.items() if number in core.growing and self._turns(number) == turns}

    @property
    def stopped(self) -> dict[int, str]:
        """Who was stopped in the last round and has not ended yet, with the reason."""
        stop = {} if self.last is None else self.last.stop
        return {number: why for number, why in stop.items() if number in self._core.growing}

    @property
    def decided(self) -> dict[int, str | None]:
        """Who was served last and has not moved since; with why not, where it was denied."""
        denied = {number: why for number, why in self._served.denied.items() if number in self._core.growing}
        return denied | {number: None for number in self._served.served if self._stands(number)}

    @property
    def spent(self) -> Counter[str]:
        """What was spent of the task's budget; what is in flight will be spent again."""
        return sum((spent for number, spent in self._since.items() if not self._stands(number)), self._spent)

    @property
    def unsettled(self) -> dict[int, int]:
        """Model turns that came out of the last service, and that nothing says the cost of, by their rollouts."""
        served = self._served.served.items()
        turns = {number: self._after(number, node) for number, node in served if number not in self._since}
        return {number: turn for number, turn in turns.items() if turn is not None}

    def settle(self, rollout: int, spent: dict[str, int]) -> None:
        """Write down what something did cost that was served last."""
        write(self._core, SpentMark(spent, rollout))
        self._since[rollout] = Counter(spent)

    def _turns(self, number: int) -> int:
        return self._core.rollout(number).turns

    def _stands(self, number: int) -> bool:
        """Whether a rollout goes on from where it was served last."""
        facts = self._core.rollout(number)
        return (
            facts.termination is None
            and number not in self.unresolved
            and self._served.served.get(number) == facts.leaf
        )

    def _after(self, number: int, node: int) -> int | None:
        """The turn of a rollout that follows a node."""
        path = self._core.path(self._core.rollout(number).leaf)
        turn = next(iter(path[path.index(node) + 1 :]), None)
        return turn if turn is not None and self._core.node(turn).kind == TURN else None
