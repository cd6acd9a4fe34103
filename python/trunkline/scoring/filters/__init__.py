"""Filters: which rollouts of a finished group are trained, and at what price. What they say is in the run file."""

from trunkline.score.filters.filter import Filter, Finding
from trunkline.score.filters.group import Group
from trunkline.score.filters.overlong import OverlongMask, OverlongPenalty
from trunkline.score.filters.prefix import ExactPrefix
from trunkline.score.filters.presets import SimpleTIR, SkyRL, Slime, TreeRLRepetition
from trunkline.score.filters.repetition import Repetition
from trunkline.score.filters.variance import ZeroVariance
from trunkline.score.filters.void import VoidTurns
from trunkline.score.verdicts import Verdict

__all__ = [
    "ExactPrefix",
    "Filter",
    "Finding",
    "Group",
    "OverlongMask",
    "OverlongPenalty",
    "Repetition",
    "SimpleTIR",
    "SkyRL",
    "Slime",
    "TreeRLRepetition",
    "Verdict",
    "VoidTurns",
    "ZeroVariance",
]
