"""Filters by name, as the command line knows them."""

from __future__ import annotations

from typing import Final

from trunkline.score.filters.overlong import OverlongMask, OverlongPenalty
from trunkline.score.filters.prefix import ExactPrefix
from trunkline.score.filters.presets import SimpleTIR, SkyRL, Slime, TreeRLRepetition
from trunkline.score.filters.repetition import Repetition
from trunkline.score.filters.variance import ZeroVariance
from trunkline.score.filters.void import VoidTurns

__all__ = ["FILTERS"]

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
