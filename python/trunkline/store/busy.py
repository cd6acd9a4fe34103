"""When something was out: how long of a run's wall time at least one of some requests was."""

from __future__ import annotations

from array import array

__all__ = ["Spans", "union"]


class Spans:
    """Stretches of time, each from its begin to its end, in microseconds."""

    def __init__(self) -> None:
        self.begins = array("q")
        self.ends = array("q")

    def add(self, begin: int, end: int) -> None:
        """Add one."""
        self.begins.append(begin)
        self.ends.append(end)

    @property
    def length(self) -> int:
        """How long they last together, in microseconds; where two overlap, both count."""
        return sum(self.ends) - sum(self.begins)


def union(*spans: Spans) -> int:
    """Return for how many microseconds at least one of all stretches lasts."""
    total, until = 0, -1
    every = (stretch for one in spans for stretch in zip(one.begins, one.ends, strict=True))
    for begin, end in sorted(every):
        if end > until:
            total += end - max(begin, until)
            until = end
    return total
