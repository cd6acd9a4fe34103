"""Endings of rollouts, turns on a tree, and the sink that counts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import msgspec

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
from trunkline.llm.types import Reply, ReplyChoice
from trunkline.tree.records import Failure
from trunkline.types import Termination

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

    from trunkline.llm.receiver import CallFigures
    from trunkline.rollout.sampling.inflight import Named
    from trunkline.tools.toolbox import Observation


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
    """Ends the program of a rollout; ``reason`` is recorded where the termination does not say it all."""

    def __init__(self, termination: Termination, answer: str | None = None, reason: str = "") -> None:
        self.termination = termination
        self.answer = answer
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or str(self.termination)


class Ending(msgspec.Struct, frozen=True):
    """Termination, answer and recorded failure of a rollout."""

    termination: Termination
    answer: str | None
    failure: str | None


def ending_of(end: BaseException) -> Ending:
    """Return the ending that an exception of a program stands for."""
    if isinstance(end, Finished):
        return Ending(end.termination, end.answer, Failure("Stopped", end.reason).encode() if end.reason else None)
    termination = Termination.LOST
    if isinstance(end, RolloutError):
        termination = next((found for kind, found in _ENDS if isinstance(end, kind)), Termination.LLM_ERROR)
    return Ending(termination, None, Failure.of(end).encode())


def reply_of(llm: str, endpoint: str, agent: str, figures: CallFigures, served: str, estimated: int) -> Reply:
    """Return what a request of the turn engine cost, as a reply without contents."""
    draws, prompt, cached, generated, attempts, queue, first, micros, started = figures
    choices = [ReplyChoice("", None, [], "")] * draws
    reply = Reply(choices, prompt, cached, generated, attempts, micros, served, endpoint, queue, first, agent)
    reply.ended, reply.llm, reply.estimated = started + micros, llm, estimated
    return reply


class KeptPrefix(NamedTuple):
    """The turn that a fork continues, and how many of its tokens are kept."""

    turn: int
    tokens: int


class TurnSink(Protocol):
    """Receives what a rollout adds to its tree, and limits turns in flight."""

    def reserve(self) -> Awaitable[None] | None:
        """Count one more model turn in flight; returns what to wait for where there are too many."""
        ...

    def release(self) -> None:
        """Give back a reservation whose turn did not happen, or waits until others can land."""
        ...

    def retake(self) -> None:
        """Take a reservation again that was given back, without waiting."""
        return

    def called(self, reply: Reply) -> None:
        """Record the cost of a request in the step that appends its turns."""
        ...

    def answered(self, llm: str, endpoint: str, agent: str, figures: CallFigures, served: str, estimated: int) -> None:
        """Record the cost of a request of the turn engine; see ``Reply``."""
        self.called(reply_of(llm, endpoint, agent, figures, served, estimated))

    def used(
        self, rollout: int, tools: Collection[str], calls: Iterable[Named], seen: Sequence[Observation], started: int
    ) -> None:
        """Record tool calls that began together, at ``started`` in microseconds; ``tools`` are those there are."""

    def grew(self, size: int = 0, turns: int = 0) -> None:
        """Count bytes and reserved model turns that the tree grew by."""
        ...

    async def durable(self) -> None:
        """Wait until everything recorded so far is in the run file."""
        ...


class Turn(msgspec.Struct, frozen=True):
    """A model turn on the tree: choice, node and bytes of its message."""

    choice: ReplyChoice
    node: int
    size: int


DrawCallback: TypeAlias = "Callable[[int, Turn | RolloutError], None]"
"""Is told of each draw what became of it."""
