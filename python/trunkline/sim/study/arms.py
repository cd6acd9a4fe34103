"""The strategies that are compared, each at one size; one line adds one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline.errors import ConfigError
from trunkline.rollout.strategies.chain import Chain
from trunkline.rollout.strategies.tree_grpo import TreeGRPO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.rollout.strategy import Strategy
    from trunkline.score.rewards import Reward
    from trunkline.tree.trajectory import Trajectory

__all__ = ["ARMS", "Arm", "confidence", "find_arms"]


def confidence(trajectory: Trajectory) -> float:
    """How sure the model was of what it said, 0 to 1: one over the perplexity of a turn, on average.

    It knows no label. It needs log-probabilities; where there are none it is 0.

    Args:
        trajectory: A rollout.
    """
    perplexities = [trajectory.tree.core.node(node.id).perplexity[2] for node in trajectory.nodes if node.finish]
    known = [1 / value for value in perplexities if value >= 1]
    return math.fsum(known) / len(known) if known else 0.0


class Arm(NamedTuple):
    """A strategy in a study.

    Attributes:
        name: What the tables call it.
        strategy: The policy, with its size.
        guide: What it is shown as reward while it selects. It must not look at accepted answers, unless ``labels``.
        logprobs: Whether it needs the log-probabilities of what was sampled.
        labels: Whether it selects by accepted answers; the tables say so, and no check of the null applies.
    """

    name: str
    strategy: Strategy
    guide: Reward | None = None
    logprobs: bool = False
    labels: bool = False


ARMS: Final = {
    arm.name: arm
    for arm in (
        Arm("Chain(4)", Chain(4)),
        Arm("TreeGRPO(2, 2, 1)", TreeGRPO(trees=2, forks=2, rounds=1)),
        Arm("TreeGRPO(1, 4, 2)", TreeGRPO(trees=1, forks=4, rounds=2)),
    )
}
"""Every arm by its name, in the order of the tables."""


def find_arms(names: Sequence[str]) -> list[str]:
    """The names of the arms that were asked for, in the order of the tables; all where none was.

    Args:
        names: Full names, or how they begin, in any case: ``treegrpo`` asks for every TreeGRPO.

    Raises:
        ConfigError: A name fits no arm.
    """
    wanted = set()
    for name in names:
        found = [known for known in ARMS if known.casefold().startswith(name.strip().casefold())]
        if not name.strip() or not found:
            raise ConfigError(f"strategies: there is no {name!r}; there are {', '.join(ARMS)}")
        wanted.update(found)
    return [name for name in ARMS if not names or name in wanted]
