"""Prompts in, completions out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from trunkline._internal.text import excerpt, scrub
from trunkline._internal.validation import short_repr
from trunkline.errors import LLMError, ReplyError, TrunklineError
from trunkline.llm.response import read
from trunkline.llm.token_ids.base import bad_logprobs, missing_ids
from trunkline.llm.types import Reply, ReplyChoice, TokenId, ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline._internal.text import JSON
    from trunkline.llm.token_ids.base import TokenMode
    from trunkline.llm.types import Request
    from trunkline.types import Message

    Outcomes = list["Completion | TrunklineError"]


ENDPOINT: Final = "BatchLLM"
"""The endpoint of batch engines' replies in records."""


class Completion(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A batch engine's completion of a prompt. A dict with these fields serves as well, or the text alone.

    Numpy arrays and tensors may stand for lists.

    Attributes:
        text: The visible text.
        reasoning: Thinking beside the text.
        tool_calls: Calls the model made, in order; each with ``id`` (may be empty), ``name``, and ``arguments`` as JSON
            text.
        finish: Why it ended: ``stop``, ``length``, ``tool_calls`` or another word. If empty, ``tool_calls`` where there
            are any, else ``stop``.
        token_ids: Ids of what was sampled.
        logprobs: Natural log-probability of each of these, finite, or None where it is not known.
        prompt_token_ids: Ids of the prompt. Where ``BatchLLM`` has a ``TokenMode``, the fields before are needed, and
            this one with ``api="chat"``.
        usage: Token counts of this completion and its prompt, as a server gives them: ``prompt_tokens``,
            ``completion_tokens``. If None, the ids are counted where there are any, those of the prompt also where it
            was sent as ids.
    """

    text: str
    reasoning: str | None = None
    tool_calls: list[ToolCall] = []
    finish: str = ""
    token_ids: list[TokenId] | None = None
    logprobs: list[float | None] | None = None
    prompt_token_ids: list[TokenId] | None = None
    usage: dict[str, Any] | None = None


class RequestTime(msgspec.Struct, frozen=True, gc=False):
    """Time of a request, in microseconds."""

    micros: int
    queue: int


def completions(
    result: object, prompt: Prompt, engine: str, mode: TokenMode | None = None
) -> list[Completion | TrunklineError]:
    """Check the completions of an engine for one prompt."""
    n = prompt.n
    if n == 1:
        if type(result) is str and mode is None:
            return [Completion(text=result)]
        return [_completion(result, engine, prompt, mode)]
    if not isinstance(result, list | tuple) or len(result) != n:
        given = f"{len(result)} of them" if isinstance(result, list | tuple) else short_repr(result)
        error = LLMError(f"{engine} must return a list of {n} completions for a prompt with n={n}, not {given}")
        return [error] * n
    return [_completion(one, engine, prompt, mode) for one in result]


def reply_of(
    request: Request, parts: list[list[Completion | TrunklineError]], taken: RequestTime, engine: str
) -> Reply:
    """Read the outcomes of a request's prompts with the request's own reader, as if a server had sent them."""
    if request.n == 1:
        (found,) = _read(request, parts[0], 0, taken, engine)
        if isinstance(found, LLMError):
            raise found
        return found
    choices: list[ReplyChoice] = []
    figures: list[tuple[int, int, int]] = []
    fault: LLMError | None = None
    first = 0
    for outcomes in parts:
        for _, group in groupby(outcomes, type):
            draws = list(group)
            for found in _read(request, draws, first, taken, engine):
                if isinstance(found, Reply):
                    choices += found.choices
                    figures.append((found.prompt, found.cached, found.generated))
                else:
                    fault = fault or found
            first += len(draws)
    if fault is not None:
        raise fault
    # A sum is unknown (-1) if one of its counts is.
    prompt, cached, generated = (-1 if min(counts) < 0 else sum(counts) for counts in zip(*figures, strict=True))
    return Reply(choices, prompt, cached, generated, 1, taken.micros, "", ENDPOINT, taken.queue)


def _read(
    request: Request, draws: Sequence[Any], first: int, taken: RequestTime, engine: str
) -> Sequence[Reply | LLMError]:
    """Read draws of one prompt, all of one type, together, or one by one where that fails."""
    if isinstance(draws[0], LLMError):
        return draws
    if isinstance(draws[0], TrunklineError):
        raise draws[0]
    try:
        reply = (request.take or read)(answer_body(draws), first, 1, taken.micros)
    except ReplyError as error:
        if len(draws) == 1:
            return [LLMError(f"{engine} returned a completion that cannot be read: {excerpt(str(error))}")]
        return [_read(request, [draw], first + i, taken, engine)[0] for i, draw in enumerate(draws)]
    # Each reply is a call of its own in the run file, whatever becomes of the rest of the request.
    reply.endpoint, reply.queue = ENDPOINT, taken.queue
    return [reply]


_OPENS, _CLOSES = b'{"choices":[{"message":{"content":', b'},"finish_reason":"stop"}]}'


def answer_body(completions: Sequence[Completion]) -> bytes:
    """Write draws of one prompt as the body of a chat completion; raises ReplyError where that is impossible."""
    first = completions[0]
    if len(completions) == 1 and first == Completion(text=first.text):
        try:
            return _OPENS + msgspec.json.encode(first.text) + _CLOSES
        except UnicodeEncodeError:
            pass
    body: JSON = {
        "choices": [_choice(index, completion) for index, completion in enumerate(completions)],
        "usage": _usage(completions),
        "prompt_token_ids": first.prompt_token_ids,
    }
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass  # UTF-8 carries no lone surrogates
    try:
        return msgspec.json.encode(scrub(body))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ReplyError(f"it cannot be written as JSON: {error}") from None


def _choice(index: int, completion: Completion) -> dict[str, JSON]:
    calls: list[JSON] = []
    if completion.tool_calls:
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in completion.tool_calls
        ]
    message = {
        "role": "assistant",
        "content": completion.text,
        "reasoning_content": completion.reasoning,
        "tool_calls": calls,
    }
    logprobs = None if completion.logprobs is None else {"token_logprobs": completion.logprobs}
    return {
        "index": index,
        "message": message,
        "finish_reason": completion.finish or ("tool_calls" if calls else "stop"),
        "token_ids": completion.token_ids,
        "logprobs": logprobs,
    }


def _usage(completions: Sequence[Completion]) -> dict[str, JSON]:
    """Token counts of one answer: the prompt of any completion, the sum of what was sampled."""
    if len(completions) == 1:
        usage = _counted(completions[0])
        sampled = usage.get("completion_tokens")
        return {**usage, "completion_tokens": sampled if type(sampled) is int else None}
    each = [_counted(completion) for completion in completions]
    counts: list[Any] = [usage.get("completion_tokens") for usage in each]
    known = all(isinstance(count, int) for count in counts)
    return each[0] | {"completion_tokens": sum(counts) if known else None}


def _counted(completion: Completion) -> dict[str, JSON]:
    if completion.usage is not None:
        return completion.usage
    prompt, sampled = completion.prompt_token_ids, completion.token_ids
    counted: dict[str, JSON] = {}
    if prompt is not None:
        counted["prompt_tokens"] = len(prompt)
    if sampled is not None:
        counted["completion_tokens"] = len(sampled)
    return counted


def _completion(result: object, engine: str, prompt: Prompt, mode: TokenMode | None) -> Completion | LLMError:
    if isinstance(result, str):
        result = Completion(text=result)
    if not isinstance(result, dict | Completion):
        return LLMError(f"{engine} must return text, a dict or a Completion for each prompt, not {short_repr(result)}")
    try:
        # A struct can be made with values of any type, and only decoding checks them.
        found = msgspec.convert(msgspec.to_builtins(result, enc_hook=listed), Completion)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code, in the values and their conversion to lists
        return LLMError(f"{engine} returned an invalid completion: {excerpt(str(error))}")
    fault = bad_logprobs(found.token_ids, found.logprobs)
    if fault is None and mode is not None:
        said = found.prompt_token_ids
        fault = missing_ids(found.token_ids, found.logprobs, said, mode)
        if mode.api != "chat" and said is not None and said != prompt.token_ids:
            fault = f"{len(said)} prompt_token_ids that are not those of its prompt"
        if mode.api != "chat" and found.usage is None:
            found.usage = {
                "prompt_tokens": len(prompt.token_ids or ()),
                "completion_tokens": len(found.token_ids or ()),
            }
    return found if fault is None else LLMError(f"{engine} returned a completion with {fault}")


def listed(value: Any) -> Any:
    """Arrays and tensors as lists; other objects are refused."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no data")


_APART: Final = frozenset({"messages", "model", "n", "prompt", "seed", "tools"})


class Prompt(msgspec.Struct, frozen=True, dict=True):
    """A prompt for a batch engine. It is read from the request's body when a part of it is first asked for.

    Attributes:
        body: The whole request as a server would get it: JSON in UTF-8. Where ``n`` or ``seed`` differ, those of this
            object count.
        key: Prompts of one tree share it.
        n: Completions wanted; above 1 only for an engine that supports it.
        seed: Seed of the first completion, that of completion i being ``seed + i``; None where draws have none.
    """

    body: bytes
    key: int = 0
    n: int = 1
    seed: int | None = None

    @property
    def model(self) -> str:
        """The model's name, as the agent has it."""
        return str(self._fields.get("model", ""))

    @property
    def messages(self) -> list[Message]:
        """The conversation in the OpenAI form."""
        return cast("list[Message]", self._fields.get("messages", []))

    @property
    def tools(self) -> list[dict[str, JSON]]:
        """Definitions of the tools, in the OpenAI form."""
        return cast("list[dict[str, JSON]]", self._fields.get("tools", []))

    @property
    def sampling(self) -> dict[str, JSON]:
        """Everything else in the request: temperature, max_tokens and whatever the agent's sampling holds."""
        return {name: value for name, value in self._fields.items() if name not in _APART}

    @property
    def token_ids(self) -> list[int] | None:
        """The prompt as token ids, where the request has them instead of messages: ``TokenMode(api="completions")``."""
        given = self._fields.get("prompt")
        return given if isinstance(given, list) else None

    @cached_property
    def _fields(self) -> dict[str, Any]:
        return msgspec.json.decode(self.body, type=dict[str, Any])


class _Seeded(msgspec.Struct):
    seed: int | None = None


def prompts(request: Request, largest: int) -> list[Prompt]:
    """Turn a request into prompts of at most ``largest`` completions each, in order of draws."""
    seed = request.seed
    if seed is None:
        seed = msgspec.json.decode(request.body, type=_Seeded).seed
    if request.n <= largest:
        return [Prompt(request.body, request.key, request.n, seed)]
    return [
        Prompt(request.body, request.key, min(largest, request.n - first), None if seed is None else (seed + first))
        for first in range(0, request.n, largest)
    ]


class PendingPrompt(msgspec.Struct, eq=False):
    """A prompt that waits for its completions: ``told`` is called when its outcomes are there, one for each draw.

    ``sent`` is when it went into a call, in monotonic seconds; 0 before.
    """

    prompt: Prompt
    told: Callable[[], None]
    outcomes: Outcomes | None = None
    number: int = 0
    call: asyncio.Task[None] | None = None
    sent: float = 0

    def settle(self, outcomes: Outcomes) -> None:
        if self.outcomes is None:
            self.outcomes = outcomes
            self.told()

    def fail(self, error: TrunklineError) -> None:
        self.settle([error] * self.prompt.n)
