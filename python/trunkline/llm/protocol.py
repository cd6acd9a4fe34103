"""What a model is to the rest of the library: something that completes a request."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec

__all__ = ["LLM", "Choice", "Reply", "Request", "ToolCall"]


class ToolCall(msgspec.Struct):
    """One call that a model asked for.

    Attributes:
        id: The id the server gave, or the empty string. It is never sent back: see :func:`.messages.call_id`.
        name: The tool's name as the model wrote it; it may name no tool.
        arguments: The raw JSON text as the model wrote it; it may not be JSON.
    """

    id: str
    name: str
    arguments: str


class Choice(msgspec.Struct):
    """One completion.

    Attributes:
        content: The visible text; empty where the server sent null.
        reasoning: Thinking that the server returned beside the text, if any.
        tool_calls: Calls in the order the model made them.
        finish: ``stop``, ``length``, ``tool_calls``, ``content_filter`` or what was sent; empty if nothing.
    """

    content: str
    reasoning: str | None
    tool_calls: list[ToolCall]
    finish: str


class Reply(msgspec.Struct):
    """What one request brought.

    Attributes:
        choices: At least one, in draw order.
        prompt: Prompt tokens, cached ones included; -1 where the server gave no usage.
        cached: Prompt tokens the server had cached; -1 where it did not say.
        generated: Completion tokens of all choices together; -1 where the server gave no usage.
        attempts: Requests that were sent, the successful one included.
        micros: Wall time of the whole call in microseconds, waits and retries included.
        served: What the server says it ran: its model and fingerprint, or the empty string.
    """

    choices: list[Choice]
    prompt: int
    cached: int
    generated: int
    attempts: int
    micros: int
    served: str = ""


class Request(msgspec.Struct):
    """One request, ready to send.

    Attributes:
        body: The whole JSON body of a chat completion.
        key: Requests of one tree share a key, so that they meet the endpoint that holds their prefix.
        n: Completions the body asks for.
    """

    body: bytes
    key: int
    n: int = 1


@runtime_checkable
class LLM(Protocol):
    """Something that completes: an HTTP endpoint, a client, a batch engine, the simulator."""

    async def complete(self, request: Request) -> Reply:
        """Complete one request.

        Raises:
            LLMError: This rollout gets no usable reply.
            EndpointError: No rollout will get one.
        """
        ...

    async def close(self) -> None:
        """Release connections and tasks. May be called more than once."""
        ...
