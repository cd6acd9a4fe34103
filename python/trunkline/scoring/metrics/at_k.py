"""pass@k, pass^k, majority@k, cost per solved; metrics by name."""

from __future__ import annotations

import math
import re
from array import array
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Final

import msgspec

from trunkline._internal.text import quoted
from trunkline.errors import UsageError
from trunkline.scoring.metrics.intervals import (
    Ends,
    Estimate,
    Rewards,
    accuracy,
    avg_at_k,
    best_of_n,
    check_k,
    correlation,
    estimate,
    inside,
    scored,
    student,
    wilson,
)
from trunkline.tree.answers import normalise, vote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of k tries is right, without bias, from n tries of which c were right.

    It is ``1 - C(n - c, k) / C(n, k)`` (Chen et al. 2021, "Evaluating Large Language Models Trained on
    Code"): the share of all subsets of k tries that hold a right one.

    Args:
        n: Tries made.
        c: Right ones among them.
        k: Tries allowed, from 1 to n.

    Returns:
        A number from 0 to 1.

    Raises:
        UsageError: The numbers do not fit together; fewer than k tries give no unbiased estimate.
    """
    _fitting("pass@", n, c, k)
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """pass^k: the chance that all of k tries are right, without bias, from n tries of which c were right.

    It is ``C(c, k) / C(n, k)`` (Yao et al. 2024, "tau-bench"): the share of all subsets of k tries in which every one
    is right.

    Args:
        n: Tries made.
        c: Right ones among them.
        k: Tries that are to be right, from 1 to n.

    Returns:
        A number from 0 to 1.

    Raises:
        UsageError: The numbers do not fit together; fewer than k tries give no unbiased estimate.
    """
    _fitting("pass^", n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def _fitting(name: str, n: int, c: int, k: int) -> None:
    if not 1 <= k <= n:
        raise UsageError(f"{name}{k} cannot be computed from {n} tries: k must lie between 1 and the number of tries")
    if not 0 <= c <= n:
        raise UsageError(f"{c} right tries out of {n} are impossible")


def mean_pass_at_k(rewards: Rewards, k: int, *, threshold: float = 1.0) -> Estimate | None:
    """pass@k over tasks; see ``pass_at_k``.

    Args:
        rewards: For each task the rewards of its tries.
        k: Tries allowed, at least 1.
        threshold: A try is right if its reward is at least this.

    Returns:
        The estimate over the tasks with at least k scored tries (its ``tasks`` says how many), or None if
        there is none.
    """
    return _mean("pass@", pass_at_k, rewards, k, threshold)


def mean_pass_hat_k(rewards: Rewards, k: int, *, threshold: float = 1.0) -> Estimate | None:
    """pass^k over tasks; see ``pass_hat_k``.

    Args:
        rewards: For each task the rewards of its tries.
        k: Tries that are to be right, at least 1.
        threshold: A try is right if its reward is at least this.

    Returns:
        The estimate over the tasks with at least k scored tries (its ``tasks`` says how many), or None if
        there is none.
    """
    return _mean("pass^", pass_hat_k, rewards, k, threshold)


def _mean(
    name: str, chance: Callable[[int, int, int], float], rewards: Rewards, k: int, threshold: float
) -> Estimate | None:
    check_k(name, k)
    means, sets, behind = array("d"), 0, 0
    usual = lru_cache(_USUAL)(chance)
    for task in map(scored, rewards):
        if len(task) >= k:
            means.append(usual(len(task), sum(reward >= threshold for reward in task), k))
            # As many sets of k could have been drawn with tries of their own; more would make the interval too narrow
            # where few tasks agree by chance.
            sets += len(task) // k
            behind += len(task)
    return estimate(means, sets, sum(map(len, rewards)), bounded=True, scored=behind)


_USUAL: Final = 4096  # chances that are kept: most tasks of a run have as many tries as others
_NOTHING: Final = 10**20  # counts below one in so many subsets are left out: a float cannot hold them beside the others
_FEW: Final = 3  # classes of which it is quicker to multiply all but one than to divide one out of the product of all
CountRows = list[list[int]]
"""Ways to pick from some classes: by how many of them have as many votes as the leader, by how many votes the others
have together. Of the latter no class has as many as the leader."""


@lru_cache(maxsize=4096)
def shares(sizes: tuple[int, ...], blank: int, k: int) -> tuple[float, ...]:
    """How often each class of answers wins the vote of k tries, over all subsets of k tries; ties are split evenly.

    Subsets are counted with polynomials, for each number of votes of the winner, by the number of ties. Counts are
    whole numbers: the result is exact up to the last division, and to terms too small for a float.
    """
    tries = sum(sizes) + blank
    if k == tries:
        most = max(sizes, default=0)
        leaders = sizes.count(most)
        return tuple((size == most) / leaders for size in sizes)
    subsets = math.comb(tries, k)
    won: dict[int, list[float]] = {size: [] for size in sizes}
    # How many votes a class of each size has, as subsets; and in how many the largest has no more than the leader.
    held = {
        size: [math.comb(size, took) * math.comb(tries - size, k - took) for took in range(min(size, k) + 1)]
        for size in won
    }
    above = {size: list(accumulate(reversed(ways)))[::-1] for size, ways in held.items()}
    below = list(accumulate(held[max(sizes)])) if sizes else []
    for votes in range(1, len(below)):
        if below[votes] < subsets // _NOTHING:
            continue
        likely = [size for size, ways in above.items() if votes < len(ways) and ways[votes] > subsets // _NOTHING]
        for size, ways in _leads(sizes, likely, votes, tries, k):
            # The quotient of two whole numbers is a float even where neither would be one.
            won[size] += [math.comb(size, votes) * count / ((1 + ties) * subsets) for ties, count in enumerate(ways)]
    return tuple(math.fsum(won[size]) for size in sizes)


def _leads(
    sizes: Sequence[int], likely: Sequence[int], votes: int, tries: int, k: int
) -> Iterator[tuple[int, list[int]]]:
    """Yield, for each likely size, the ways to pick the rest, by how many classes have as many votes."""
    left = k - votes
    if left < votes:
        # More than half: no other class can have as many.
        yield from ((size, [math.comb(tries - size, left)]) for size in likely)
        return
    # A smaller class cannot have as many votes either: whatever is picked of it is no matter.
    rivals = [size for size in sizes if size >= votes]
    rows = _product(rivals, votes, left) if likely and len(rivals) > _FEW else []
    for size in likely:
        place = rivals.index(size)
        others = [*rivals[:place], *rivals[place + 1 :]]
        found = _without(rows, size, votes) if rows else _product(others, votes, left)
        yield size, _ways(found, votes, tries - sum(rivals), left)


def _ways(rows: CountRows, votes: int, free: int, left: int) -> list[int]:
    """The ways to pick the remaining tries, by ties; the free ones may be picked in any way."""
    return [
        sum(ways * math.comb(free, left - votes * ties - picked) for picked, ways in enumerate(row))
        for ties, row in enumerate(rows)
    ]


def _product(rivals: Sequence[int], votes: int, left: int) -> CountRows:
    """The ways to pick at most the remaining tries from classes that have no more votes than the leader."""
    rows = [[1]]
    for size in rivals:
        fewer, equal = _fewer(size, votes), math.comb(size, votes)
        grown: CountRows = []
        for ties in range(min(len(rows), left // votes) + 1):
            room = left - votes * ties + 1
            row = _times(rows[ties], fewer, room) if ties < len(rows) else []
            tied = rows[ties - 1][:room] if ties else []
            row += [0] * (len(tied) - len(row))
            for picked, ways in enumerate(tied):
                row[picked] += equal * ways
            grown.append(row)
        rows = grown
    return rows


def _without(rows: CountRows, size: int, votes: int) -> CountRows:
    """Divide a class out of a product: the quotient of two power series of which one begins with 1."""
    fewer, equal = _fewer(size, votes)[1:], math.comb(size, votes)
    found: CountRows = []
    tied: list[int] = []
    for row in rows:
        rest = row.copy()
        for picked, ways in enumerate(tied[: len(rest)]):
            rest[picked] -= equal * ways
        for picked in range(1, len(rest)):
            rest[picked] -= sum(map(mul, fewer, reversed(rest[max(0, picked - len(fewer)) : picked])))
        found.append(rest)
        tied = rest
    return found


def _fewer(size: int, votes: int) -> list[int]:
    return [math.comb(size, took) for took in range(votes)]


def _times(row: Sequence[int], factor: Sequence[int], room: int) -> list[int]:
    """The product of two polynomials up to ``room`` coefficients."""
    short, long = sorted((row, factor), key=len)
    turned = short[::-1]
    edge = [0] * (len(short) - 1)
    padded = [*edge, *long, *edge]
    length = min(room, len(row) + len(factor) - 1)
    return [sum(map(mul, padded[place : place + len(short)], turned)) for place in range(length)]


def majority_of(answers: Sequence[str | None], rewards: Sequence[float]) -> float | None:
    """The mean reward of a task's answers with the most votes; see ``majority_at_n``."""
    if len(answers) == 1:
        # A class of its own, or no vote.
        (answer,), (reward,) = answers, rewards
        worth = reward if answer and normalise(answer) else 0.0
        return None if math.isnan(reward) else worth
    classes = vote(answers)
    values: list[float] = []
    for votes in classes:
        if len(votes.voters) < len(classes[0].voters):
            break
        found = scored([rewards[voter] for voter in votes.voters])
        if not found:
            return None
        values.append(math.fsum(found) / len(found))
    if values:
        return math.fsum(values) / len(values)
    # No try answered: the vote fails, which is measured only if some try was scored.
    return 0.0 if scored(rewards) else None


def majority_at_n(answers: Sequence[Sequence[str | None]], rewards: Rewards) -> Estimate | None:
    """The mean over tasks of the reward of the answer with the most votes.

    This is self-consistency (Wang et al. 2023).
    Answers are compared after normalisation (``trunkline.tree.answers.normalise``), and a class of equal answers is
    worth the mean reward of its scored members. A tie counts as its expectation under a fair draw between the classes
    in it. Aggregators join more answers than that, as 1/2 and 0.5, so one may find another majority.

    Args:
        answers: For each task the answers of its tries; None does not vote.
        rewards: The rewards of the same tries, in the same order.

    Returns:
        The estimate over the tasks whose leading answers are scored, or None if there is none.
    """
    means, tries = array("d"), 0
    for said, worth in _matched(answers, rewards):
        tries += len(worth)
        mean = majority_of(said, worth)
        if mean is not None:
            means.append(mean)
    return estimate(means, len(means), tries, bounded=inside(rewards))


class AnswerClasses:
    """The scored tries of one task, grouped by answer once for votes of any number of them."""

    def __init__(self, answers: Sequence[str | None], rewards: Sequence[float]) -> None:
        counted = [position for position, reward in enumerate(rewards) if not math.isnan(reward)]
        worth = [rewards[position] for position in counted]
        classes = vote(answers[position] for position in counted)
        self.tries = len(rewards)
        self.scored = len(counted)
        self._sizes = tuple(len(votes.voters) for votes in classes)
        # Which members of a class are in a subset is a fair draw too, so each class is worth the mean over its members.
        self._means = [math.fsum(worth[voter] for voter in votes.voters) / len(votes.voters) for votes in classes]
        self._ends = min(worth, default=0.0), max(worth, default=0.0)

    def worth(self, k: int) -> float | None:
        """The expected reward of a vote among k tries, over all subsets of k scored tries; None with fewer."""
        if self.scored < k:
            return None
        won = shares(self._sizes, self.scored - sum(self._sizes), k)
        value = math.fsum(share * mean for share, mean in zip(won, self._means, strict=True))
        least, most = self._ends
        # Chances that add up to 1 may do so but for a rounding.
        return max(min(0.0, least), min(max(0.0, most), value))


class MajorityAtK:
    """Adds up votes among k tries, one task at a time; see ``majority_at_k``."""

    def __init__(self, k: int) -> None:
        check_k("majority@", k)
        self._k = k
        self._means = array("d")
        self._tries = self._votes = self._behind = 0

    def add(self, classes: AnswerClasses) -> None:
        self._tries += classes.tries
        mean = classes.worth(self._k)
        if mean is not None:
            self._means.append(mean)
            self._behind += classes.scored
            # As many votes of k could have been held with tries of their own.
            self._votes += classes.scored // self._k

    def estimate(self, *, bounded: bool) -> Estimate | None:
        """The mean over tasks; None without one that counts."""
        return estimate(self._means, self._votes, self._tries, bounded=bounded, scored=self._behind)


def majority_at_k(answers: Sequence[Sequence[str | None]], rewards: Rewards, k: int) -> Estimate | None:
    """The mean over tasks of what a vote among k of their tries is worth, over all subsets of k tries.

    It is what ``majority_at_n`` would give in the mean if only k tries had been made, with answers compared alike:
    exact, as subsets are counted and not drawn, and with k the number of tries the same. Tries without an answer are
    tries, and do not vote; a subset without a vote is worth 0. Tries that were not scored are left out.

    Args:
        answers: For each task the answers of its tries.
        rewards: The rewards of the same tries, in the same order.
        k: Tries in a vote, at least 1.

    Returns:
        The estimate over the tasks with at least k scored tries, or None if there is none.
    """
    votes = MajorityAtK(k)
    for said, worth in _matched(answers, rewards):
        votes.add(AnswerClasses(said, worth))
    return votes.estimate(bounded=inside(rewards))


def _matched(
    answers: Sequence[Sequence[str | None]], rewards: Rewards
) -> Iterator[tuple[Sequence[str | None], Sequence[float]]]:
    for said, worth in zip(answers, rewards, strict=True):
        if len(said) != len(worth):
            raise UsageError(f"a task has {len(said)} answers but {len(worth)} rewards")
        yield said, worth


class PerSolved(msgspec.Struct, frozen=True):
    """What was spent on all tasks for each that was solved.

    Attributes:
        value: All that was spent over the number of solved tasks.
        low: Lower end of its 95 % interval; None with fewer than two tasks, or where nothing was spent.
        high: Upper end.
        tasks: Tasks, solved or not.
        solved: Solved ones.
    """

    value: float
    low: float | None
    high: float | None
    tasks: int
    solved: int


def per_solved(spent: Sequence[float], solved: Sequence[bool]) -> PerSolved | None:
    """Return what was spent for each solved task, what was spent on others included.

    It is a ratio of two means over tasks. On the scale of logarithms its interval joins the interval of each (Zou and
    Donner 2008): the delta method's for what was spent, Wilson's for the share that was solved, less what the two have
    in common by their correlation. So it is never below 0, and has a width where every task was solved.

    Args:
        spent: What was spent on each task: tokens, money, seconds; 0 or more.
        solved: Whether the task was solved.

    Returns:
        The ratio, or None if nothing was solved.

    Raises:
        UsageError: The columns differ in length, or an amount is below 0 or not finite.
    """
    if len(spent) != len(solved):
        raise UsageError(f"{len(spent)} amounts do not fit {len(solved)} tasks")
    if not all(math.isfinite(amount) and amount >= 0 for amount in spent):
        raise UsageError("what was spent on a task must be a number from 0 on")
    wins = sum(map(bool, solved))
    if not wins:
        return None
    value = math.fsum(spent) / wins
    low, high = _interval(spent, [float(won) for won in solved], value)
    return PerSolved(value, low, high, len(spent), wins)


def _interval(spent: Sequence[float], solved: Sequence[float], value: float) -> Ends:
    count = len(spent)
    mean = math.fsum(spent) / count
    if count < 2 or mean <= 0:
        return None, None
    error = math.sqrt(math.fsum((amount - mean) ** 2 for amount in spent) / (count - 1) / count) / mean
    half = student(count - 1) * error
    rate = math.fsum(solved) / count
    least, most = wilson(solved, count)
    down, up = math.log(rate / least), math.log(most / rate)
    shared = correlation(spent, solved)
    return value * math.exp(-_joined(half, up, shared)), value * math.exp(_joined(half, down, shared))


def _joined(one: float, other: float, shared: float) -> float:
    return math.sqrt(max(0.0, one * one + other * other - 2 * shared * one * other))


_PLAIN: Final = ("accuracy", "best", "majority")
_OF_K: Final = ("avg@", "pass@", "pass^", "majority@")
_NAME = re.compile(r"(avg@|pass@|pass\^|majority@)([0-9]{1,6})")


class Metric(msgspec.Struct, frozen=True):
    """A metric of the tries of tasks; make one with ``metric``.

    Attributes:
        kind: ``accuracy``, ``best``, ``majority``, or the part of the name before its number.
        k: The number; None for a metric without one.
    """

    kind: str
    k: int | None = None

    @property
    def name(self) -> str:
        """The name that ``metric`` reads."""
        return self.kind if self.k is None else f"{self.kind}{self.k}"

    def value(self, answers: Sequence[str | None], rewards: Sequence[float]) -> float | None:
        """What the tries of one task come to.

        Args:
            answers: Their answers; None where a try has none.
            rewards: Their rewards; NaN where a try was not scored.

        Returns:
            The value, or None where this task does not count: too few of its tries are scored.
        """
        found = scored(rewards)
        if len(found) < (self.k or 1):
            return None
        if self.kind in ("accuracy", "avg@"):
            return math.fsum(found) / len(found)
        if self.kind == "best":
            return max(found)
        if self.kind == "majority":
            return majority_of(answers, rewards)
        assert self.k is not None
        if self.kind == "majority@":
            return AnswerClasses(answers, rewards).worth(self.k)
        chance = pass_at_k if self.kind == "pass@" else pass_hat_k
        return chance(len(found), sum(reward >= 1.0 for reward in found), self.k)

    def draws(self, tries: int) -> float:
        """How many independent values of it so many scored tries of a task could hold, at least 1.

        Args:
            tries: Scored tries.
        """
        if self.kind in ("best", "majority"):
            return 1.0
        each = 1 if self.kind == "avg@" else self.k or 1
        return max(1.0, tries / each)

    def estimate(self, answers: Sequence[Sequence[str | None]], rewards: Rewards) -> Estimate | None:
        """The metric over tasks, with its interval.

        Args:
            answers: For each task the answers of its tries.
            rewards: Their rewards.

        Returns:
            The estimate, or None if no task counts.
        """
        if self.k is None:
            if self.kind == "majority":
                return majority_at_n(answers, rewards)
            return accuracy(rewards) if self.kind == "accuracy" else best_of_n(rewards)
        if self.kind == "majority@":
            return majority_at_k(answers, rewards, self.k)
        of_k = {"avg@": avg_at_k, "pass@": mean_pass_at_k, "pass^": mean_pass_hat_k}[self.kind]
        return of_k(rewards, self.k)


def metric(name: str) -> Metric:
    """Read the name of a metric.

    Args:
        name: ``accuracy`` (the mean reward of one try), ``best``, ``majority``, or one with a number of tries, as
            ``avg@4``, ``pass@4``, ``pass^4`` and ``majority@4``.

    Raises:
        UsageError: There is no such metric; the message lists those that there are.
    """
    if name in _PLAIN:
        return Metric(name)
    found = _NAME.fullmatch(name)
    if found is None or int(found[2]) < 1:
        known = ", ".join([*_PLAIN, *(f"{kind}K" for kind in _OF_K)])
        raise UsageError(f"there is no metric {quoted(name, 40)}: it is one of {known}, with K tries, at least 1")
    return Metric(found[1], int(found[2]))
