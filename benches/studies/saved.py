"""What a rollout of a strategy costs beside a chain of the same question: generated tokens and tool calls."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from studies.cell import POOL
from studies.compare import of_arm
from studies.interval import Interval, ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from studies.cell import Group
    from studies.tries import Try

__all__ = ["FIGURES", "Saved", "saved"]

FIGURES: Final = 2
"""How many shares are told of an arm."""


class Saved(NamedTuple):
    """What rollouts of an arm cost, over what as many chains of the same questions do.

    Attributes:
        rollouts: Of a question.
        generated: Share of the generated tokens.
        tools: Share of the tool calls.
    """

    rollouts: float
    generated: Interval
    tools: Interval


def saved(groups: Sequence[Group], arm: str, family: int = 1) -> Saved:
    """Compare an arm with its pool of chains, question by question.

    Args:
        groups: Of one preset.
        arm: Name of the arm.
        family: How many intervals are to hold together; see :func:`studies.interval.ratio`.
    """
    pools = of_arm(groups, POOL)
    pairs = [(own.tries, pools[key].tries) for key, own in of_arm(groups, arm).items()]

    def share(name: str) -> Interval:
        above = [_sum(tries, name) for tries, _ in pairs]
        below = [len(tries) * _sum(chains, name) / len(chains) for tries, chains in pairs]
        return ratio(above, below, family)

    return Saved(sum(len(tries) for tries, _ in pairs) / len(pairs), share("generated"), share("tools"))


def _sum(tries: Sequence[Try], name: str) -> float:
    return math.fsum(getattr(each, name) for each in tries)
