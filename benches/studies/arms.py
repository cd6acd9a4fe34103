"""The strategies that are compared, each at one size; one line adds one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from trunkline.errors import ConfigError
from trunkline.scoring.rewards import exact_match
from trunkline.strategies.adaptive import Adaptive
from trunkline.strategies.chain import Chain
from trunkline.strategies.entropy_tree import EntropyTree
from trunkline.strategies.mcts import MCTS
from trunkline.strategies.partial import Partial
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.strategies.tree_search import TreeSearch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.scoring.rewards import Reward
    from trunkline.strategies.base import Strategy
    from trunkline.tree.views import Trajectory

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
        guide: What it is shown as reward while it selects. It must not look at reference answers, unless ``labels``.
        needs: What it must know of what was sampled: nothing, ``logprobs``, or token ``ids``, whose prompts are then
            sent as ids, too.
        blind: Whether where it forks depends on nothing that was said.
        labels: Whether it selects by reference answers; the tables say so, and no check of the null applies.
        again: Whether its draws are those of another run seed: the control, repeated.
    """

    name: str
    strategy: Strategy
    guide: Reward | None = None
    needs: Literal["", "logprobs", "ids"] = ""
    blind: bool = False
    labels: bool = False
    again: bool = False


ARMS: Final = {
    arm.name: arm
    for arm in (
        Arm("Chain(4)", Chain(4), blind=True),
        Arm("Chain(4) again", Chain(4), blind=True, again=True),
        Arm("TreeSearch(3, 2)", TreeSearch(width=3, keep=2), needs="logprobs"),
        Arm("TreeGRPO(2, 2, 1)", TreeGRPO(trees=2, forks=2, rounds=1), blind=True),
        Arm("TreeGRPO(1, 4, 2)", TreeGRPO(trees=1, forks=4, rounds=2), blind=True),
        Arm("Partial(2, 2, 1, 2, 10)", Partial(initial=2, top_k=2, rounds=1, samples=2, budget=10), needs="logprobs"),
        Arm("MCTS(8) by confidence", MCTS(8), guide=confidence, needs="logprobs"),
        Arm("MCTS(8) sees labels", MCTS(8), guide=exact_match, labels=True),
        Arm("Adaptive(8, 4) ARPO", Adaptive(total=8, initial=4), needs="logprobs"),
        Arm("Adaptive(8, 4) AEPO", Adaptive(total=8, initial=4, rule="aepo", monitor=True), needs="logprobs"),
        Arm("EntropyTree(2, 2, 1, 2)", EntropyTree(chains=2, points=2, rounds=1, samples=2), needs="ids"),
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
