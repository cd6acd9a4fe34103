"""Groups without variance: where all rewards are equal, nothing can be learned from comparing them."""

from __future__ import annotations

import math
from statistics import fmean, pstdev, stdev
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from trunkline.bounds import choice, number, whole
from trunkline.errors import ConfigError
from trunkline.score.filters.options import OVERLONG, flag
from trunkline.score.verdicts import Verdict, counted, penalty
from trunkline.types import UNSCORED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trunkline.score.filters.group import Group

__all__ = ["ZeroVariance"]


class ZeroVariance(msgspec.Struct, frozen=True, kw_only=True):
    """Drops groups whose rewards differ by no more than a threshold; whatever masks rollouts has judged before.

    Compared are the rewards of the group's live rollouts: those that have one, and that nothing has masked or dropped.
    A group without any is dropped. The standard deviation is computed without rounding, so that equal rewards are
    equal. The defaults are DAPO's (Yu et al. 2025, arXiv 2503.14476, in TreePO's recipe): a group is kept if its
    standard deviation is above 0, or if it has one rollout. Dr.MAS's rule, not all rewards equal, comes to the same.
    :mod:`trunkline.score.filters.presets` has those of SimpleTIR, slime and SkyRL.

    Args:
        measure: ``std`` or ``spread`` (largest less smallest reward).
        ddof: 0 or 1: the squares are divided by n - ddof.
        threshold: Up to this the group is dropped.
        single: Whether a live rollout that is alone is kept.
        low: Least mean reward of a group that is kept; no limit when None.
        high: Largest one.
        clipped: Whether a group is kept in which every live rollout hit its limit of tokens or context.
        unclipped: Live rollouts below that limit that a group needs.
        shaped: Whether penalties are in the rewards that are compared.
        masked: Whether masked rollouts whose reward counts in the baseline are compared as well.

    Raises:
        ConfigError: If an option has a value it cannot have.
    """

    name: ClassVar[str] = "zero_variance"
    whole: ClassVar[bool] = True
    scored: ClassVar[bool] = True
    measure: Literal["std", "spread"] = "std"
    ddof: int = 0
    threshold: float = 0.0
    single: bool = True
    low: float | None = None
    high: float | None = None
    clipped: bool = True
    unclipped: int = 0
    shaped: bool = False
    masked: bool = False

    def __post_init__(self) -> None:
        choice("ZeroVariance: measure", self.measure, "std", "spread")
        whole("ZeroVariance: ddof", self.ddof, 0, 1)
        number("ZeroVariance: threshold", self.threshold, 0)
        whole("ZeroVariance: unclipped", self.unclipped, 0)
        for name in ("single", "clipped", "shaped", "masked"):
            flag(f"ZeroVariance: {name}", getattr(self, name))
        for name in ("low", "high"):
            if getattr(self, name) is not None:
                number(f"ZeroVariance: {name}", getattr(self, name), -math.inf)
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ConfigError(f"ZeroVariance: low is {self.low:g}, which is above high, {self.high:g}")

    def judge(self, group: Group) -> Iterator[tuple[int, Verdict]]:
        """Yield every rollout of a group that is dropped."""
        reason = self._reason(group)
        if reason:
            for rollout in group.rollouts:
                yield rollout.id, Verdict(self.name, "drop", reason, count_in_baseline=False)

    def _reason(self, group: Group) -> str:
        """Why a group is dropped; empty if it is kept."""
        rewards = self._rewards(group)
        if not rewards:
            return "no rollout is left that has a reward"
        below = sum(rollout.termination not in OVERLONG for rollout in group.live)
        if below < self.unclipped or (not below and not self.clipped):
            return f"{below} of {len(group.live)} rollouts ended below their limit of length"
        mean = fmean(rewards)
        if (self.low is not None and mean < self.low) or (self.high is not None and mean > self.high):
            return f"the mean reward is {mean:.4g}"
        if len(rewards) == 1:
            return "" if self.single else "one rollout is left"
        found = self._measure(rewards)
        return f"the {self.measure} of {len(rewards)} rewards is {found:.4g}" if found <= self.threshold else ""

    def _rewards(self, group: Group) -> list[float]:
        compared = group.live
        if self.masked:
            compared = [
                rollout
                for rollout in group.ended
                if rollout.termination not in UNSCORED and counted(group.verdicts(rollout))
            ]
        added = [penalty(group.verdicts(rollout)) if self.shaped else 0.0 for rollout in compared]
        rewards = [rollout.reward + extra for rollout, extra in zip(compared, added, strict=True)]
        return [reward for reward in rewards if not math.isnan(reward)]

    def _measure(self, rewards: Sequence[float]) -> float:
        if self.measure == "spread":
            return max(rewards) - min(rewards)
        # Of the statistics module: exact fractions inside.
        return stdev(rewards) if self.ddof else pstdev(rewards)
