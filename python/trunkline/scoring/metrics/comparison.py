"""Calibration, paired tests."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from trunkline.errors import UsageError
from trunkline.scoring.metrics.intervals import Ends, student, t_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.scoring.metrics.intervals import Rewards


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
        confidences: For each task the confidence of its tries; NaN where it is not known.
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
    """The standard error of a figure, from the tasks' deviations, which add up to 0."""
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


_EXACT: Final = 32  # changed tasks up to which every assignment of signs is counted: two halves of 2 ** 16 sums
_PARTS: Final = 64  # of the least change; a finer step is not corrected for
_SAME: Final = 1e-9  # two means of the same rewards may differ by their rounding


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    """What came of comparing two columns task by task, the second less the first.

    Attributes:
        difference: The mean difference.
        low: Lower end of its 95 % interval; None with fewer than two tasks.
        high: Upper end.
        p: How likely a difference at least as large is if both are alike, two-sided.
        exact: Whether ``p`` counts all assignments of signs, rather than their normal approximation.
        tasks: Tasks in both.
        better: Tasks on which the second is better.
        worse: Tasks on which it is worse.
        same: Tasks on which both are the same.
    """

    difference: float
    low: float | None
    high: float | None
    p: float
    exact: bool
    tasks: int
    better: int
    worse: int
    same: int


def paired(
    first: Sequence[float], second: Sequence[float], *, draws: float = 1.0, bounded: bool = True
) -> Paired | None:
    """Compare two columns task by task.

    Tasks are the sample, so the spread of difficulty between tasks, which both columns share, is no error of the
    difference (Miller 2024, "Adding Error Bars to Evals"). The interval is Student's t interval of the differences,
    where values lie between 0 and 1 with two tasks more, of which one is as much better as the other is worse (Bonett
    and Price 2012, who do so for two proportions): with few changes the t interval covers far too seldom, and with none
    it has no width. Each of the two changes as much as the changed tasks do (in the root mean square), and at least as
    much as chance would change a task; by 1 if none changed.

    The p value is that of the sign-flip permutation test, which for single tries of 0 or 1 is McNemar's exact one.

    Args:
        first: One value a task.
        second: The values of the same tasks, in the same order.
        draws: Independent values that each of these is a mean of (tries of a task, for a mean reward).
        bounded: Whether the values lie between 0 and 1.

    Returns:
        The comparison, or None without a task.

    Raises:
        UsageError: The columns differ in length, or hold a value that is no finite number.
    """
    if len(first) != len(second):
        raise UsageError(f"{len(first)} values cannot be paired with {len(second)}")
    if not all(map(math.isfinite, (*first, *second))):
        raise UsageError("only tasks that were measured in both can be paired: leave the others out")
    if not first:
        return None
    differences = [after - before for before, after in zip(first, second, strict=True)]
    changed = [found for found in differences if abs(found) > _SAME]
    low, high = _interval(differences, changed, draws, bounded=bounded)
    p, exact = sign_flip(changed)
    return Paired(
        difference=math.fsum(differences) / len(differences),
        low=low,
        high=high,
        p=p,
        exact=exact,
        tasks=len(differences),
        better=sum(found > 0 for found in changed),
        worse=sum(found < 0 for found in changed),
        same=len(differences) - len(changed),
    )


def _interval(differences: Sequence[float], changed: Sequence[float], draws: float, *, bounded: bool) -> Ends:
    count = len(differences)
    if count < 2:
        return None, None
    if not bounded:
        return t_interval(differences)
    squares = math.fsum(found * found for found in changed)
    added = max(squares / len(changed), 1 / max(draws, 1.0)) if changed else 1.0
    total = math.fsum(differences)
    centre = total / (count + 2)
    error = max(0.0, (squares + 2 * added) / (count + 2) - centre * centre) / (count + 2)
    half = student(count - 1) * math.sqrt(error)
    mean = total / count
    return max(-1.0, min(mean, centre - half)), min(1.0, max(mean, centre + half))


def sign_flip(differences: Sequence[float]) -> tuple[float, bool]:
    """The two-sided p value of the sign-flip permutation test, and whether it is exact.

    Up to 32 differences all signs are counted, by sums of two halves. Above, the normal approximation is taken, with a
    continuity correction where all differences are multiples of one step.
    """
    sizes = [abs(found) for found in differences]
    seen = abs(math.fsum(differences))
    if not sizes:
        return 1.0, True
    # Sums that are equal but for their rounding count as equal.
    slack = 1e-9 * math.fsum(sizes)
    if len(sizes) <= _EXACT:
        left, right = _sums(sizes[::2]), sorted(_sums(sizes[1::2]))
        beyond = sum(
            len(right) - bisect_left(right, seen - slack - value) + bisect_right(right, slack - seen - value)
            for value in left
        )
        return min(1.0, beyond / (len(left) * len(right))), True
    spread = math.sqrt(2 * math.fsum(size * size for size in sizes))
    return math.erfc(max(0.0, seen - _step(sizes)) / spread), False


def _step(sizes: Sequence[float]) -> float:
    """The largest step that all sizes are multiples of; 0 if it is too small a part of the least of them."""
    least = min(sizes)
    over, under = 0, 1
    for size in sizes:
        ratio = Fraction(size / least).limit_denominator(_PARTS)
        if abs(ratio - size / least) > _SAME * ratio:
            return 0.0
        over, under = math.gcd(over, ratio.numerator), math.lcm(under, ratio.denominator)
        if under > _PARTS:
            return 0.0
    return least * over / under


def _sums(sizes: Sequence[float]) -> list[float]:
    """Return the sum of every assignment of signs."""
    found = [0.0]
    for size in sizes:
        found = [value + size for value in found] + [value - size for value in found]
    return found
