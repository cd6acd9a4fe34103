"""Aggregators by name, as the command line knows them."""

from __future__ import annotations

from typing import Final

from trunkline.score.aggregators.integrate import Integrate
from trunkline.score.aggregators.synthesis import Synthesis
from trunkline.score.aggregators.votes import BestOfN, Majority, Weighted

__all__ = ["AGGREGATORS"]

AGGREGATORS: Final[dict[str, type]] = {
    "majority": Majority,
    "weighted": Weighted,
    "best": BestOfN,
    "synthesis": Synthesis,
    "integrate": Integrate,
}
"""Classes of aggregators."""
