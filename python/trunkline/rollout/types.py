"""How a program ended, a turn on the tree, and where a rollout says that it grew."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

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

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.llm.types import Reply, ReplyChoice

__all__ = ["DrawCallback", "Ending", "Finished", "KeptPrefix", "Turn", "TurnSink", "ending_of"]

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


class Ending(NamedTuple):
    """The end of a rollout.

    Attributes:
        termination: Why it ended.
        answer: Its answer, if it has one.
        failure: What the record says of it, where the termination does not say it all.
    """

    termination: Termination
    answer: str | None
    failure: str | None


def ending_of(end: BaseException) -> Ending:
    """Return what the exception that ended a program comes to.

    Args:
        end: :class:`Finished`, an error of the rollout, or anything else: a fault of ours or of user code that nobody
            foresaw.
    """
    if isinstance(end, Finished):
        return Ending(end.termination, end.answer, Failure("Stopped", end.reason).encode() if end.reason else None)
    termination = Termination.LOST
    if isinstance(end, RolloutError):
        termination = next((found for kind, found in _ENDS if isinstance(end, kind)), Termination.LLM_ERROR)
    return Ending(termination, None, Failure.of(end).encode())


class KeptPrefix(NamedTuple):
    """What a fork inside a turn keeps of it.

    Attributes:
        turn: The turn.
        tokens: How many of its tokens.
    """

    turn: int
    tokens: int


class TurnSink(Protocol):
    """Where a rollout says that it grew, and where it waits while too much is in flight."""

    async def reserve(self) -> None:
        """Wait until one more model turn may be in flight, and count it."""
        ...

    def release(self) -> None:
        """Give back a reservation whose turn did not happen."""
        ...

    def called(self, reply: Reply) -> None:
        """Note what a request cost, in the step in which its turns went onto the tree."""
        ...

    def grew(self, size: int = 0, turns: int = 0) -> None:
        """Note that the tree grew by so many bytes and model turns; each of these was reserved."""
        ...

    async def durable(self) -> None:
        """Wait until everything that was noted so far is in the run file."""
        ...


class Turn(NamedTuple):
    """A model turn on the tree.

    Attributes:
        choice: What the model said.
        node: Its node.
        size: Bytes of its message.
    """

    choice: ReplyChoice
    node: int
    size: int


DrawCallback: TypeAlias = "Callable[[int, Turn | RolloutError], None]"
"""Is told of each draw what became of it."""
