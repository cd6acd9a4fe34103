"""A model call of an agent, its reply and a refusal, whatever interface they come by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from trunkline.llm.request import Sampling
from trunkline.llm.types import ReplyChoice

if TYPE_CHECKING:
    from collections.abc import Iterator


class AgentRequest(msgspec.Struct, kw_only=True):
    """What an agent asks of a model, as a chat completion has it.

    Attributes:
        model: The model's name, as the agent gives it.
        messages: Chat messages; with ``previous`` only those that follow that response.
        tools: Tools, each ``{"type": "function", "function": {...}}``.
        sampling: Sampling parameters; ``tool_choice``, ``response_format`` and their like are in ``extra``.
        n: How many choices are asked for.
        stream: Whether the reply is written as events.
        previous: Id of the response that the messages follow; empty where they are the whole conversation.
        options: What the interface needs to write the reply.
    """

    model: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = []
    sampling: Sampling = Sampling()
    n: int = 1
    stream: bool = False
    previous: str = ""
    options: dict[str, Any] = {}


class AgentReply(msgspec.Struct, kw_only=True):
    """What an agent is answered.

    Attributes:
        id: Text of ``[0-9a-f]`` that ids of the response and of its messages are made of.
        created: Seconds since 1970.
        model: The model's name, as the agent gave it.
        choices: The choices; their calls have the ids that are handed out.
        prompt: Prompt tokens; None where the server did not say.
        cached: Those of them that were cached, likewise.
        generated: Completion tokens of all choices, likewise.
    """

    id: str
    created: int
    model: str
    choices: list[ReplyChoice]
    prompt: int | None = None
    cached: int | None = None
    generated: int | None = None


class RequestRefused(Exception):
    """A request that gets no reply.

    Args:
        message: What is wrong and what to do; safe to print.
        status: The HTTP status.
        code: A word of the interface, such as ``unsupported_parameter``; the format's own for the status when empty.
        retry: Whether asking again may help.
        param: The field that is wrong; empty where it is none.
    """

    def __init__(
        self, message: str, status: int = 400, code: str = "", *, retry: bool = False, param: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.retry = retry
        self.param = param


class Format(Protocol):
    """One interface of a model server."""

    route: str
    """The path behind the base URL, such as ``/v1/chat/completions``."""

    conversation: str
    """The field of a request that holds the conversation."""

    def head(self, body: dict[str, Any]) -> AgentRequest:
        """Read all of a request but its conversation; the messages are those that stand before it.

        Args:
            body: The request's JSON object without the conversation, which may hold anything.

        Raises:
            RequestRefused: It asks for something that is not offered, or is no request.
        """
        ...

    def text(self, value: Any) -> list[dict[str, Any]]:
        """Return the messages of a conversation that is no list; raises RequestRefused."""
        ...

    def add(self, messages: list[dict[str, Any]], items: list[Any], first: int) -> None:
        """Read further items of a conversation that is a list.

        Args:
            messages: The messages of the items before them, which are extended. A message of earlier items may be
                replaced, and is not altered.
            items: The items, which may be anything.
            first: How many items are before them.

        Raises:
            RequestRefused: One cannot be sent.
        """
        ...

    def write(self, request: AgentRequest, reply: AgentReply) -> dict[str, Any]:
        """Return a reply as the body of a response."""
        ...

    def events(self, request: AgentRequest, reply: AgentReply) -> Iterator[bytes]:
        """Return a finished reply as server-sent events, each with its empty line."""
        ...

    def refuse(self, refusal: RequestRefused) -> dict[str, Any]:
        """Return a refusal as the body of a response, in the words of the interface."""
        ...
