"""The votes of several tries, counted: who votes, what a vote weighs, and which answer leads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from trunkline.bounds import shown
from trunkline.errors import UsageError
from trunkline.score.aggregators.aggregator import Party
from trunkline.score.aggregators.clusters import Same, cluster, votes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trunkline.score.aggregators.aggregator import Candidate

__all__ = ["SOURCES", "Ballot", "By", "number_of", "poll", "weights"]

By = Literal["confidence", "reward", "value"]
"""Which number of a candidate says what its vote weighs."""

SOURCES: Final = get_args(By)

_HEAVIEST: Final = 1e15
"""The largest weight of a vote: sums of them stay finite, and exact where they are whole."""


class Ballot(NamedTuple):
    """Votes that were counted.

    Attributes:
        parties: Who voted what, the heaviest first; of equal weights the first in the order of normalised answers.
        keys: The normalised answer of each party, in the same order.
        why: Why votes count other than was asked for; empty if they do not.
        equal: Whether they all count the same because nothing is known by which they could be weighed.
    """

    parties: tuple[Party, ...]
    keys: tuple[str, ...]
    why: str = ""
    equal: bool = False

    @property
    def answer(self) -> str | None:
        """The answer with the most weight; None if nobody voted."""
        return self.parties[0].answer if self.parties else None

    @property
    def tied(self) -> bool:
        """Whether another answer has the same weight as the first."""
        return len(self.parties) > 1 and self.parties[0].weight == self.parties[1].weight


def poll(
    candidates: Sequence[Candidate],
    weigh: Mapping[int, float] | None = None,
    *,
    contain: bool = False,
    same: Same | None = None,
    why: str = "",
) -> Ballot:
    """Count votes.

    Args:
        candidates: The tries; who has no answer does not vote.
        weigh: What the vote of each id weighs, at least 0; 1 each when None.
        contain: See :func:`.clusters.cluster`.
        same: See :func:`.clusters.cluster`.
        why: What to say of how they are counted.

    Raises:
        ConfigError: ``same`` failed.
        UsageError: Two candidates have one id, or an answer is no text.
    """
    _voting(candidates)
    ids = [candidate.id for candidate in candidates]
    if len(set(ids)) < len(ids):
        twice = next(one for one in ids if ids.count(one) > 1)
        raise UsageError(f"two candidates have the id {twice}: number them, each once")
    found = []
    for one in cluster([candidate.answer for candidate in candidates], contain=contain, same=same):
        voters = tuple(sorted(ids[place] for place in one.members))
        total = math.fsum(1.0 if weigh is None else weigh[voter] for voter in voters)
        # Sums that differ in the last digits only, as 0.1 + 0.2 and 0.3 do, are equal.
        found.append((Party(one.answer, voters, float(f"{total:.12g}")), one.key))
    found.sort(key=lambda item: (-item[0].weight, item[1]))
    return Ballot(
        tuple(party for party, _ in found), tuple(key for _, key in found), why, equal=weigh is None and why != ""
    )


def weights(candidates: Sequence[Candidate], by: By) -> tuple[dict[int, float] | None, str]:
    """What each candidate's vote weighs.

    A candidate without a number counts as the mean of those that have one, as an average try would. A reward or value
    below 0 weighs nothing. Where no voter has a number, or none has one above 0, all votes weigh the same.

    Args:
        candidates: The tries.
        by: Which number.

    Returns:
        The weight of each voter's id, or None for equal weights; and why these, where it is not the plain rule.

    Raises:
        UsageError: A confidence is negative, a number is none, or infinite or above 1e15, or an answer is no text.
    """
    voters = _voting(candidates)
    if not voters:
        return None, ""
    known = {one.id: _read(one, by) for one in voters}
    there = sorted(value for value in known.values() if not math.isnan(value))
    if not there:
        return None, f"no try has a {by}, so every vote weighs the same"
    if not any(there):
        return None, f"no try has a {by} above 0, so every vote weighs the same"
    mean = math.fsum(there) / len(there)
    missing = len(voters) - len(there)
    why = f"{missing} of {len(voters)} tries have no {by} and count as the mean, {mean:.4g}" if missing else ""
    return {one: mean if math.isnan(value) else value for one, value in known.items()}, why


def number_of(candidate: Candidate, by: By) -> float:
    """A number of a candidate, whatever it is; NaN where it has none.

    Raises:
        UsageError: It is no number.
    """
    value: object = getattr(candidate, by)
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"candidate {candidate.id}: its {by} must be a number, not {shown(value)}") from None


def _voting(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates that have an answer.

    Raises:
        UsageError: What stands for an answer is no text.
    """
    for one in candidates:
        answer: object = one.answer
        if answer is not None and not isinstance(answer, str):
            raise UsageError(f"candidate {one.id}: its answer must be text or None, not {shown(answer)}")
    return [one for one in candidates if votes(one.answer)]


def _read(candidate: Candidate, by: By) -> float:
    """The number of a candidate that its vote weighs; NaN where it has none.

    Raises:
        UsageError: It is no weight.
    """
    value = number_of(candidate, by)
    if math.isnan(value):
        return value
    if not -_HEAVIEST <= value <= _HEAVIEST:
        raise UsageError(f"candidate {candidate.id}: its {by} is {value:g}, expected at most 1e15 in size, or NaN")
    if value < 0 and by == "confidence":
        raise UsageError(f"candidate {candidate.id}: its confidence is {value:g}, expected at least 0, or NaN")
    return max(value, 0.0)
