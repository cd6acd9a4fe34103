"""Projections: what of a reply counts, and whether it is a valid action."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

__all__ = ["Projected", "Projection", "Whole"]


class Projected(NamedTuple):
    """A reply as a team reads it.

    Attributes:
        text: What is told to the others, and what the program gets.
        valid: Whether it is a valid action; one that is not is used all the same.
    """

    text: str
    valid: bool = True


@runtime_checkable
class Projection(Protocol):
    """Reads replies of one role. It must read equal replies equally: a replay reads them again."""

    def read(self, text: str, reasoning: str | None) -> Projected:
        """Read a reply.

        Args:
            text: What the model said.
            reasoning: What it thought, where the server returned that beside the text.
        """
        ...


class Whole:
    """All of a reply counts, and every reply is valid."""

    def __repr__(self) -> str:
        return "Whole()"

    def read(self, text: str, reasoning: str | None) -> Projected:
        """Read a reply."""
        return Projected(text)
