"""Dialect protocol, Parsed, helpers."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import msgspec

from trunkline.llm.types import ReplyChoice, ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.llm.request import Sampling
    from trunkline.types import Message


MOST_CALLS: Final = 1000
"""Calls a turn may make; no model means more."""

Definition = dict[str, Any]
"""A tool as chat completions describe it: a ``function`` with ``name``, ``description``, ``parameters``."""


class Parsed(msgspec.Struct):
    r"""A parsed reply: calls, else an answer, else a problem.

    Attributes:
        calls: Tool calls in the order the model made them. While there are any, the rest does not count.
        answer: What the model answers: the answer itself, or a text that has it in ``<answer>`` tags or ``\boxed{}``.
            None if this turn neither calls nor answers.
        problem: What to tell the model about a turn that neither calls nor answers; it then moves again.
    """

    calls: list[ToolCall] = []
    answer: str | None = None
    problem: str = ""


@runtime_checkable
class Dialect(Protocol):
    """The form in which an agent and a model speak about tools.

    An object with these members is a dialect; it crosses to workers as a strategy does. It must hold no state: its
    methods are functions of their arguments, also for replies that are hostile, and it thinks of thinking itself
    (``trunkline.llm.dialects.base.spoken`` leaves it out).
    """

    @property
    def native(self) -> bool:
        """Whether tool definitions go along in the ``tools`` field of requests; an attribute will do."""
        ...

    def prompt(self, tools: Sequence[Definition]) -> str:
        """Return what the system prompt says about tools, empty for nothing; it is joined to the agent's own.

        Raises:
            ConfigError: The dialect cannot be spoken with these tools.
        """
        ...

    def sampling(self, given: Sampling) -> Sampling:
        """Return the sampling to send: what the agent asks for, and what the dialect needs, such as stop strings."""
        ...

    def parse(self, choice: ReplyChoice, tools: Sequence[Definition]) -> Parsed:
        """Read a reply that its model ended by itself. A call may name no tool and hold no JSON."""
        ...

    def observe(self, call: ToolCall, text: str, id: str) -> Message:
        """Return the message that brings a call's result back.

        Args:
            call: The call, as ``parse`` read it.
            text: What the tool returned, or what went wrong.
            id: The call's id in the history, as native histories have it.
        """
        ...


def call_of(value: object) -> ToolCall:
    """Read one call ``{"name": ..., "arguments": {...}}``; ``parameters``, JSON text or no arguments will do."""
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(name, str) or not name.strip():
        return unread(json.dumps(value, ensure_ascii=False))
    arguments = value.get("arguments", value.get("parameters"))
    if arguments is None:
        return ToolCall("", name, "{}")
    return ToolCall("", name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False))


def unread(text: str) -> ToolCall:
    """An unreadable call: no name, and the model's text as arguments."""
    return ToolCall("", "", text)


_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"
_TAG: Final = re.compile("(</?think>)")


def spoken(text: str) -> str:
    """Leave the thinking out of a reply.

    It goes from ``<think>`` to the next ``</think>`` or the end. An unopened ``</think>`` ends thinking that began in
    the prompt. In doubt text is thinking, since what is only thought must not be run.
    """
    if "think>" not in text:
        return text
    kept: list[str] = []
    thinking = False
    for piece in _TAG.split(text):
        if piece == _OPEN:
            thinking = True
        elif piece == _CLOSE:
            if not thinking:
                kept.clear()
            thinking = False
        elif not thinking:
            kept.append(piece)
    return "".join(kept)
