"""Overlong trajectories: a soft penalty near the limit of length, or a mask for what a limit cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from trunkline.bounds import number, whole
from trunkline.errors import ConfigError
from trunkline.score.filters.options import OVERLONG, flag, treatment
from trunkline.score.verdicts import Action, Verdict
from trunkline.types import Termination

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trunkline.score.filters.group import Group
    from trunkline.tree.trajectory import Trajectory

__all__ = ["OverlongMask", "OverlongPenalty"]


class OverlongPenalty(msgspec.Struct, frozen=True, kw_only=True):
    """Takes from the reward of long trajectories, the more the longer (DAPO's soft overlong punishment).

    With L generated tokens it adds ``min(-(L - (length - buffer)) / buffer * factor, 0)`` (Yu et al. 2025, arXiv
    2503.14476): nothing up to ``length - buffer``, and ``-factor`` at ``length``. The reward itself stays as it is in
    the run file; training views add the penalty.

    Args:
        length: Tokens of the longest response, over all turns of the path.
        buffer: Tokens before that within which the penalty grows.
        factor: The penalty at ``length``.

    Raises:
        ConfigError: If an option has a value it cannot have.
    """

    name: ClassVar[str] = "overlong_penalty"
    length: int = 20480
    buffer: int = 4096
    factor: float = 1.0

    def __post_init__(self) -> None:
        whole("OverlongPenalty: length", self.length, 1)
        whole("OverlongPenalty: buffer", self.buffer, 1, self.length)
        number("OverlongPenalty: factor", self.factor, 0, 1e6, above=True)

    def amount(self, tokens: int) -> float:
        """Return what is added to the reward of a trajectory of so many generated tokens: 0, or less.

        Args:
            tokens: Generated tokens, at least 0.
        """
        return min(-(tokens - (self.length - self.buffer)) / self.buffer * self.factor, 0.0)

    def judge(self, group: Group) -> Iterator[tuple[int, Verdict]]:
        """Yield each trajectory that is penalised.

        Raises:
            ConfigError: The server reports no usage, so that nobody knows how long a trajectory is.
        """
        for rollout in group.ended:
            tokens = _generated(group, rollout)
            amount = self.amount(tokens)
            if amount:
                yield rollout.id, Verdict(self.name, "penalty", f"{tokens} generated tokens", amount=amount)


class OverlongMask(msgspec.Struct, frozen=True, kw_only=True):
    """Masks trajectories that a limit cut off (TRL's ``mask_truncated_completions``, SkyRL's overlong filtering).

    Args:
        action: ``mask`` or ``drop``.
        count_in_baseline: Whether the reward of a masked trajectory counts in the baseline, as it does in both.
        turns: Whether those that ran out of turns are masked too, beside those that ran out of tokens or context.

    Raises:
        ConfigError: If an option has a value it cannot have.
    """

    name: ClassVar[str] = "overlong_mask"
    action: Action = "mask"
    count_in_baseline: bool = True
    turns: bool = False

    def __post_init__(self) -> None:
        treatment("OverlongMask", self.action, self.count_in_baseline)
        flag("OverlongMask: turns", self.turns)

    def judge(self, group: Group) -> Iterator[tuple[int, Verdict]]:
        """Yield each trajectory that was cut off."""
        limits = OVERLONG | ({Termination.MAX_TURNS} if self.turns else set())
        for rollout in group.ended:
            if rollout.termination in limits:
                yield (
                    rollout.id,
                    Verdict(self.name, self.action, f"ended as {rollout.termination}", self.count_in_baseline),
                )


def _generated(group: Group, rollout: Trajectory) -> int:
    """Tokens that the model generated on a path, its trunk included."""
    total = 0
    for turn in group.turns(rollout):
        if turn.generated_tokens is None:
            raise ConfigError(
                "the server reports no usage for a turn, so its length is not known: use overlong_mask, which goes by "
                "how rollouts end"
            )
        total += turn.generated_tokens
    return total
