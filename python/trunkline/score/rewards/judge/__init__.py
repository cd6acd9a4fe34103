"""A model as the judge of answers."""

from trunkline.score.rewards.judge.judge import Judge, OpenJudge

__all__ = ["Judge", "OpenJudge"]
