"""The protocol of aggregators, with candidates and decisions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from trunkline.types import Message, Usage

if TYPE_CHECKING:
    from collections.abc import Sequence


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One try of a question, as far as an aggregator needs to know it.

    Attributes:
        id: The rollout's number in its tree, or the position in a list.
        answer: Its final answer; None if it gave none.
        confidence: How sure it is, at least 0; NaN where it is not known.
        reward: Its reward; NaN where unscored.
        report: Its compressed reasoning; empty if there is none.
        value: V(s) of a state that it came from; NaN where nothing is scored there.
            ``trunkline.scoring.confidence.value`` says which state.
        messages: Its conversation, for an aggregator that has reports written; empty where that is not needed.
    """

    id: int
    answer: str | None
    confidence: float = math.nan
    reward: float = math.nan
    report: str = ""
    value: float = math.nan
    messages: tuple[Message, ...] = ()


class Party(msgspec.Struct, frozen=True):
    """Candidates whose answers are equivalent.

    Attributes:
        answer: Their most frequent spelling.
        voters: Their ids, ascending.
        weight: What their votes weigh together; finite and at least 0, to 12 significant digits.
    """

    answer: str
    voters: tuple[int, ...]
    weight: float


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One answer out of many, and how it came about.

    Attributes:
        answer: The answer; None where no candidate has one.
        parties: The votes by answer, the heaviest first; ties stand in the order of their normalised answers. Where a
            model chose, or the best reward, the answer need not be that of the first.
        method: The aggregator's name.
        tied: Whether nothing but the order of normalised answers put this answer before another one.
        why: What a model said about its choice, or why another way had to be taken; safe to print.
        usage: What deciding cost.
        fallback: Whether the answers were not decided on as was asked for, because what that needs was not there.
    """

    answer: str | None
    parties: tuple[Party, ...] = ()
    method: str = ""
    tied: bool = False
    why: str = ""
    usage: Usage = msgspec.field(default_factory=Usage)
    fallback: bool = False

    @property
    def voters(self) -> tuple[int, ...]:
        """Ids of the candidates that gave the answer, ascending; none where there is no answer."""
        return next((party.voters for party in self.parties if party.answer == self.answer), ())


@runtime_checkable
class Aggregator(Protocol):
    """Makes one answer of many. The order of the candidates makes no difference to it.

    One that reads ``Candidate.messages`` says so with an attribute ``reads_messages = True``.
    """

    async def decide(self, question: str, candidates: Sequence[Candidate]) -> Decision:
        """Decide.

        Args:
            question: What was asked.
            candidates: The tries; none of them is a defined case, which has no answer.

        Raises:
            LLMError: A model was needed and gave nothing usable, and there is no way around it.
            UsageError: The candidates cannot be used: two have one id, or a weight is not a number.
        """
        ...
