"""Rewards: what a trajectory is worth."""

from trunkline.score.rewards.matching import contains, exact_match, numeric_match
from trunkline.score.rewards.reward import Reward, Scored

__all__ = ["Reward", "Scored", "contains", "exact_match", "numeric_match"]
