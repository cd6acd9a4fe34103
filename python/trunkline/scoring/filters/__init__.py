"""Filters: which rollouts of a finished group are trained, and at what price. What they say is in the run file."""


from __future__ import annotations


from trunkline.scoring.filters.base import Filter
from trunkline.scoring.filters.base import Finding
from trunkline.scoring.filters.base import Group
from trunkline.scoring.filters.builtin import ExactPrefix
from trunkline.scoring.filters.builtin import OverlongMask
from trunkline.scoring.filters.builtin import OverlongPenalty
from trunkline.scoring.filters.builtin import Repetition
from trunkline.scoring.filters.builtin import SimpleTIR
from trunkline.scoring.filters.builtin import SkyRL
from trunkline.scoring.filters.builtin import Slime
from trunkline.scoring.filters.builtin import TreeRLRepetition
from trunkline.scoring.filters.builtin import VoidTurns
from trunkline.scoring.filters.builtin import ZeroVariance
from trunkline.scoring.notes import Verdict
from typing import Final


__all__ = ["ExactPrefix", "FILTERS", "Filter", "Finding", "Group", "OverlongMask", "OverlongPenalty", "Repetition", "SimpleTIR", "SkyRL", "Slime", "TreeRLRepetition", "Verdict", "VoidTurns", "ZeroVariance"]


FILTERS: Final[dict[str, type]] = {
    "void-turns": VoidTurns,
    "overlong-penalty": OverlongPenalty,
    "overlong-mask": OverlongMask,
    "repetition": Repetition,
    "repetition-treerl": TreeRLRepetition,
    "exact-prefix": ExactPrefix,
    "zero-variance": ZeroVariance,
    "simpletir": SimpleTIR,
    "slime": Slime,
    "skyrl": SkyRL,
}
"""Classes of filters."""
