"""Void turns: a model turn that neither calls a tool nor answers spoils its trajectory."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from trunkline.score.filters.options import flag, treatment
from trunkline.score.verdicts import Action, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trunkline.score.filters.group import Group
    from trunkline.tree.node import Node

__all__ = ["VoidTurns"]


class VoidTurns(msgspec.Struct, frozen=True, kw_only=True):
    """Masks trajectories with a void turn, whole (SimpleTIR, Xue et al. 2025, arXiv 2509.02479).

    What is a call and what an answer, the agent's dialect says; a blank answer is none. A call that fails is not void.
    With ``Agent(void="stop")`` a rollout ends at such a turn, as ``filtered`` and unscored; else the model is told and
    goes on.

    Args:
        action: ``mask`` or ``drop``.
        count_in_baseline: Whether the reward of a masked trajectory counts in the baseline, as it does in SimpleTIR.
        truncated: Whether a turn that the token limit cut off is void too. It was never read, so it holds neither.

    Raises:
        ConfigError: If an option has a value it cannot have.
    """

    name: ClassVar[str] = "void_turns"
    action: Action = "mask"
    count_in_baseline: bool = True
    truncated: bool = True

    def __post_init__(self) -> None:
        treatment("VoidTurns", self.action, self.count_in_baseline)
        flag("VoidTurns: truncated", self.truncated)

    def judge(self, group: Group) -> Iterator[tuple[int, Verdict]]:
        """Yield each trajectory that has a void turn, with the first."""
        for rollout in group.ended:
            for place, turn in enumerate(group.turns(rollout), 1):
                if self._void(group, turn):
                    reason = f"turn {place} neither calls a tool nor answers"
                    yield rollout.id, Verdict(self.name, self.action, reason, self.count_in_baseline)
                    break

    def _void(self, group: Group, turn: Node) -> bool:
        if turn.finish == "length":
            return self.truncated
        parsed = group.read(turn)
        return not parsed.calls and not (parsed.answer or "").strip()
