"""Confidences that weigh votes (higher is surer), and the candidates that a tree gives to an aggregator.

``trunkline.scoring.rewards.base.confidence`` is another scale, for ranking unfinished rollouts.
"""

from __future__ import annotations

import math
import re
from itertools import islice
from typing import TYPE_CHECKING, Final

from trunkline._core import SAMPLED
from trunkline._internal.registry import Registry
from trunkline._internal.validation import check_choice
from trunkline.llm.dialects.base import spoken
from trunkline.scoring.aggregators.base import Candidate
from trunkline.tree.views import Kind
from trunkline.types import UNSCORED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trunkline.tree.views import Node, Trajectory, Tree


_ALL: Final = 2  # the place of the whole turn among the regions think, tool call and all
_SEARCHED: Final = 4_000  # characters at the end of a turn in which a confidence is looked for
_AMOUNT: Final = (
    r"(?<![\w.,/-])([0-9]{1,3}(?:\.[0-9]{1,6})?|\.[0-9]{1,6})"
    r"[ \t]{0,2}(%|percent|(?:/|out of)[ ]?100?(?![0-9.])|)"
)
_ENDS: Final = r"(?!\w|[.,][0-9]|[ \t]{0,2}(?:[%/]|percent|(?:out[ ])?of\b|(?:[-\u2013\u2014]|to\b)[ ]{0,2}[0-9]))"
"""Text after which an amount does not count: more of a number, a unit, a total, or the end of a range."""

_DENIED: Final = re.compile(
    r"(?:\bnot|n['\u2019]t|\bnever|\bthan)(?:[ ][a-z]{1,12}){0,2}[ ]{1,2}[0-9.]{1,9}[ ]{0,2}(?:%|percent)",
    re.IGNORECASE,
)
"""A confidence that is not had: not 100 % sure, less than 50 %."""

_STATED: Final = re.compile(
    rf"<confidence>\s{{0,20}}{_AMOUNT}\s{{0,20}}</confidence>"
    rf"|\bconfidence(?![ ](?:interval|limit|bound|band|region))(?:[ ][a-z]{{1,12}}){{0,4}}[*_\"' \t]{{0,4}}"
    rf"(?::|=|\bis\b|\bof\b)[*_\"' \t]{{0,4}}{_AMOUNT}{_ENDS}"
    rf"|{_AMOUNT}[ \t]{{1,2}}(?:confident|sure|certain)\b",
    re.IGNORECASE,
)


def logprob(trajectory: Trajectory, *, turns: str = "last") -> float:
    """The geometric mean probability of the tokens that the model sampled: exp of their mean log-probability."""
    check_choice("turns", turns, "last", "all")
    found: list[float] = []
    for node in islice(_turns(trajectory), None if turns == "all" else 1):
        tokens = trajectory.tree.core.tokens_of(node.id)
        if tokens is None:
            return math.nan
        found += [lp for lp, flag in zip(tokens.logprobs, tokens.flags, strict=True) if flag & SAMPLED]
    # One that is not known makes the sum NaN. Servers round to a little above 0.
    return math.exp(min(math.fsum(found) / len(found), 0.0)) if found and not any(map(math.isnan, found)) else math.nan


def entropy(trajectory: Trajectory) -> float:
    """One over the perplexity of the last turn: exp of minus the mean entropy of its tokens, in nats."""
    turn = next(_turns(trajectory), None)
    found = math.nan if turn is None else trajectory.tree.core.node(turn.id).entropy[_ALL]
    return math.exp(-max(found, 0.0)) if not math.isnan(found) else math.nan


def verbalised(trajectory: Trajectory) -> float:
    """The confidence that the model states in the text of its last turn; see ``stated``."""
    turn = next(_turns(trajectory), None)
    return math.nan if turn is None else stated(turn.text)


def stated(text: str) -> float:
    """The last confidence stated in a text: ``<confidence>0.8</confidence>``, ``Confidence: 80 %``, ``80 % sure``.

    Without a unit, numbers up to 1 are shares, above 10 percent, and between ambiguous (NaN), as are ranges. Denied
    ones (``not 100 % sure``) and thinking do not count; only the last 4,000 characters are read.
    """
    said = [match.groups() for match in _STATED.finditer(_DENIED.sub("", spoken(text)[-_SEARCHED:]))]
    if not said:
        return math.nan
    amount, unit = next(pair for pair in zip(said[-1][::2], said[-1][1::2], strict=True) if pair[0])
    number, unit = float(amount), unit.casefold().replace("out of", "/").replace(" ", "")
    if not unit and 1 < number <= 10:
        return math.nan
    share = number / (10 if unit == "/10" else 100 if unit or number > 1 else 1)
    return share if share <= 1 else math.nan


def reward(trajectory: Trajectory) -> float:
    """The rollout's own reward, 0 where that is negative; NaN where it is unscored."""
    return max(trajectory.reward, 0.0) if not math.isnan(trajectory.reward) else math.nan


def value(trajectory: Trajectory) -> float:
    """V(s) of the last state shared with another rollout: the mean reward of all rollouts through it, at least 0.

    It rates the path to the answer; ``reward`` rates the rollout itself. Independent chains share the prompt alone,
    so all their votes weigh the same. NaN without a scored rollout.
    """
    found = _shared_value(trajectory)
    return max(found, 0.0) if not math.isnan(found) else math.nan


def _shared_value(trajectory: Trajectory) -> float:
    # The nodes below a shared one are the rollout's own, so all rollouts of a tree together walk each node once.
    for node in islice(_upward(trajectory), 1, None):
        if node.visits > 1:
            return node.value
    return math.nan


def _turns(trajectory: Trajectory) -> Iterator[Node]:
    """The model turns of a rollout, the last first."""
    return (node for node in _upward(trajectory) if node.kind is Kind.TURN)


def _upward(trajectory: Trajectory) -> Iterator[Node]:
    node: Node | None = trajectory.leaf
    while node is not None and node.id > 0:
        yield node
        node = node.parent


CONFIDENCES: Final[Registry[Callable[[Trajectory], float]]] = Registry(
    "confidence",
    {"logprob": logprob, "entropy": entropy, "verbalised": verbalised, "reward": reward, "value": value},
)

NEEDS: Final = {
    "logprob": "token ids with their log-probs: LLM(tokens=TokenMode(...)) (--tokens)",
    "entropy": "log-probs of the likeliest tokens: --logprobs --top-logprobs 16",
    "verbalised": "a confidence that the model states in its last turn",
    "reward": "a reward",
    "value": "a scored rollout that passes through the same state",
}
"""What each confidence needs in a run."""


def candidates(tree: Tree, by: str = "logprob", *, messages: bool = False) -> list[Candidate]:
    """The rollouts of a tree that have a vote: those that ended, and did not break and were not cut or filtered."""
    check_choice("by", by, *CONFIDENCES)
    sure = CONFIDENCES[by]
    return [
        Candidate(
            id=rollout.id,
            answer=rollout.answer,
            confidence=sure(rollout),
            reward=rollout.reward,
            report=rollout.leaf.compressed_reasoning or "",
            value=_shared_value(rollout),
            messages=tuple(rollout.messages) if messages else (),
        )
        for rollout in tree.rollouts
        if (ended := rollout.termination) is not None and ended not in UNSCORED
    ]
