"""Which segments of a tree get a report of their own, so that all reports together cost least."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from trunkline.score.reports.segments import Segment

__all__ = ["CACHED", "GENERATED", "SHARES", "Share", "Sizes", "choose"]

Share = Literal["auto", "always", "never"]
SHARES: Final[tuple[str, ...]] = ("auto", "always", "never")

GENERATED: Final = 4.0
"""What a generated token costs in prompt tokens, as most price lists have it."""


CACHED: Final = 0.5
"""What a cached prompt token is taken to cost, in others, where nobody says: price lists have 0.1 to 0.5, and of
requests that are sent at once not every one finds what another begins with."""


class Sizes(NamedTuple):
    """What requests are estimated to hold, in tokens.

    Attributes:
        frame: Instructions and question, in every request.
        report: A report.
        steps: The steps of each segment.
    """

    frame: float
    report: float
    steps: Sequence[float]


def choose(
    found: Sequence[Segment], sizes: Sizes, share: Share, known: Collection[int] = (), cached: float = 1.0
) -> list[bool]:
    """Choose the segments after which a report is written.

    A leaf always has one. Whether a branching point has one is a trade: it is one more request, and then no request
    below it reads the steps above it again, but their report. With ``auto`` the choice is the one whose estimated cost
    is least: prompt tokens, plus :data:`GENERATED` for each generated one. What several requests begin with alike costs
    ``cached`` for all but the first of them. However it is chosen, the steps of each segment are read in full once, so
    only what is read again makes a difference.

    Args:
        found: The segments, as :func:`~trunkline.score.reports.segments.segments` returns them.
        sizes: What requests hold.
        share: ``always`` a report at every branching point, ``never``, or where it pays.
        known: Positions of segments that have a report already, which costs nothing.
        cached: What a prompt token costs that the server's prefix cache holds, of one that it does not; 1 where there
            is no cache.

    Returns:
        For each segment whether a request is made for it; False for those that have a report.
    """
    if share != "auto":
        return [at not in known and (share == "always" or segment.leaf) for at, segment in enumerate(found)]
    total: list[float] = []
    for segment, size in zip(found, sizes.steps, strict=True):
        total.append(size + (0.0 if segment.parent is None else total[segment.parent]))
    # Of each segment and each one above it that may be the last with a report (-1 for none): the least that it and all
    # below it cost. Filled from below; each adds its own to what its parent's children cost.
    below: list[dict[int, float]] = [{} for _ in found]
    pays: list[dict[int, bool]] = [{} for _ in found]
    for at in range(len(found) - 1, -1, -1):
        segment = found[at]
        # The first request below it reads its report in full.
        after = below[at].get(at, 0.0) + ((1.0 - cached) * sizes.report if segment.branches else 0.0)
        costs: dict[int, float] = {}
        for last in _above(found, at):
            read = total[at] if last < 0 else total[at] - total[last] + sizes.report
            request = 0.0 if at in known else cached * (sizes.frame + read) + GENERATED * sizes.report
            without = below[at].get(last, 0.0)
            pays[at][last] = segment.leaf or at in known or request + after < without
            costs[last] = request + after if pays[at][last] else without
        if segment.parent is not None:
            for last, cost in costs.items():
                below[segment.parent][last] = below[segment.parent].get(last, 0.0) + cost
    chosen: list[bool] = []
    lasts: list[int] = []
    for at, segment in enumerate(found):
        last = -1 if segment.parent is None else lasts[segment.parent]
        pay = pays[at][last]
        lasts.append(at if pay else last)
        chosen.append(pay and at not in known)
    return chosen


def _above(found: Sequence[Segment], at: int) -> list[int]:
    """All segments above one, and -1."""
    above = [-1]
    parent = found[at].parent
    while parent is not None:
        above.append(parent)
        parent = found[parent].parent
    return above
