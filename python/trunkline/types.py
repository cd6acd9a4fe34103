"""The plain data that every layer shares: tasks, terminations, usage."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

__all__ = ["FAILED", "JSON", "UNSCORED", "Message", "Task", "Termination", "Usage"]

JSON = Any
"""A value that JSON can hold."""

Message = dict[str, Any]
"""One chat message in the OpenAI form: ``role``, ``content`` and, where present, ``tool_calls``."""


class Termination(StrEnum):
    """Why a rollout ended; one enum for every program, strategy and screen."""

    ANSWER = "answer"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    MAX_CONTEXT = "max_context"
    TOOL_LIMIT = "tool_limit"
    CONTENT_FILTER = "content_filter"
    BAD_REQUEST = "bad_request"
    LLM_ERROR = "llm_error"
    TOOL_ERROR = "tool_error"
    UNKNOWN_EFFECT = "unknown_effect"
    FILTERED = "filtered"
    CENSORED = "censored"
    CANCELLED = "cancelled"
    LOST = "lost"


FAILED = frozenset(
    {
        Termination.CONTENT_FILTER,
        Termination.BAD_REQUEST,
        Termination.LLM_ERROR,
        Termination.TOOL_ERROR,
        Termination.UNKNOWN_EFFECT,
        Termination.LOST,
    }
)
"""Rollouts that broke: data with a typed error, never scored as 0."""

UNSCORED = FAILED | {Termination.FILTERED, Termination.CENSORED, Termination.CANCELLED}
"""Rollouts that no reward function sees."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One problem to be tried.

    Attributes:
        id: Unique within a run.
        messages: What the model is shown first, in the OpenAI chat form.
        reference: The accepted answers; empty when there is none to compare with.
        metadata: Whatever else the row carried; kept, never shown to the model.
    """

    id: str
    messages: list[Message]
    reference: tuple[str, ...] = ()
    metadata: dict[str, JSON] = {}

    @classmethod
    def ask(cls, question: str, answer: str | None = None, *, id: str | None = None) -> Task:
        """Make a task from one question.

        Args:
            question: The user's message.
            answer: The accepted answer, if there is one.
            id: The task's id; the question itself when not given.
        """
        return cls(
            id=question if id is None else id,
            messages=[{"role": "user", "content": question}],
            reference=() if answer is None else (answer,),
        )

    @property
    def question(self) -> str:
        """The text of the last user message, or the empty string."""
        for message in reversed(self.messages):
            if message.get("role") == "user" and isinstance(message.get("content"), str):
                return str(message["content"])
        return ""


class Usage(msgspec.Struct, array_like=True):
    """What some calls cost, in tokens as the server reports them.

    Attributes:
        calls: Model calls that gave a reply.
        prompt: Prompt tokens, cached ones included.
        cached: Prompt tokens the server says it had cached.
        generated: Completion tokens.
        unreported: Calls whose reply carried no usage; their tokens are in no total.
        retries: Attempts beyond the first.
        tools: Tool calls executed.
    """

    calls: int = 0
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    unreported: int = 0
    retries: int = 0
    tools: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.calls + other.calls,
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.generated + other.generated,
            self.unreported + other.unreported,
            self.retries + other.retries,
            self.tools + other.tools,
        )
