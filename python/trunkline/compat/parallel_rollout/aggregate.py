"""One answer out of results, by a vote: no model, no event loop."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from trunkline.bounds import kind, shown
from trunkline.errors import ConfigError
from trunkline.tree.vote import vote
from trunkline.types import UNSCORED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Ballot", "aggregate_results", "ballots"]

_ANSWERS = ("answer", "final_answer")
"""Where an answer stands, the first that is there."""


class Ballot(NamedTuple):
    """What one result says.

    Attributes:
        answer: Its answer.
        weight: What it counts.
        report: Its compressed reasoning; empty for none.
        result: The result itself.
    """

    answer: str
    weight: float
    report: str
    result: Mapping[str, Any]


def aggregate_results(rollout_results: Sequence[Mapping[str, Any]], question: str) -> str:
    """The answer with the most weight behind it.

    Answers are equal that :func:`trunkline.tree.vote.normalise` brings to one form. A result weighs what its
    ``confidence`` says, and 1 where it has none. Of equal weights the answer with more votes wins, then the one whose
    normal form comes first; so the order of the results makes no difference. The spelling is the most frequent one.

    Args:
        rollout_results: What :func:`run_parallel_rollouts` returned, or dicts like it: of each, ``answer`` (or
            ``final_answer``), ``confidence`` and ``termination`` are read where they are there. Results without an
            answer do not vote, and neither do those that failed or were cut.
        question: What was asked; a vote does not need it.

    Returns:
        The answer; empty where nobody has one.

    Raises:
        ConfigError: A result is no dict, or one of these fields has a value it cannot have; the message names it.
    """
    found = ballots(rollout_results)
    if not isinstance(question, str):
        raise ConfigError(f"question must be a text, not {kind(question)}")
    classes = vote(ballot.answer for ballot in found)
    if not classes:
        return ""

    def weight(voters: Sequence[int]) -> float:
        # Sorted inside: fsum is exact, whatever the order.
        return math.fsum(found[voter].weight for voter in voters)

    return min(classes, key=lambda votes: (-weight(votes.voters), -len(votes.voters), votes.key)).answer


def ballots(results: Sequence[Mapping[str, Any]]) -> list[Ballot]:
    """Read the results that vote.

    Args:
        results: As :func:`aggregate_results` takes them.

    Raises:
        ConfigError: One cannot be read; the message names the field.
    """
    if not isinstance(results, list | tuple):
        raise ConfigError(f"rollout_results must be a list of dicts, not {kind(results)}")
    found = []
    for position, result in enumerate(results):
        place = f"rollout_results[{position}]"
        if not isinstance(result, dict):
            raise ConfigError(f"{place} is {kind(result)}, expected a dict as run_parallel_rollouts returns it")
        answer, weight = _answer(result, place), _weight(result, place)
        report = result.get("compressed_reasoning")
        if report is not None and not isinstance(report, str):
            raise ConfigError(f"{place}: compressed_reasoning must be a text or None, not {shown(report)}")
        if answer is not None and answer.strip() and result.get("termination") not in _WITHOUT:
            found.append(Ballot(answer, weight, report or "", result))
    return found


_WITHOUT = tuple(termination.value for termination in UNSCORED)


def _answer(result: Mapping[str, Any], place: str) -> str | None:
    """The answer of a result, if it has one."""
    name = next((name for name in _ANSWERS if result.get(name) is not None), None)
    if name is None:
        return None
    answer = result[name]
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise ConfigError(f"{place}: {name} must be a text, a number or None, not {shown(answer)}")
    return str(answer)


def _weight(result: Mapping[str, Any], place: str) -> float:
    """What a result counts."""
    confidence = result.get("confidence")
    if confidence is None or (isinstance(confidence, float) and math.isnan(confidence)):
        return 1.0
    if isinstance(confidence, bool) or not isinstance(confidence, int | float) or not 0 <= confidence <= 1e300:
        raise ConfigError(f"{place}: confidence must be a number of at least 0, or None, not {shown(confidence)}")
    return float(confidence)
