"""What a model is to the rest of the library: something that completes a request."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec

__all__ = ["LLM", "Choice", "Reply", "Request", "Take", "ToolCall"]


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
        attempts: Requests that were sent, the successful one included; 0 for a reply out of a cache.
        micros: Wall time of the whole call in microseconds, waits and retries included.
        served: What the server says it ran: its model and fingerprint, or the empty string.
        endpoint: Who answered: a base URL, or a class of LLM; empty where nobody said.
        queue: Of ``micros``, what it waited for a slot or a limit.
        first: Of ``micros``, what passed between the last attempt and the first byte of its answer; -1 where not known.
        agent: Who asked; whoever reads the reply fills it in.
        ended: When it was read, in microseconds of the machine's monotonic clock, likewise; -1 before.
        llm: The name of the LLM in its run, which whoever asked fills in; empty where there is but one.
    """

    choices: list[Choice]
    prompt: int
    cached: int
    generated: int
    attempts: int
    micros: int
    served: str = ""
    endpoint: str = ""
    queue: int = 0
    first: int = -1
    agent: str = ""
    ended: int = -1
    llm: str = ""


class Take(Protocol):
    """Reads the body of an answer for the one who asked."""

    def __call__(self, data: bytes, first: int, attempts: int, micros: int, most: int | None = None) -> Reply:
        """Read a body whose choices are draws ``first``, ``first + 1``, ... of the request.

        Args:
            data: The body as received.
            first: Which draw of the request its first choice is.
            attempts: Requests that were sent for it; 0 for a body out of a cache.
            micros: Wall time of the call in microseconds.
            most: How many of its choices were asked for, where these are not all further draws of the request. An LLM
                need not say it: the request's reader knows.

        Raises:
            LLMError: An answer for this draw has been read before.
            ReplyError: It is no completion; asking again can help.
        """
        ...


class Request(msgspec.Struct):
    """One request, ready to send.

    Attributes:
        content: The JSON body, in one piece or in several; :attr:`body` joins them.
        key: Requests of one tree share a key, so that they meet the endpoint that holds their prefix.
        n: Completions the body asks for: draws of one state, draw i with seed ``seed + i``.
        seed: Seed of the first draw, as the body has it; None where it has none.
        constant: Bytes of the body before what depends on the draws (``n`` and ``seed``); all of it when 0.
        greedy: Whether the sampling makes draws equal (temperature 0).
        take: Reads the answer, for LLMs that receive one as bytes; :func:`.reply.read` when None. It is called once for
            each answer that is used, and what it returns is the reply. An LLM that asks another one and may change or
            drop its reply asks with ``take=None``.
        route: Where it goes: a path below an endpoint's base URL, or with two slashes in front one below its server's
            root, ``//generate``: the base URL without its ``/v1``.
        weights: The version of the weights that is asked; equal requests of two versions are not the same.
        model: The model's name, as the body has it.
        role: The agent that asks.
        step: Turns of that role before this one, where a program asks; else turns of the rollout.
    """

    content: bytes | list[bytes]
    key: int
    n: int = 1
    seed: int | None = None
    constant: int = 0
    greedy: bool = False
    take: Take | None = None
    route: str = "/chat/completions"
    weights: str | None = None
    model: str = ""
    role: str = ""
    step: int = 0

    @property
    def body(self) -> bytes:
        """The whole JSON body; joined when it is first asked for."""
        if not isinstance(self.content, bytes):
            self.content = b"".join(self.content)
        return self.content


@runtime_checkable
class LLM(Protocol):
    """Something that completes: an HTTP endpoint, a client, a batch engine, the simulator.

    One of somebody's own needs :meth:`complete` alone, and of a request the body alone. One that may be asked for
    several completions at once (``Request.n``) says so with an attribute ``siblings = True``; any other gets one
    request for each. An attribute ``max_concurrency`` says for how many requests at once a run should keep rollouts
    growing; 64 without it. An attribute ``price``, a :class:`~trunkline.llm.price.Price`, says what its tokens cost.
    """

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
