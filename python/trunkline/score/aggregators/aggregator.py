"""What an aggregator is given, what it decides, and what it is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from trunkline.types import Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Aggregator", "Candidate", "Decision", "Party"]


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One try of a question, as far as an aggregator needs to know it.

    Attributes:
        id: The rollout's number in its tree, or the position in a list.
        answer: Its final answer; None if it gave none.
        confidence: How sure it is, at least 0; NaN where nobody knows.
        reward: Its reward, or V(s) of its leaf; NaN where unscored.
        report: Its compressed reasoning; empty if there is none.
    """

    id: int
    answer: str | None
    confidence: float = math.nan
    reward: float = math.nan
    report: str = ""


class Party(msgspec.Struct, frozen=True):
    """Candidates whose answers are equivalent.

    Attributes:
        answer: Their most frequent spelling.
        voters: Their ids, ascending.
        weight: What their votes weigh together.
    """

    answer: str
    voters: tuple[int, ...]
    weight: float


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One answer out of many, and how it came about.

    Attributes:
        answer: The answer; None where no candidate has one.
        parties: Who voted what, the heaviest first; ties stand in the order of their normalised answers.
        method: The aggregator's name.
        tied: Whether the first party shares its weight with another, so that the order of answers decided.
        why: What a model said about its choice, or why another way had to be taken; safe to print.
        usage: What deciding cost.
    """

    answer: str | None
    parties: tuple[Party, ...] = ()
    method: str = ""
    tied: bool = False
    why: str = ""
    usage: Usage = Usage()


@runtime_checkable
class Aggregator(Protocol):
    """Makes one answer of many. The order of the candidates makes no difference to it."""

    async def decide(self, question: str, candidates: Sequence[Candidate]) -> Decision:
        """Decide.

        Args:
            question: What was asked.
            candidates: The tries; none of them is a defined case, which has no answer.

        Raises:
            LLMError: A model was needed and gave nothing usable, and there is no way around it.
        """
        ...
