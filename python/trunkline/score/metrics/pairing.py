"""Two columns of the same tasks: by how much they differ, and whether chance alone would do it."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import msgspec

from trunkline.errors import UsageError
from trunkline.score.metrics.interval import Ends, student, t_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Paired", "paired", "sign_flip"]

_EXACT: Final = 32  # changed tasks up to which every assignment of signs is counted: two halves of 2 ** 16 sums
_PARTS: Final = 64  # of the least change; a finer step than that is none to be corrected for
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
    low, high = _interval(differences, changed, draws) if bounded else _plain(differences)
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


def _plain(differences: Sequence[float]) -> Ends:
    return t_interval(differences) if len(differences) > 1 else (None, None)


def _interval(differences: Sequence[float], changed: Sequence[float], draws: float) -> Ends:
    count = len(differences)
    if count < 2:
        return None, None
    squares = math.fsum(found * found for found in changed)
    added = max(squares / len(changed), 1 / max(draws, 1.0)) if changed else 1.0
    total = math.fsum(differences)
    centre = total / (count + 2)
    error = max(0.0, (squares + 2 * added) / (count + 2) - centre * centre) / (count + 2)
    half = student(count - 1) * math.sqrt(error)
    mean = total / count
    return max(-1.0, min(mean, centre - half)), min(1.0, max(mean, centre + half))


def sign_flip(differences: Sequence[float]) -> tuple[float, bool]:
    """The two-sided p value of a sum of differences if each could as well have had the other sign.

    With at most 32 differences all assignments of signs are counted, by the sums of two halves; with more the normal
    approximation of their distribution is taken, with a correction for continuity where all are multiples of one step,
    as means of a few tries are.

    Args:
        differences: Those that are not 0.

    Returns:
        The p value, 1 without a difference; and whether it is exact.
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
    """Return the largest step that all sizes are multiples of; 0 if it is not a sizeable part of the least of them.

    One sign turned moves the sum by two of its sizes, so sums lie two steps apart: half of that is the correction.
    """
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
