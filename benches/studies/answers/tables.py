"""The tables of the study of aggregators, in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from studies.answers.arms import ARMS
from studies.answers.cell import SOURCES
from studies.answers.checks import LEAST, LITTLE, gains, nulls
from studies.answers.compare import compare
from studies.compare import by_preset, comparable
from studies.tables import counted, plain, rows, scope, signed
from trunkline.scoring.metrics import calibration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from studies.answers.cell import Asked
    from studies.answers.checks import Check, Gain, Null
    from studies.answers.compare import Compared
    from trunkline.scoring.metrics.comparison import Ratio

__all__ = ["checks_of", "markdown"]

_NAMES = {"logprob": "log-prob", "verbalised": "stated"}

_HEAD = """\
# Aggregators compared

Written by `python benches/study.py answers --out docs/science/answers-tables.md`, which needs neither key nor network.
Every aggregator may spend what 8 chains of a question cost, its own calls included. *Chains* is how many of them that
leaves it; *cost* is generated tokens, a fifth of the prompt tokens that no cache held, and 50 for a tool call. A tie of
votes counts as half right, and no aggregator is shown a label. Differences are taken question by question, in worlds
that were not looked at before. The judge accepts 15 % of what is wrong and rejects 10 % of what is right. [How to make
one answer out of many tries](../how-to/answers.md) says what follows.
"""


def markdown(asked: Sequence[Asked]) -> str:
    """All tables of a study.

    Args:
        asked: What came of its questions.
    """
    presets = comparable(asked)
    # Every arm with one try and with the majority, and these two with each other once.
    family = len(presets) * (2 * len(ARMS) - 3)
    parts = [_HEAD, f"{counted(family, 'differences')}\n"]
    for preset, own in presets.items():
        head = ["aggregator", "chains", "tokens", "cost", "accuracy", "to one try", "to majority"]
        parts.append(f"## {preset}\n\n{scope(own)}\n\n{rows(head, [_compared(one) for one in compare(own, family)])}")
    parts.append(_calibration(asked))
    found = nulls(asked)
    if found:
        parts.append(_nulls(found))
    voted = gains(asked)
    if voted:
        parts.append(_gains(voted))
    return "\n".join(parts)


def checks_of(asked: Sequence[Asked]) -> list[Check]:
    """All that a study is held against.

    Args:
        asked: What came of its questions.
    """
    voted = [one.check for one in gains(asked) if one.check is not None]
    return [*(one.check for one in nulls(asked)), *voted]


def _compared(one: Compared) -> list[str]:
    cells = [one.arm, f"{one.chains:.2f}", f"{one.tokens.value:.0f}", f"{one.cost.value:.0f}", plain(one.right, 3)]
    return [*cells, signed(one.to_one), signed(one.to_majority)]


def _calibration(asked: Sequence[Asked]) -> str:
    body = []
    for preset, own in by_preset(asked).items():
        for source in SOURCES:
            found = calibration([one.sure[source] for one in own], [one.rewards for one in own])
            if found is not None:
                error = "-" if found.ece is None else f"{found.ece:.3f}"
                cells = [_ratio(found.auroc, ".3f"), _ratio(found.gap, "+.3f"), error]
                body.append([preset, _NAMES[source], f"{found.tries:,}", f"{found.right:.3f}", *cells])
    head = ["preset", "confidence", "tries", "right", "AUROC", "overconfidence", "ECE"]
    text = "How sure the chains are of their last turn, beside how often they are right."
    return f"## Calibration\n\n{text}\n\n{rows(head, body)}"


def _ratio(found: Ratio | None, form: str) -> str:
    if found is None:
        return "-"
    if found.low is None or found.high is None:
        return format(found.value, form)
    return f"{found.value:{form}} [{found.low:{form}}, {found.high:{form}}]"


def _nulls(found: Sequence[Null]) -> str:
    body = [
        [one.arm, f"{one.theory:.4f}", plain(one.found, 4), "yes" if one.check.passed else "**NO**"] for one in found
    ]
    text = f"No aggregator may be above theory. {len(found)} intervals that hold together with 95 % (Bonferroni)."
    return f"## The check of null\n\n{text}\n\n{rows(['aggregator', 'theory', 'found', 'held'], body)}"


def _gains(found: Sequence[Gain]) -> str:
    body = [[one.of, signed(one.found), _held(one.check)] for one in found]
    text = (
        "What the majority gains over one try. Where draws are wrong alike it must be little: the interval ends below "
        f"{LITTLE}, and by default it is more. This is checked from {LEAST} questions on."
    )
    return f"## The check of shared-misbelief\n\n{text}\n\n{rows(['preset', 'gain', 'held'], body)}"


def _held(check: Check | None) -> str:
    if check is None:
        return "-"
    return "yes" if check.passed else "**NO**"
