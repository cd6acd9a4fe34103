"""How a program ended, as the tree records it."""

from __future__ import annotations

from typing import NamedTuple

from trunkline.errors import (
    BadRequest,
    CallFailed,
    ContentFiltered,
    ContextTooLong,
    ForkRefused,
    LLMError,
    ProgramError,
    RolloutError,
    ToolError,
    UnknownEffect,
)
from trunkline.tree.records import Failure
from trunkline.types import Termination

__all__ = ["Finished", "Outcome", "outcome"]

_ENDS: tuple[tuple[type[RolloutError], Termination], ...] = (
    (ContextTooLong, Termination.MAX_CONTEXT),
    (ContentFiltered, Termination.CONTENT_FILTER),
    (BadRequest, Termination.BAD_REQUEST),
    (LLMError, Termination.LLM_ERROR),
    (UnknownEffect, Termination.UNKNOWN_EFFECT),
    (ToolError, Termination.TOOL_ERROR),
    (ForkRefused, Termination.CANCELLED),
    (ProgramError, Termination.LOST),
    (CallFailed, Termination.TOOL_ERROR),
)
"""The first that fits counts."""


class Finished(Exception):
    """Ends the program of a rollout where it stands.

    Args:
        termination: Why it ends.
        answer: Its answer, if it has one.
        reason: What the record says of it, where the termination does not say it all.
    """

    def __init__(self, termination: Termination, answer: str | None, reason: str = "") -> None:
        super().__init__(reason or termination.value)
        self.termination = termination
        self.answer = answer
        self.reason = reason


class Outcome(NamedTuple):
    """The end of a rollout.

    Attributes:
        termination: Why it ended.
        answer: Its answer, if it has one.
        failure: What the record says of it, where the termination does not say it all.
    """

    termination: Termination
    answer: str | None
    failure: str | None


def outcome(end: BaseException) -> Outcome:
    """Return what the exception that ended a program comes to.

    Args:
        end: :class:`Finished`, an error of the rollout, or anything else: a fault of ours or of user code that nobody
            foresaw.
    """
    if isinstance(end, Finished):
        return Outcome(end.termination, end.answer, Failure("Stopped", end.reason).encode() if end.reason else None)
    termination = Termination.LOST
    if isinstance(end, RolloutError):
        termination = next((found for kind, found in _ENDS if isinstance(end, kind)), Termination.LLM_ERROR)
    return Outcome(termination, None, Failure.of(end).encode())
