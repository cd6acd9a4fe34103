"""The plain data that every layer shares: tasks, terminations, usage."""

from __future__ import annotations

import math
from enum import StrEnum
from operator import add, sub
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline._internal.text import JSON, quoted
from trunkline._internal.validation import type_phrase
from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FAILED", "UNSCORED", "Message", "Task", "Termination", "Usage", "accepted"]


Message = dict[str, Any]
"""One chat message in the OpenAI form: ``role``, ``content`` and, where present, ``tool_calls``."""


class Termination(StrEnum):
    """Why a rollout ended; one enum for every program, strategy and screen.

    Those marked *broke* are failures, which are never scored.

    Attributes:
        ANSWER: ``answer``: the model gave its answer, or the environment said that it was over.
        MAX_TURNS: ``max_turns``: it used up its turns.
        MAX_TOKENS: ``max_tokens``: a turn was cut at ``max_tokens``.
        MAX_CONTEXT: ``max_context``: the conversation no longer fits the model.
        TOOL_LIMIT: ``tool_limit``: it used up its tool calls.
        CONTENT_FILTER: ``content_filter``, broke: the provider withheld a reply.
        BAD_REQUEST: ``bad_request``, broke: the endpoint refused the request itself.
        LLM_ERROR: ``llm_error``, broke: the model gave no usable reply within the attempts.
        TOOL_ERROR: ``tool_error``, broke: a tool, a hook or an environment failed in a way that no model is told of.
        UNKNOWN_EFFECT: ``unknown_effect``, broke: a call with side effects may or may not have happened.
        FILTERED: ``filtered``: a filter took it out.
        CENSORED: ``censored``: it was cut by a budget or a deadline, or because its result no longer mattered.
        CANCELLED: ``cancelled``: the user or a strategy stopped it, or it could not begin at its fork point.
        LOST: ``lost``, broke: its process died, or its program could not be continued.
        RETRIED: ``retried``: it had ended otherwise and was asked again; another draw stands in its place.
    """

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
    RETRIED = "retried"


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

UNSCORED = FAILED | {Termination.FILTERED, Termination.CENSORED, Termination.CANCELLED, Termination.RETRIED}
"""Rollouts that no reward function sees."""


def accepted(name: str, value: object) -> tuple[str, ...]:
    """Read reference answers, given as text, a number, or a list of them; return each once, as text.

    None and blank text are no answer. Messages call the value ``name``.

    Raises:
        ConfigError: One is neither text nor a finite number.
    """
    if type(value) is str:
        return (value,) if value.strip() else ()
    listed = value if isinstance(value, list | tuple) else () if value is None else (value,)
    for position, item in enumerate(listed):
        finite = not isinstance(item, float) or math.isfinite(item)
        if isinstance(item, bool) or not isinstance(item, str | int | float) or not finite:
            place = name if item is value else f"{name}[{position}]"
            raise ConfigError(f"{place} is {type_phrase(item)}, expected a string or a number, or a list of them")
    return tuple(dict.fromkeys(answer for answer in map(str, listed) if answer.strip()))


_FIELD_TYPES = (str, list, tuple, dict)
_OBJECTS = {dict}
_TEXTS = {str}


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One problem to be tried.

    Attributes:
        id: Unique within a run, and not blank.
        messages: What the model is shown first, in the OpenAI chat form; at least one.
        reference: The reference answers; empty when there is none to compare with.
        metadata: All else that the row carried; kept, never shown to the model.

    Raises:
        ConfigError: A field has a value it cannot have; the message names the task and the field.
    """

    id: str
    messages: list[Message]
    reference: tuple[str, ...] = ()
    metadata: dict[str, JSON] = {}

    def __post_init__(self) -> None:
        if not (
            tuple(map(type, msgspec.structs.astuple(self))) == _FIELD_TYPES
            and {*map(type, self.messages)} == _OBJECTS
            and _TEXTS.issuperset(map(type, self.reference))
            and self.id.strip()
        ):
            self._check()

    def _check(self) -> None:
        given: Any = self  # values need not have the annotated types
        messages, reference = given.messages, given.reference
        if not isinstance(given.id, str):
            raise ConfigError(f"task: id is {type_phrase(given.id)}, expected a string")
        if not given.id.strip():
            raise ConfigError("task: id is empty, expected a name that is unique within the run")
        if not isinstance(messages, list) or not messages:
            raise self._fault("messages", messages, "a list of at least one chat message")
        for position, message in enumerate(messages):
            if not isinstance(message, dict):
                raise self._fault(f"messages[{position}]", message, "a dict with role and content")
        if isinstance(reference, str):
            raise self._fault(
                "reference", reference, f"the reference answers: give a tuple, ({quoted(reference, 30)},)"
            )
        if isinstance(reference, list):
            msgspec.structs.force_setattr(self, "reference", tuple(reference))
        elif not isinstance(reference, tuple):
            raise self._fault("reference", reference, "a tuple of strings")
        for position, item in enumerate(reference):
            if not isinstance(item, str):
                raise self._fault(f"reference[{position}]", item, "a string")
        if not isinstance(given.metadata, dict):
            raise self._fault("metadata", given.metadata, "a dict")

    def _fault(self, field: str, value: object, expected: str) -> ConfigError:
        return ConfigError(f"task {quoted(self.id)}: {field} is {type_phrase(value)}, expected {expected}")

    @classmethod
    def ask(
        cls, question: str, answer: str | float | Sequence[str | float] | None = None, *, id: str | None = None
    ) -> Task:
        """Make a task from one question.

        Args:
            question: The user's message.
            answer: The reference answer, text or a number; or a list or tuple of all that are accepted.
            id: The task's id; the question itself when not given.

        Raises:
            ConfigError: The question is empty or no text, or an answer is neither text nor a finite number.
        """
        given: object = question
        if not isinstance(given, str):
            raise ConfigError(f"question is {type_phrase(given)}, expected a string")
        if not given.strip():
            raise ConfigError("question is empty")
        name = question if id is None else id
        try:
            reference = accepted("answer", answer)
        except ConfigError as problem:
            raise ConfigError(f"task {quoted(str(name))}: {problem}") from None
        return cls(id=name, messages=[{"role": "user", "content": question}], reference=reference)

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
        tool_errors: Of these, calls that failed.
        bridged: Turns whose prompt was not its path's token ids with more after them, and whose path was kept; see
            ``trunkline.TokenMode``.
        realigned: Such turns whose prompt replaced the rest of the path.
        forked: Such turns whose prompt began a training sample of its own.
    """

    calls: int = 0
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    unreported: int = 0
    retries: int = 0
    tools: int = 0
    tool_errors: int = 0
    bridged: int = 0
    realigned: int = 0
    forked: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*map(add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))

    def __sub__(self, other: Usage) -> Usage:
        return Usage(*map(sub, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))
