"""Votes: the answer of most tries, of the tries that weigh most, or of the best one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import msgspec

from trunkline.bounds import choice
from trunkline.score.aggregators.aggregator import Decision
from trunkline.score.aggregators.ballot import SOURCES, Ballot, By, number_of, poll, weights
from trunkline.score.aggregators.clusters import Same, check_same
from trunkline.score.filters.options import flag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.score.aggregators.aggregator import Candidate

__all__ = ["BestOfN", "Majority", "Weighted", "check_options"]


def check_options(name: str, by: object, contain: object, same: object) -> None:
    """Check the options that aggregators share.

    Raises:
        ConfigError: One has a value it cannot have.
    """
    choice(f"{name}: by", by, *SOURCES)
    flag(f"{name}: contain", contain)
    check_same(f"{name}: same", same)


class Majority(msgspec.Struct, frozen=True, kw_only=True):
    """The answer that most tries gave: self-consistency (Wang et al. 2023, arXiv 2203.11171).

    Args:
        contain: Whether an answer counts as one that holds it, where that is unambiguous; see
            :func:`trunkline.score.aggregators.clusters.cluster`.
        same: Whether two answers mean the same, beside those with one normal form; on a command line
            ``module:function``.

    Raises:
        ConfigError: An option has a value it cannot have.
    """

    name: ClassVar[str] = "majority"
    contain: bool = False
    same: Same | None = None

    def __post_init__(self) -> None:
        check_options("Majority", "confidence", self.contain, self.same)

    async def decide(self, question: str, candidates: Sequence[Candidate]) -> Decision:
        """See :meth:`.Aggregator.decide`; a tie goes to the first in the order of normalised answers."""
        return _decision(self.name, poll(candidates, contain=self.contain, same=self.same))


class Weighted(msgspec.Struct, frozen=True, kw_only=True):
    """The answer whose tries weigh most together.

    A try without a number counts as the mean of those that have one; where none has, all weigh the same. Rewards and
    values below 0 weigh nothing.

    Args:
        by: What weighs: the candidates' ``confidence``, ``reward`` or ``value``.
        contain: See :class:`Majority`.
        same: See :class:`Majority`.

    Raises:
        ConfigError: An option has a value it cannot have.
    """

    name: ClassVar[str] = "weighted"
    by: By = "confidence"
    contain: bool = False
    same: Same | None = None

    def __post_init__(self) -> None:
        check_options("Weighted", self.by, self.contain, self.same)

    async def decide(self, question: str, candidates: Sequence[Candidate]) -> Decision:
        """See :meth:`.Aggregator.decide`; a tie goes to the first in the order of normalised answers."""
        weigh, why = weights(candidates, self.by)
        return _decision(self.name, poll(candidates, weigh, contain=self.contain, same=self.same, why=why))


class BestOfN(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the try with the best number.

    Of several such tries the one counts whose answer more tries gave, then the first in the order of normalised
    answers. Parties weigh what they have of votes. Where no try has a number, most votes decide.

    Args:
        by: What is best: the candidates' ``reward``, ``confidence`` or ``value``. Here they may be negative; one that
            is infinite is none.
        contain: See :class:`Majority`.
        same: See :class:`Majority`.

    Raises:
        ConfigError: An option has a value it cannot have.
    """

    name: ClassVar[str] = "best"
    by: By = "reward"
    contain: bool = False
    same: Same | None = None

    def __post_init__(self) -> None:
        check_options("BestOfN", self.by, self.contain, self.same)

    async def decide(self, question: str, candidates: Sequence[Candidate]) -> Decision:
        """See :meth:`.Aggregator.decide`."""
        ballot = poll(candidates, contain=self.contain, same=self.same)
        values = {one.id: number_of(one, self.by) for one in candidates}
        best = [_best([values[voter] for voter in party.voters]) for party in ballot.parties]
        top = max(best, default=-math.inf)
        if top == -math.inf:
            why = f"no try has a {self.by}, so most votes decide" if ballot.parties else ""
            return _decision(self.name, ballot._replace(why=why, equal=why != ""))
        # Parties stand in the order of their votes, then of their answers, which is that of ties.
        leading = [party for party, worth in zip(ballot.parties, best, strict=True) if worth == top]
        tried = next(voter for voter in leading[0].voters if values[voter] == top)
        return Decision(
            answer=leading[0].answer,
            parties=ballot.parties,
            method=self.name,
            tied=len(leading) > 1 and leading[0].weight == leading[1].weight,
            why=f"try {tried} has the best {self.by}, {top:.4g}",
        )


def _best(values: Sequence[float]) -> float:
    """The best of some numbers; what is not finite is none."""
    return max((value for value in values if math.isfinite(value)), default=-math.inf)


def _decision(name: str, ballot: Ballot) -> Decision:
    return Decision(
        answer=ballot.answer,
        parties=ballot.parties,
        method=name,
        tied=ballot.tied,
        why=ballot.why,
        fallback=ballot.equal,
    )
