"""Who wins a vote of k among n, over all ways to pick them."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["shares"]

_NOTHING: Final = 10**20
"""What happens in a smaller share of the subsets than one over this is left out: a float cannot tell it from never."""

_FEW: Final = 3
"""Classes of which it is quicker to multiply all but one than to divide one out of the product of all."""

Rows = list[list[int]]
"""Ways to pick from some classes: by how many of them have as many votes as the leader, by how many votes the others
have together. Of the latter no class has as many as the leader."""


@lru_cache(maxsize=4096)
def shares(sizes: tuple[int, ...], blank: int, k: int) -> tuple[float, ...]:
    """How often each class of answers wins the vote of k tries, over all subsets of k tries.

    Subsets are counted, not listed: for each number of votes that a winner may have, a polynomial counts the ways to
    pick the rest so that no class has more, by how many have as many. A tie is shared fairly. The counts are whole
    numbers, so the result is exact but for its last division; numbers of votes that win so seldom that no float could
    tell are left out.

    Args:
        sizes: How many tries gave each answer.
        blank: Tries without an answer, which do not vote.
        k: Tries in a vote, from 1 to all of them.

    Returns:
        A chance for each class. They add up to less than 1 where there are subsets in which nobody has an answer.
    """
    tries = sum(sizes) + blank
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
    """Yield, of each size that is likely, the ways to pick the rest, by how many classes have as many votes."""
    left = k - votes
    if left < votes:
        # More than half: nobody else can have as many.
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


def _ways(rows: Rows, votes: int, free: int, left: int) -> list[int]:
    """Return the ways to pick as many as are left, by ties; of those that are free any may be picked."""
    return [
        sum(ways * math.comb(free, left - votes * ties - picked) for picked, ways in enumerate(row))
        for ties, row in enumerate(rows)
    ]


def _product(rivals: Sequence[int], votes: int, left: int) -> Rows:
    """Return the ways to pick at most as many as are left from classes that have no more votes than the leader."""
    rows = [[1]]
    for size in rivals:
        fewer, equal = _fewer(size, votes), math.comb(size, votes)
        grown: Rows = []
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


def _without(rows: Rows, size: int, votes: int) -> Rows:
    """Take a class out of a product again: the quotient of two power series of which one begins with 1."""
    fewer, equal = _fewer(size, votes)[1:], math.comb(size, votes)
    found: Rows = []
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
    """Return the product of two polynomials as far as there is room."""
    short, long = sorted((row, factor), key=len)
    turned = short[::-1]
    edge = [0] * (len(short) - 1)
    padded = [*edge, *long, *edge]
    length = min(room, len(row) + len(factor) - 1)
    return [sum(map(mul, padded[place : place + len(short)], turned)) for place in range(length)]
