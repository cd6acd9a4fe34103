"""The ways to one answer that are compared; one line adds one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from trunkline.scoring.aggregators.llm import Integrate, Synthesis
from trunkline.scoring.aggregators.voting import BestOfN, Majority, WeightedVote

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.llm.types import LLMClient
    from trunkline.scoring.aggregators.base import Aggregator

__all__ = ["ARMS", "MAJORITY", "ONE", "PICKER", "Arm"]

PICKER: Final = "sim-picker"
"""The model that reads reports, writes them where they lack, and picks."""

ONE: Final = "one try"
MAJORITY: Final = "majority"


class Arm(NamedTuple):
    """A way from several chains to one answer. None is shown a label.

    Attributes:
        name: What the tables call it.
        make: Makes the aggregator, given the model that reads; most need none.
        by: Where the candidates' confidence comes from, a name in ``CONFIDENCES``.
        extracted: Whether candidates have a report that was extracted without a model.
        judged: Whether a model says of every try whether its answer is right; that is then its reward.
        reads: Whether the aggregator asks a model.
        single: Whether it is one chain, whatever the budget.
    """

    name: str
    make: Callable[[LLMClient], Aggregator]
    by: Literal["logprob", "verbalised"] = "logprob"
    extracted: bool = False
    judged: bool = False
    reads: bool = False
    single: bool = False


ARMS: Final = {
    arm.name: arm
    for arm in (
        Arm(ONE, lambda _: Majority(), single=True),
        Arm(MAJORITY, lambda _: Majority()),
        Arm("weighted by log-prob", lambda _: WeightedVote()),
        Arm("weighted by stated confidence", lambda _: WeightedVote(), "verbalised"),
        Arm("best by log-prob", lambda _: BestOfN(by="confidence")),
        Arm("best by stated confidence", lambda _: BestOfN(by="confidence"), "verbalised"),
        Arm("weighted by a judge", lambda _: WeightedVote(by="reward"), judged=True),
        Arm("best by a judge", lambda _: BestOfN(by="reward"), judged=True),
        Arm("synthesis, reports extracted", lambda llm: Synthesis(llm, PICKER), extracted=True, reads=True),
        Arm("integrate, reports written", lambda llm: Integrate(llm, PICKER), reads=True),
    )
}
"""Every arm by its name, in the order of the tables."""
