"""Several rewards as one: the sum of what they say, each with its weight."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from trunkline.bounds import number, shown
from trunkline.errors import ConfigError
from trunkline.score.rewards.grading import Grader
from trunkline.score.rewards.policy import policy_of
from trunkline.score.rewards.reward import LARGEST, Part, Scored

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trunkline.score.rewards.reward import Reward
    from trunkline.tree.trajectory import Trajectory

__all__ = ["WeightedRewards", "weighted"]


class WeightedRewards(msgspec.Struct, frozen=True):
    """The sum of several rewards, each times its weight.

    The weights count as they are given; they need not come to 1, and one may be negative. All rewards are asked at
    once. If one of them has no value the whole has none: a sum without it would be another quantity. What each said
    stands in the rollout's note.

    Args:
        rewards: The rewards by their names.
        weights: What each counts; 1 where nothing is said.

    Raises:
        ConfigError: There is none, one cannot be called, or a weight is no number or of no reward.
    """

    # What is a function, or has fields of its own, reaches workers by its name.
    rewards: dict[str, Any]
    weights: dict[str, float] = {}

    timeout: ClassVar[float] = math.inf

    def __post_init__(self) -> None:
        rewards: object = self.rewards
        weights: object = self.weights
        if not isinstance(rewards, dict) or not rewards:
            raise ConfigError(f"weighted: rewards must be a dict of at least one reward, not {shown(rewards)}")
        if not isinstance(weights, dict):
            raise ConfigError(f"weighted: weights must be a dict, not {shown(weights)}")
        for name, reward in rewards.items():
            if not isinstance(name, str) or not name.strip():
                raise ConfigError(f"weighted: the name of a reward must be a string, not {shown(name)}")
            if not callable(reward) or isinstance(reward, type):
                raise ConfigError(f"weighted: {shown(name)} must be a reward that can be called, not {shown(reward)}")
            policy_of(reward)
        for name, weight in weights.items():
            if name not in rewards:
                raise ConfigError(f"weighted: there is a weight of {shown(name)}; the rewards are {', '.join(rewards)}")
            number(f"weighted: weight of {name}", weight, -LARGEST, LARGEST)

    async def __call__(self, trajectory: Trajectory) -> Scored:
        """Ask all of them about one trajectory.

        Args:
            trajectory: An ended rollout.
        """
        live = self.opened()
        try:
            return await live(trajectory)
        finally:
            await live.close()

    def opened(self) -> OpenRewards:
        """Return what asks them while a run lasts."""
        return OpenRewards({name: (Grader(one), self.weights.get(name, 1.0)) for name, one in self.rewards.items()})


class OpenRewards:
    """Rewards that are asked together, each in its way; each keeps its own time.

    Args:
        graders: Who asks each, and what it counts.
    """

    timeout = math.inf

    def __init__(self, graders: Mapping[str, tuple[Grader, float]]) -> None:
        self._graders = graders

    async def __call__(self, trajectory: Trajectory) -> Scored:
        """Ask all of them; whether the trajectory may be seen has been decided."""
        async with asyncio.TaskGroup() as group:
            asked = [
                group.create_task(grader.score(trajectory, cut=True)) for grader, _weight in self._graders.values()
            ]
        said = [one.result() for one in asked]
        parts = tuple(
            Part(name, one.value, weight, one.problem)
            for (name, (_grader, weight)), one in zip(self._graders.items(), said, strict=True)
        )
        missing = [f"{part.name}: {part.problem or 'it gave no value'}" for part in parts if math.isnan(part.value)]
        if missing:
            return Scored(math.nan, "; ".join(missing), parts)
        whole = math.fsum(part.weight * part.value for part in parts)
        if abs(whole) > LARGEST:
            return Scored(math.nan, "the weighted sum is too large for a number", parts)
        return Scored(whole, None, parts)

    async def close(self) -> None:
        """Close all of them."""
        for grader, _weight in self._graders.values():
            await grader.close()


def weighted(rewards: Mapping[str, Reward | tuple[Reward, float]]) -> WeightedRewards:
    """Make one reward of several.

    Args:
        rewards: The rewards by their names, each alone or with its weight: ``{"f1": (F1(), 0.5),
            "exact": exact_match}``.

    Raises:
        ConfigError: As :class:`WeightedRewards`.
    """
    given: object = rewards
    if not isinstance(given, dict):
        raise ConfigError(f"weighted takes a dict of rewards, not {shown(given)}")
    held: dict[str, Any] = {}
    weights: dict[str, float] = {}
    for name, one in given.items():
        held[name] = one
        if isinstance(one, tuple):
            if len(one) != 2:
                raise ConfigError(f"weighted: {shown(name)} must be a reward, or a reward and its weight")
            held[name], weights[name] = one
    return WeightedRewards(held, weights)
