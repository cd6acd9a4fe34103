"""Aggregators (``trunkline.aggregators``): many answers to one question into one, with the evidence kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline._internal.exports import exports

if TYPE_CHECKING:
    from trunkline.scoring.aggregators.aggregate import aggregate
    from trunkline.scoring.aggregators.base import Aggregator, Candidate, Decision
    from trunkline.scoring.aggregators.llm import Integrate, Synthesis
    from trunkline.scoring.aggregators.voting import BestOfN, Majority, WeightedVote
    from trunkline.scoring.reports.extractive import extract as extract_report
    from trunkline.scoring.reports.reporter import Reporter

__all__ = [
    "Aggregator",
    "BestOfN",
    "Candidate",
    "Decision",
    "Integrate",
    "Majority",
    "Reporter",
    "Synthesis",
    "WeightedVote",
    "aggregate",
    "extract_report",
]

__getattr__ = exports(
    __name__,
    """
scoring.aggregators.aggregate: aggregate
scoring.aggregators.base: Aggregator Candidate Decision
scoring.aggregators.llm: Integrate Synthesis
scoring.aggregators.voting: BestOfN Majority WeightedVote
scoring.reports.extractive: extract_report=extract
scoring.reports.reporter: Reporter
""",
)
