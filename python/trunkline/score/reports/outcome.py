"""What came of writing reports."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from trunkline.types import Usage

__all__ = ["Problem", "Reported"]


class Problem(NamedTuple):
    """A report that was not written.

    Attributes:
        node: Where it is missing.
        reason: Why; safe to print.
    """

    node: int
    reason: str


class Reported(msgspec.Struct, frozen=True):
    """What came of writing reports on a tree.

    Attributes:
        usage: What all calls that gave a reply cost.
        written: How many reports were written.
        skipped: How many were there already and were left as they are.
        problems: Reports that were not written, by their nodes.
    """

    usage: Usage = msgspec.field(default_factory=Usage)
    written: int = 0
    skipped: int = 0
    problems: tuple[Problem, ...] = ()

    @property
    def failed(self) -> int:
        """How many reports were not written."""
        return len(self.problems)

    def __add__(self, other: Reported) -> Reported:
        return Reported(
            self.usage + other.usage,
            self.written + other.written,
            self.skipped + other.skipped,
            (*self.problems, *other.problems),
        )
