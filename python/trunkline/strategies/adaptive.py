"""ARPO and AEPO: rollouts branch after tool calls that left the model less sure, or surer, than it was at first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import msgspec

from trunkline._core import TURN, branch_rows, initial_chains
from trunkline._internal.validation import check_bool, check_choice, check_float, check_int
from trunkline.strategies.base import Fork

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trunkline._core import CoreTree
    from trunkline.strategies.base import View


class Adaptive(msgspec.Struct, frozen=True):
    """Some chains; the places left go to branches after tool rounds (Dong et al. 2025, arXiv 2507.19849, 2510.14545).

    All rollouts of a task take a step. Then each that continues gets ``beam - 1`` attempts to branch, with a
    probability that depends on how its entropy has changed since the first turn that has one: see
    ``branch_probability`` in the core. A branch starts where the rollout stands, behind the result of the tool. Where
    every rollout has ended and places are left, one starts afresh.

    A turn's entropy is ARPO's: summed over the ten likeliest tokens at each of the first twenty places, and divided by
    ``ln(vocabulary)``. A rollout whose entropy is not known does not branch.

    Args:
        total: Rollouts a task gets, n.
        initial: Of these, how many start as chains.
        rule: ``arpo``, or ``aepo``, which branches less the more rounds in a row have branched.
        probability: Of a branch where entropy has not changed, 0 to 1.
        weight: How much of the change counts.
        beam: Rollouts that one may become in a round, itself included.
        monitor: Whether a first chain alone, to its end, decides how many chains there are, as in AEPO: the fewer the
            surer its first turn was compared with those after tool calls. ``initial`` where it called no tool.
        vocabulary: Tokens the model knows; the default is Qwen2.5's.
        likeliest: How many of the likeliest tokens are asked for at each place, at least; ARPO's figure has ten.

    Raises:
        ConfigError: An option is out of range.
    """

    uncertain: ClassVar[str] = "all"

    total: int = 16
    initial: int = 8
    rule: str = "arpo"
    probability: float = 0.5
    weight: float = 0.2
    beam: int = 2
    monitor: bool = False
    vocabulary: int = 151_665
    likeliest: int = 10

    def __post_init__(self) -> None:
        check_int("Adaptive: total", self.total, 1, 2**20)
        check_int("Adaptive: initial", self.initial, 1, self.total)
        check_choice("Adaptive: rule", self.rule, "arpo", "aepo")
        check_float("Adaptive: probability", self.probability, 0, 1)
        check_float("Adaptive: weight", self.weight, -1e6, 1e6)
        check_int("Adaptive: beam", self.beam, 1, 4096)
        check_bool("Adaptive: monitor", self.monitor)
        check_int("Adaptive: vocabulary", self.vocabulary, 2, 2**32 - 1)
        check_int("Adaptive: likeliest", self.likeliest, 1, 20)

    def rollouts(self) -> int:
        """Return the total."""
        return self.total

    def formula(self) -> str:
        """Return how many rollouts, for people."""
        chains = "chains of a first one's entropies" if self.monitor else f"{self.initial} chains"
        return f"n = {self.total}: {chains}, then branches after tool calls and fresh ones"

    def start(self, view: View) -> Iterable[Fork]:
        """Yield the chains, or the one that decides how many there are."""
        yield Fork(n=1 if self.monitor else self.initial)

    def stepped(self, view: View) -> Iterable[Fork]:
        """Yield branches of the rollouts that go on."""
        core, rows = view.tree.core, view.rollouts
        if self._monitors(core) or core.rollouts >= self.total:
            return
        entropies = [self._entropies(core, row.leaf.id) for row in rows]
        branches, _ = branch_rows(
            [row[-1] for row in entropies],
            [next((entropy for entropy in row if not math.isnan(entropy)), math.nan) for row in entropies],
            self.total - core.rollouts,
            view.seed(),
            rule=self.rule,
            probability=self.probability,
            weight=self.weight,
            beam=self.beam,
            streak=_streak(core, rows[0].turns),
        )
        for row, n in zip(rows, branches, strict=True):
            if n and view.can_fork(row.leaf.id):
                yield Fork(row.leaf.id, n=n, subgroup=row.subgroup)

    def ended(self, view: View) -> Iterable[Fork]:
        """Yield a fresh rollout where all have ended, or the chains that a first one was to decide on."""
        core = view.tree.core
        if core.growing or core.rollouts >= self.total:
            return
        yield Fork(n=max(1, self._chains(core) - 1) if self._monitors(core) else 1)

    def _monitors(self, core: CoreTree) -> bool:
        """Whether the first chain is still alone."""
        return self.monitor and core.rollouts == 1

    def _chains(self, core: CoreTree) -> int:
        """How many chains there are to be, by the entropies of the first."""
        root, *later = self._entropies(core, core.rollout(0).leaf) or [math.nan]
        after = [entropy for entropy in later if not math.isnan(entropy)]
        return self.initial if math.isnan(root) or not after else initial_chains(self.total, root, after)

    def _entropies(self, core: CoreTree, leaf: int) -> Sequence[float]:
        """Entropies of the turns on the path to a node; NaN where not known."""
        facts = map(core.node, core.path(leaf))
        return [node.arpo(self.vocabulary) for node in facts if node.kind == TURN]


def _streak(core: CoreTree, turn: int) -> int:
    """The number of rounds in a row with a branch, up to the one before this.

    Rollouts step together, so a round is a number of turns, which a branch's fork path holds.
    """
    paths = [core.rollout(number).path for number in range(core.rollouts)]
    fresh = max(number for number, path in enumerate(paths) if len(path) == 2)
    branched = {path[-2] for path in paths[fresh + 1 :]}
    rounds = 0
    while turn - 1 - rounds in branched:
        rounds += 1
    return rounds
