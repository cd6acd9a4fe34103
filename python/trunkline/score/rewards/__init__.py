"""Rewards: what a trajectory is worth."""

from trunkline.score.rewards.choice import Choice
from trunkline.score.rewards.f1 import F1
from trunkline.score.rewards.matching import Numeric, contains, exact_match, numeric_match
from trunkline.score.rewards.maths import Maths
from trunkline.score.rewards.reward import Part, Reward, Scored
from trunkline.score.rewards.weighting import WeightedRewards, weighted

__all__ = [
    "F1",
    "Choice",
    "Maths",
    "Numeric",
    "Part",
    "Reward",
    "Scored",
    "WeightedRewards",
    "contains",
    "exact_match",
    "numeric_match",
    "weighted",
]
