"""Exact prefixes: a turn whose prompt was not its path's token ids was sampled after something else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import msgspec

from trunkline._core import drift_of
from trunkline.bounds import shown
from trunkline.errors import ConfigError
from trunkline.score.filters.options import treatment
from trunkline.score.verdicts import Action, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trunkline.score.filters.group import Group

__all__ = ["ExactPrefix"]

_POLICIES = ("bridge", "realign", "fork")


class ExactPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """Drops trajectories with a turn whose prompt did not go on from its path's token ids (as rLLM does).

    Such turns are known where token ids are (:class:`trunkline.TokenMode`); without them nothing is found.

    Args:
        allowed: Policies that make up for it, among ``bridge``, ``realign`` and ``fork``; none by default.
        action: ``mask`` or ``drop``.
        count_in_baseline: Whether the reward of a masked trajectory counts in the baseline.

    Raises:
        ConfigError: If an option has a value it cannot have.
    """

    name: ClassVar[str] = "exact_prefix"
    allowed: Sequence[str] = ()
    action: Action = "drop"
    count_in_baseline: bool = True

    def __post_init__(self) -> None:
        treatment("ExactPrefix", self.action, self.count_in_baseline)
        listed = isinstance(self.allowed, list | tuple)
        if not listed or any(policy not in _POLICIES for policy in self.allowed):
            raise ConfigError(
                f"ExactPrefix: allowed must list some of {', '.join(_POLICIES)}, not {shown(self.allowed)}"
            )

    def judge(self, group: Group) -> Iterator[tuple[int, Verdict]]:
        """Yield each trajectory whose prompt drifted, with the first turn at which it did."""
        for rollout in group.ended:
            for place, turn in enumerate(group.turns(rollout), 1):
                found = drift_of(group.tree.core, turn.id)
                if found is not None and found[0] not in self.allowed:
                    reason = f"the prompt of turn {place} drifted from its path ({found[0]})"
                    yield rollout.id, Verdict(self.name, self.action, reason, self.count_in_baseline)
                    break
