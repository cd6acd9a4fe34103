"""What a study keeps of a tree: its tries, what they answered and what they cost; and what a group of them shows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline.scoring.metrics import majority_at_n

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.tree.views import Tree

__all__ = ["COSTS", "TOKENS", "Measures", "Prices", "Try", "measure", "price", "tries_of"]


class Try(NamedTuple):
    """One rollout.

    Attributes:
        reward: 1 where its answer is accepted, else 0; NaN where it was cut off or broke.
        answer: Its answer.
        generated: Tokens generated for it alone; those of a trunk belong to the rollout that made them.
        uncached: Prompt tokens that no cache held, likewise.
        tools: Tool calls, likewise.
    """

    reward: float
    answer: str | None
    generated: int
    uncached: int
    tools: int


class Prices(NamedTuple):
    """What things cost, in generated tokens."""

    generated: float
    uncached: float
    tools: float


TOKENS: Final = Prices(1.0, 0.0, 0.0)
"""Generated tokens alone."""

COSTS: Final = Prices(1.0, 0.2, 50.0)
"""Everything: a prompt token that no cache held at a fifth of a generated one, a tool call at 50."""


class Measures(NamedTuple):
    """What a group of tries shows.

    Attributes:
        rollouts: Scored tries.
        single: Accuracy of one try.
        majority: Accuracy of the most frequent answer; a tie counts as its expectation under a fair draw.
        passed: Whether any try is right (pass@k, with k the rollouts of the group).
        mixed: Whether the rewards differ, so that the group teaches something.
    """

    rollouts: float
    single: float
    majority: float
    passed: float
    mixed: float


def tries_of(tree: Tree) -> list[Try]:
    """The rollouts of a labelled tree, in the order they were opened."""
    found = []
    for rollout in tree.rollouts:
        usage = rollout.usage
        found.append(Try(rollout.reward, rollout.answer, usage.generated, usage.prompt - usage.cached, usage.tools))
    return found


def price(tries: Sequence[Try], prices: Prices) -> float:
    """What some tries cost together, in generated tokens."""
    return math.fsum(
        prices.generated * each.generated + prices.uncached * each.uncached + prices.tools * each.tools
        for each in tries
    )


def measure(tries: Sequence[Try]) -> Measures:
    """What a group of tries shows; nobody who was not scored has a voice."""
    scored = [each for each in tries if not math.isnan(each.reward)]
    rewards = [each.reward for each in scored]
    if not scored:
        return Measures(0.0, 0.0, 0.0, 0.0, 0.0)
    vote = majority_at_n([[each.answer for each in scored]], [rewards])
    return Measures(
        len(scored),
        math.fsum(rewards) / len(rewards),
        vote.value if vote is not None else 0.0,
        max(rewards),
        float(min(rewards) != max(rewards)),
    )
