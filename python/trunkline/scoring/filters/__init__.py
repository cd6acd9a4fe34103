"""Filters: which rollouts of a finished group are trained, and at what price. What they say is in the run file."""

from __future__ import annotations

from typing import Final

from trunkline._internal.registry import Registry
from trunkline.scoring.filters.base import Filter, Finding, Group
from trunkline.scoring.filters.builtin import (
    ExactPrefix,
    OverlongMask,
    OverlongPenalty,
    Repetition,
    SimpleTIR,
    SkyRL,
    Slime,
    TreeRLRepetition,
    VoidTurns,
    ZeroVariance,
)
from trunkline.scoring.notes import Verdict

__all__ = [
    "FILTERS",
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

FILTERS: Final[Registry[type]] = Registry(
    "filter",
    {
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
    },
)
"""Filters by name: iterating gives the names of the command line, ``FILTERS.find(name)`` its class."""
