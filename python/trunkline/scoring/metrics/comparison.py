"""Whether a confidence means what it says: calibration, and how well it tells right tries from wrong ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trunkline.errors import UsageError
from trunkline.score.metrics.interval import student

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.score.metrics.estimate import Rewards
    from trunkline.score.metrics.interval import Ends

__all__ = ["Bin", "Calibration", "Ratio", "calibration"]


class Bin(msgspec.Struct, frozen=True):
    """Tries of about the same confidence, a line of a reliability table.

    Attributes:
        low: Their lowest confidence.
        high: Their highest.
        tries: How many they are.
        confidence: Their mean confidence.
        right: The share of them that is right.
    """

    low: float
    high: float
    tries: int
    confidence: float
    right: float


class Ratio(msgspec.Struct, frozen=True):
    """A figure over tries with a 95 % interval that takes tasks as the sample.

    Attributes:
        value: The figure.
        low: Lower end; None where the data hold none, as with fewer than two tasks.
        high: Upper end.
    """

    value: float
    low: float | None
    high: float | None


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """How confidences and right tries go together. Every try counts the same.

    Attributes:
        tasks: Tasks with a try that counts.
        tries: Tries with a confidence and a reward.
        left_out: Scored tries without a confidence, which are in no figure.
        right: The share of tries that is right.
        auroc: How likely a right try has more confidence than a wrong one, a tie counting half; None if all tries are
            right, or all are wrong. Its interval is None where the two do not overlap at all.
        brier: The mean square of confidence less 1 or 0 (Brier 1950); None, like all below, if a confidence lies
            outside 0 to 1, so that it is no chance.
        gap: The mean confidence less the share that is right: above 0 is overconfident.
        ece: Expected calibration error: the mean over tries of how far their bin's confidence is from its share of
            right ones (Naeini et al. 2015, with bins of equal mass). Chance alone makes it more than 0, the more so the
            fewer tries a bin holds, so it has no interval.
        bins: The reliability table, from the lowest confidence up; empty where there is none.
    """

    tasks: int
    tries: int
    left_out: int
    right: float
    auroc: Ratio | None
    brier: Ratio | None
    gap: Ratio | None
    ece: float | None
    bins: list[Bin]


class _Pair(NamedTuple):
    confidence: float
    right: float
    task: int


def calibration(
    confidences: Sequence[Sequence[float]], rewards: Rewards, *, bins: int = 10, threshold: float = 1.0
) -> Calibration | None:
    """Compare how sure tries are with whether they are right.

    Args:
        confidences: For each task the confidence of its tries; NaN where nobody knows.
        rewards: The rewards of the same tries; NaN where a try was not scored.
        bins: Bins of the reliability table, of as many tries each as can be; equal confidences are never parted, so
            there may be fewer.
        threshold: A try is right if its reward is at least this.

    Returns:
        The comparison, or None if no try has both a confidence and a reward.

    Raises:
        UsageError: The columns do not fit together, a confidence is infinite, or there is to be no bin.
    """
    if bins < 1:
        raise UsageError(f"a reliability table of {bins} bins cannot be: there must be at least 1")
    if [len(task) for task in confidences] != [len(task) for task in rewards]:
        raise UsageError("confidences and rewards must be of the same tasks and tries")
    pairs, left_out = _pairs(confidences, rewards, threshold)
    if not pairs:
        return None
    chances = all(0.0 <= pair.confidence <= 1.0 for pair in pairs)
    table = _table(pairs, bins) if chances else []
    return Calibration(
        tasks=len({pair.task for pair in pairs}),
        tries=len(pairs),
        left_out=left_out,
        right=math.fsum(pair.right for pair in pairs) / len(pairs),
        auroc=_auroc(pairs),
        brier=_mean(pairs, [(pair.confidence - pair.right) ** 2 for pair in pairs]) if chances else None,
        gap=_mean(pairs, [pair.confidence - pair.right for pair in pairs]) if chances else None,
        ece=math.fsum(row.tries * abs(row.confidence - row.right) for row in table) / len(pairs) if chances else None,
        bins=table,
    )


def _pairs(confidences: Sequence[Sequence[float]], rewards: Rewards, threshold: float) -> tuple[list[_Pair], int]:
    pairs: list[_Pair] = []
    left_out = 0
    for task, (sure, worth) in enumerate(zip(confidences, rewards, strict=True)):
        for confidence, reward in zip(sure, worth, strict=True):
            if math.isinf(confidence):
                raise UsageError("a confidence is infinite; give NaN where it is not known")
            if math.isnan(reward):
                continue
            if math.isnan(confidence):
                left_out += 1
            else:
                pairs.append(_Pair(confidence, float(reward >= threshold), task))
    return sorted(pairs), left_out


def _table(pairs: Sequence[_Pair], bins: int) -> list[Bin]:
    """Cut pairs, in order of confidence, into bins of equal mass; ties go where the first of them goes."""
    groups: list[list[_Pair]] = []
    place = -1
    for position, pair in enumerate(pairs):
        if not position or pair.confidence > pairs[position - 1].confidence:
            wanted = position * bins // len(pairs)
            if wanted > place:
                groups.append([])
                place = wanted
        groups[-1].append(pair)
    return [
        Bin(
            low=group[0].confidence,
            high=group[-1].confidence,
            tries=len(group),
            confidence=math.fsum(pair.confidence for pair in group) / len(group),
            right=math.fsum(pair.right for pair in group) / len(group),
        )
        for group in groups
    ]


def _by_task(pairs: Sequence[_Pair], values: Sequence[float]) -> list[float]:
    """Add values up by task."""
    sums: dict[int, float] = {}
    for pair, value in zip(pairs, values, strict=True):
        sums[pair.task] = sums.get(pair.task, 0.0) + value
    return list(sums.values())


def _mean(pairs: Sequence[_Pair], values: Sequence[float]) -> Ratio:
    """Return the mean over tries, with the interval of its linear approximation over tasks."""
    mean = math.fsum(values) / len(values)
    parts = _by_task(pairs, [(value - mean) / len(values) for value in values])
    if len(parts) < 2:
        return Ratio(mean, None, None)
    half = student(len(parts) - 1) * _error(parts)
    return Ratio(mean, mean - half, mean + half)


def _error(parts: Sequence[float]) -> float:
    """Return the standard error of a figure, from what each task adds to it beside its value; they add up to 0."""
    return math.sqrt(math.fsum(part * part for part in parts) * len(parts) / (len(parts) - 1))


def _auroc(pairs: Sequence[_Pair]) -> Ratio | None:
    """Return the area under the ROC curve, with the interval of Obuchowski (1997) on the scale of log odds."""
    rights = sum(pair.right for pair in pairs)
    wrongs = len(pairs) - rights
    if not rights or not wrongs:
        return None
    # Of each try the share of those of the other kind that stand on the proper side of it.
    shares = [0.0] * len(pairs)
    below = {1.0: 0.0, 0.0: 0.0}
    start = 0
    while start < len(pairs):
        end = start
        while end < len(pairs) and pairs[end].confidence == pairs[start].confidence:
            end += 1
        tied = {1.0: 0.0, 0.0: 0.0}
        for pair in pairs[start:end]:
            tied[pair.right] += 1
        for position in range(start, end):
            if pairs[position].right:
                shares[position] = (below[0.0] + tied[0.0] / 2) / wrongs
            else:
                shares[position] = 1 - (below[1.0] + tied[1.0] / 2) / rights
        below = {kind: below[kind] + tied[kind] for kind in below}
        start = end
    area = math.fsum(share for share, pair in zip(shares, pairs, strict=True) if pair.right) / rights
    own = [(share - area) / (rights if pair.right else wrongs) for share, pair in zip(shares, pairs, strict=True)]
    return Ratio(area, *_logit(area, _by_task(pairs, own)))


def _logit(area: float, parts: Sequence[float]) -> Ends:
    if len(parts) < 2 or not 0 < area < 1:
        return None, None
    half = student(len(parts) - 1) * _error(parts) / (area * (1 - area))
    odds = math.log(area / (1 - area))
    return _chance(odds - half), _chance(odds + half)


def _chance(odds: float) -> float:
    return 1 / (1 + math.exp(-odds)) if odds > -700 else 0.0
