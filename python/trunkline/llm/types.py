"""Request, Reply, Choice, ToolCall, LLMClient protocol; Limits, Routing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Protocol, TypeAlias, runtime_checkable

import msgspec

from trunkline._internal.validation import check_bool, check_float, check_int, check_optional, check_that

if TYPE_CHECKING:
    from trunkline.types import Message

TokenId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]

CUT_OFF: Final = frozenset({"length", "repetition"})
"""Finish reasons of a reply that was cut off: too long, or (vLLM) saying the same again and again."""


class ToolCall(msgspec.Struct):
    """One call that a model asked for.

    Attributes:
        id: The id the server gave, or the empty string. It is never sent back: ids in histories are made here.
        name: The tool's name as the model wrote it; it may name no tool.
        arguments: The raw JSON text as the model wrote it; it may not be JSON.
    """

    id: str
    name: str
    arguments: str


class ReplyChoice(msgspec.Struct):
    """One completion.

    Attributes:
        content: The visible text; empty where the server sent null.
        reasoning: Thinking that the server returned beside the text, if any.
        tool_calls: Calls in the order the model made them.
        finish: ``stop``, ``length``, ``tool_calls``, ``content_filter`` or what was sent; empty if nothing. A reply of
            as many tokens as it might have, of which the server says nothing or an unknown word, has ``length``.
        token_ids: Ids of what was sampled, where an LLM of one's own says them; see ``LLM``.
        logprobs: Natural log-probability of each of these, finite, or None where it is not known.
    """

    content: str
    reasoning: str | None = None
    tool_calls: list[ToolCall] = []
    finish: str = "stop"
    token_ids: list[TokenId] | None = None
    logprobs: list[float | None] | None = None


class Reply(msgspec.Struct):
    """The reply to one request.

    Attributes:
        choices: At least one, in draw order.
        prompt: Prompt tokens, cached ones included; -1 where the server gave no usage.
        cached: Prompt tokens the server had cached; -1 where it did not say.
        generated: Completion tokens of all choices together; -1 where the server gave no usage.
        attempts: Requests that were sent, the successful one included; 0 for a reply out of a cache.
        micros: Wall time of the whole call in microseconds, waits and retries included.
        served: What the server says it ran: its model and fingerprint, or the empty string.
        endpoint: The endpoint that answered: a base URL, or a class of LLM; empty where not known.
        queue: Of ``micros``, what it waited for a slot or a limit.
        first: Of ``micros``, what passed between the last attempt and the first byte of its answer; -1 where not known.
        agent: The agent that asked; set by the reply's reader.
        ended: When it was read, in microseconds of the machine's monotonic clock, likewise; -1 before.
        llm: The name of the LLM in its run, set by the caller; empty where there is but one.
        estimated: The generated tokens that are estimated: where usage is that of the first of several choices alone,
            those of the others.
        prompt_ids: Ids of the prompt, where an LLM of one's own says them.
    """

    choices: list[ReplyChoice]
    prompt: int = -1
    cached: int = -1
    generated: int = -1
    attempts: int = 1
    micros: int = 0
    served: str = ""
    endpoint: str = ""
    queue: int = 0
    first: int = -1
    agent: str = ""
    ended: int = -1
    llm: str = ""
    estimated: int = 0
    prompt_ids: list[TokenId] | None = None


class ReplyReader(Protocol):
    """Reads the body of an answer for its caller."""

    def __call__(self, data: bytes, first: int, attempts: int, micros: int, most: int | None = None) -> Reply:
        """Read a body whose choices are draws ``first``, ``first + 1``, ... of the request.

        Args:
            data: The body as received.
            first: Which draw of the request its first choice is.
            attempts: Requests that were sent for it; 0 for a body from the cache.
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
        content: The JSON body, in one piece or in several; ``body`` joins them.
        key: Requests of one tree share a key, so that they meet the endpoint that holds their prefix.
        n: Completions the body asks for: draws of one state, draw i with seed ``seed + i``.
        seed: Seed of the first draw, as the body has it; None where it has none.
        constant: Bytes of the body before what depends on the draws (``n`` and ``seed``); all of it when 0.
        greedy: Whether the sampling makes draws equal (temperature 0).
        take: Reads the answer, for LLMs that receive one as bytes; that of chat completions when None. It is called
            once for each answer that is used, and what it returns is the reply. An LLM that asks another one and may
            change or drop its reply asks with ``take=None``.
        route: Where it goes: a path below an endpoint's base URL, or with two slashes in front one below its server's
            root, ``//generate``: the base URL without its ``/v1``.
        weights: The version of the weights that is asked; equal requests of two versions are not the same.
        model: The model's name, as the body has it.
        role: The agent that asks.
        step: Turns of the rollout that something was observed after, where a program asks; else all its turns.
        asked: Turns of that role before this one in the step, where a program asks.
        task: The id of the task; empty where no rollout asks, as for a judge.
        rollouts: Numbers of the rollouts in their tree that wait for the draws, in the order of these.
    """

    content: bytes | list[bytes]
    key: int
    n: int = 1
    seed: int | None = None
    constant: int = 0
    greedy: bool = False
    take: ReplyReader | None = None
    route: str = "/chat/completions"
    weights: str | None = None
    model: str = ""
    role: str = ""
    step: int = 0
    asked: int = 0
    task: str = ""
    rollouts: list[int] = []

    @property
    def rollout(self) -> int | None:
        """The number in its tree of the rollout that waits for the first draw; None where no rollout asks."""
        return self.rollouts[0] if self.rollouts else None

    @property
    def messages(self) -> list[Message]:
        """The conversation, as the body has it; empty where the body has a prompt instead."""
        found: list[Message] = msgspec.json.decode(self.body).get("messages", [])
        return found

    @property
    def body(self) -> bytes:
        """The whole JSON body; joined when it is first asked for."""
        if not isinstance(self.content, bytes):
            self.content = b"".join(self.content)
        return self.content


@runtime_checkable
class LLMClient(Protocol):
    """Something that completes: an HTTP endpoint, a client, a batch engine, the simulator.

    A user's own needs ``complete`` alone, which may be sync: then each call has a thread. It may return, in place
    of a ``Reply``, a chat completion as a dict or as bytes of JSON, read as a server's would be, or a text, which
    is the whole reply. Anything else, a body that is no chat completion included, ends the run at once. One that may
    be asked for several completions at once (``Request.n``) says so with an attribute ``siblings = True``; any other
    gets one request for each. An attribute ``max_concurrency`` says for how many requests at once a run should keep
    rollouts growing; 64 without it. An attribute ``price``, a ``Price``, says what its
    tokens cost.

    An attribute ``tokens``, a ``trunkline.TokenMode``, says that every choice comes with ``token_ids`` and
    ``logprobs``. With ``api="chat"`` the reply has ``prompt_ids``; with ``api="completions"`` the request's body has
    them instead of messages, as its ``prompt``. With a server's answer, ``request.take`` may be called instead.
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


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How fast endpoints may be asked, beyond ``max_concurrency``.

    What endpoints say of their own limits in headers is kept as well.

    Attributes:
        requests_per_minute: Most requests a minute, in all; unlimited when None.
        tokens_per_minute: Most tokens a minute, in all, prompts and replies; unlimited when None. A request counts
            a quarter of its bytes and what it may generate until its reply tells.
        endpoint_concurrency: Most requests in flight at one endpoint; ``max_concurrency`` when None.
        adaptive: Whether an endpoint gets less in flight after a 429, or when it slows down, and more again later.
        slowdown: How many times its usual time for a token an endpoint may take before it gets less in flight.

    Raises:
        ConfigError: A value cannot be used; the message names it.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    endpoint_concurrency: int | None = None
    adaptive: bool = True
    slowdown: float = 5.0

    def __post_init__(self) -> None:
        for name, option in (("requests_per_minute", "--rpm"), ("tokens_per_minute", "--tpm")):
            check_optional(check_float, f"limits.{name} ({option})", getattr(self, name), 0, above=True)
        check_optional(check_int, "limits.endpoint_concurrency", self.endpoint_concurrency, 1)
        check_bool("limits.adaptive", self.adaptive)
        check_float("limits.slowdown", self.slowdown, 1, above=True)


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    """Which endpoint a request goes to, where there are several, and when one is left alone.

    Attributes:
        margin: A tree leaves its endpoint when that has so many more requests than the least loaded one.
        session_headers: Whether to send the tree's key as ``X-Session-ID`` and ``X-SMG-Routing-Key``, by which
            routers in front of servers keep a tree on one of them. When None, over plain http only: hosted services
            need to know nothing of trees.
        memory: Trees whose endpoint is remembered.
        eject_after: Failures in a row after which an endpoint gets no requests for a while; one more for every
            eight in flight there, since a crowd fails together.

    Raises:
        ConfigError: A value cannot be used; the message names it.
    """

    margin: int = 32
    session_headers: bool | None = None
    memory: int = 65536
    eject_after: int = 3

    def __post_init__(self) -> None:
        check_int("routing.margin", self.margin, 0)
        check_int("routing.memory", self.memory, 1)
        check_int("routing.eject_after", self.eject_after, 1)
        given = self.session_headers
        check_that(isinstance(given, bool | None), "routing.session_headers must be true, false or null", given)
