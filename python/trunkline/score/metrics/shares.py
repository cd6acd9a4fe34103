"""Who wins a vote of k among n, over all ways to pick them."""

from __future__ import annotations

import math
from functools import lru_cache

__all__ = ["shares"]


@lru_cache(maxsize=4096)
def shares(sizes: tuple[int, ...], blank: int, k: int) -> tuple[float, ...]:
    """How often each class of answers wins the vote of k tries, over all subsets of k tries.

    Subsets are counted, not listed: for each class and each number of votes it may lead with, a polynomial of the other
    classes counts the ways to pick the rest so that none of them has more votes, by how many have as many. A tie is
    shared fairly. The counts are whole numbers, so the result is exact but for its last division.

    Args:
        sizes: How many tries gave each answer.
        blank: Tries without an answer, which do not vote.
        k: Tries in a vote, from 1 to all of them.

    Returns:
        A chance for each class. They add up to less than 1 where there are subsets in which nobody has an answer.
    """
    known: dict[int, float] = {}
    for position, size in enumerate(sizes):
        if size not in known:
            others = (*sizes[:position], *sizes[position + 1 :])
            known[size] = _wins(size, others, blank, k)
    return tuple(known[size] for size in sizes)


def _wins(size: int, others: tuple[int, ...], blank: int, k: int) -> float:
    """Return in what share of the subsets a class leads; where it leads with others, it has its part of them."""
    subsets = math.comb(size + sum(others) + blank, k)
    # The quotient of two whole numbers is a float even where neither would be one.
    return math.fsum(
        math.comb(size, votes) * ways / ((1 + ties) * subsets)
        for votes in range(1, min(size, k) + 1)
        for ties, ways in enumerate(_rest(votes, others, blank, k))
    )


def _rest(votes: int, others: tuple[int, ...], blank: int, k: int) -> list[int]:
    """Return the ways to pick the rest of a subset, by the number of classes with as many votes as the leader."""
    left = k - votes
    # found[ties][picked]
    found = [[math.comb(blank, picked) for picked in range(left + 1)]]
    for size in others:
        fewer = [math.comb(size, took) for took in range(min(votes, size + 1))]
        equal = math.comb(size, votes)
        grown = [_times(row, fewer) for row in found]
        if equal and len(found) <= left // votes:
            grown.append([0] * (left + 1))
        for ties, row in enumerate(found[: len(grown) - 1] if equal else ()):
            higher = grown[ties + 1]
            for picked in range(votes, left + 1):
                higher[picked] += row[picked - votes] * equal
        found = grown
    return [row[left] for row in found]


def _times(row: list[int], factor: list[int]) -> list[int]:
    return [
        sum(row[picked - took] * ways for took, ways in enumerate(factor[: picked + 1])) for picked in range(len(row))
    ]
