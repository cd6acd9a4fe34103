"""Code as an answer: run against the tests of its task."""

from trunkline.score.rewards.code.code import Code, OpenCode

__all__ = ["Code", "OpenCode"]
