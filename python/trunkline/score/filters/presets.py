"""Published settings of filters, as classes with other defaults."""

from __future__ import annotations

from typing import Literal

from trunkline.score.filters.repetition import Repetition
from trunkline.score.filters.variance import ZeroVariance

__all__ = ["SimpleTIR", "SkyRL", "Slime", "TreeRLRepetition"]


class SimpleTIR(ZeroVariance, frozen=True, kw_only=True):
    """Drops groups up to a standard deviation of 0.001, and those whose live rollouts all hit their limit of length.

    Its optional window of accuracy is ``low=0.1, high=0.9``, and its ``remove_clip`` with ``min_n`` is ``unclipped=4``.
    """

    threshold: float = 1e-3
    clipped: bool = False


class Slime(ZeroVariance, frozen=True, kw_only=True):
    """Drops groups up to a sample standard deviation (divided by n - 1) of 1e-6, and groups of one."""

    ddof: int = 1
    threshold: float = 1e-6
    single: bool = False


class SkyRL(ZeroVariance, frozen=True, kw_only=True):
    """Drops groups of two live rollouts or more whose rewards lie within 1e-6."""

    measure: Literal["std", "spread"] = "spread"
    threshold: float = 1e-6


class TreeRLRepetition(Repetition, frozen=True, kw_only=True):
    """Masks trajectories with a turn in which 50 characters stand at more than 20 places (TreeRL, arXiv 2506.11902)."""

    window: int = 50
    times: int = 21
    where: Literal["last", "any"] = "any"
