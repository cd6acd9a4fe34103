"""TokenMode, the protocol of renderers, and ids of what follows a model's turn.

A stand-in conversation ends with a sentinel in an assistant message. Two renderings that differ in the sentinel's last
character have the closing of the turn and the new messages in common at their end. TRL and verl do likewise.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

import msgspec

from trunkline._core import ReplyOptions
from trunkline._internal.registry import Registry
from trunkline._internal.validation import check_choice, check_int, check_text, check_that
from trunkline.errors import ConfigError
from trunkline.llm import request
from trunkline.tree.records import number_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline._internal.text import JSON
    from trunkline.llm.request import Sampling
    from trunkline.types import Message


_APIS: Final = ("chat", "completions", "generate")
_POLICIES: Final = ("bridge", "realign", "fork")
_encode = msgspec.json.Encoder(order="sorted").encode


class TokenMode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ask for token ids and log-probs, and keep them on the tree; for ``trunkline.LLM(tokens=...)``.

    A batch engine is given one in the same way, ``trunkline.BatchLLM(engine, tokens=...)``, and an object with
    ``complete`` as its attribute ``tokens``. Both answer with ids themselves; a model's turn has a log-probability for
    each id, where None stands for one that is not known.

    Attributes:
        api: How the server is asked. ``chat``: chat completions; the server renders, and says which ids it rendered
            (vLLM's ``return_token_ids``). ``completions``: ``/v1/completions`` with the path's ids as the prompt
            (vLLM, llama.cpp). ``generate``: SGLang's ``/generate`` with the path's ids. With the last two what was
            sampled is never rendered again; a renderer writes what comes between.
        drift: What becomes of a prompt whose ids do not begin with those of its path, as when a server that renders
            anew cuts sampled words into other tokens. ``bridge`` keeps the sampled ids and appends the new messages' to
            them; where it cannot tell those apart, as never in a chat with stop strings, it realigns. ``realign`` takes
            what the model was given for this turn and those after it, where it is not trained. ``fork`` does so too and
            begins a training sample of its own.
        realign_limit: A realignment that would replace this many ids of the path, or more, forks. The default is TRL's
            ``fork_threshold``.
        tokenizer: Renders here, with this ``tokenizer.json`` (or the folder it is in) and the chat template beside it;
            None asks the server's ``/tokenize``. An engine in this process has no such server and needs it.
        template: Path of a chat template to use with ``tokenizer`` instead.

    Raises:
        ConfigError: A field has a value it cannot have.
    """

    api: str = "chat"
    drift: str = "bridge"
    realign_limit: int = 1024
    tokenizer: str | None = None
    template: str | None = None

    def __post_init__(self) -> None:
        for field, known in (("api", _APIS), ("drift", _POLICIES)):
            check_choice(f"TokenMode: {field}", getattr(self, field), *known)
        check_int("TokenMode: realign_limit", self.realign_limit, 1, 2**31 - 1)
        for field in ("tokenizer", "template"):
            if getattr(self, field) is not None and not check_text(f"TokenMode: {field}", getattr(self, field)):
                raise ConfigError(f"TokenMode: {field} is empty; give a path")
        if self.tokenizer is not None and self.api == "chat":
            raise ConfigError("TokenMode: tokenizer is of no use with api='chat', where the server renders")
        if self.template is not None and self.tokenizer is None:
            raise ConfigError("TokenMode: template needs tokenizer, the path of the tokenizer.json that goes with it")


_MODES: Final[Registry[type[TokenMode]]] = Registry("tokens", dict.fromkeys(_APIS, TokenMode))


def read_mode(where: str, given: TokenMode | str | None) -> TokenMode | None:
    """Check a mode, or read one from a text: ``completions``, or ``completions:tokenizer=FOLDER,drift=fork``."""
    if not isinstance(given, str):
        check_that(isinstance(given, TokenMode | None), f"{where} must be a TokenMode or None", given)
        return given
    api = given.partition(":")[0]
    if api not in _MODES:
        raise ConfigError(f"{where} {_MODES.unknown(api)}")
    made: TokenMode = _MODES.make(given, where, lambda _kind: {"api": api})
    return made


def option_of(mode: str) -> str:
    """A mode as Python and the command line write it."""
    return f"TokenMode(api={mode!r}) (--tokens {mode})"


def engine_mode(where: str, mode: Any) -> TokenMode | None:
    """Check the mode of an engine in this process, which has no server to render for it."""
    if not isinstance(mode, TokenMode):
        check_that(mode is None, f"{where} must be a TokenMode or None", mode)
        return None
    if mode.api == "chat":
        return mode
    if mode.api == "generate":
        raise ConfigError(f"{where}: api='generate' is SGLang's over HTTP; use api='completions' for a prompt of ids")
    if mode.tokenizer is None:
        raise ConfigError(
            f"{where}: api='completions' needs TokenMode(tokenizer=...), the path of the model's tokenizer.json"
        )
    return mode


def missing_ids(
    ids: Sequence[int] | None, logprobs: Sequence[float | None] | None, prompt: Sequence[int] | None, mode: TokenMode
) -> str | None:
    """What an engine's completion lacks whose every token must be known, or None."""
    if not ids:
        return "no token_ids of what was sampled"
    if logprobs is None:
        return f"{len(ids)} token_ids and no logprobs; give one for each id, None where it is not known"
    if mode.api == "chat" and not prompt:
        return "no token ids of the prompt; give them, or take TokenMode(api='completions'), which sends ids"
    return None


def bad_logprobs(ids: Sequence[int] | None, logprobs: Sequence[float | None] | None) -> str | None:
    """What is wrong with the log-probs of a completion, or None."""
    if logprobs is None:
        return None
    if len(logprobs) != len(ids or ()):
        return f"{len(logprobs)} logprobs and {'no' if ids is None else len(ids)} token_ids"
    # JSON has neither NaN nor infinities; a sum is finite only where all its parts are.
    finite = math.isfinite(sum(value for value in logprobs if value is not None))
    return None if finite else "logprobs that are not finite"


class Form(NamedTuple):
    """The constant parts of requests in one mode, and how replies are read.

    Replies of an engine in this process are written as chat completions: ``engine_reading``.
    """

    head: bytes
    constant: bytes
    route: str
    reading: ReplyOptions
    engine_reading: ReplyOptions


def form_of(
    mode: TokenMode, model: str, sampling: Sampling, tools: bytes = b"", version: str | None = None, *, least: int = 0
) -> Form:
    number = number_of(version)
    chat = ReplyOptions(version=number, max_tokens=sampling.max_tokens)
    if mode.api == "chat":
        extra = {**sampling.extra, "return_token_ids": True}
        asking = msgspec.structs.replace(sampling, logprobs=True, extra=extra)
        constant = request.constant(asking, tools)
        return Form(request.head(model), constant, request.CHAT, chat, chat)
    if sampling.max_tokens is None:
        raise ConfigError(
            f"{option_of(mode.api)} needs sampling.max_tokens (--max-tokens): servers have a low limit of their own"
        )
    fields = request.fields(sampling)
    if "chat_template_kwargs" in fields:
        raise ConfigError(
            f"{option_of(mode.api)} cannot keep sampling.extra['chat_template_kwargs']: the renderer writes the "
            "prompt; use a template of your own (TokenMode(tokenizer=..., template=...)) or api='chat'"
        )
    top = max(least, int(str(fields.pop("top_logprobs", 0))))
    fields.pop("logprobs", None)
    if mode.api == "completions":
        constant = b"]," + _inside({**fields, "logprobs": top, "return_token_ids": True})
        reading = ReplyOptions(form="completion", version=number, max_tokens=sampling.max_tokens)
        return Form(_head(model, "prompt"), constant, request.COMPLETIONS, reading, chat)
    fields["max_new_tokens"] = fields.pop("max_tokens")
    # vLLM's name for no_stop_trim, which dialects send beside it; SGLang refuses a parameter that it does not know.
    if fields.pop("include_stop_str_in_output", None) is not None:
        fields.setdefault("no_stop_trim", True)
    asked: dict[str, JSON] = {"return_logprob": True, "return_text_in_logprobs": True, "top_logprobs_num": top}
    constant = b"]," + _inside(asked) + b',"sampling_params":{' + _inside(fields)
    reading = ReplyOptions(form="generate", version=number)
    return Form(_head(model, "input_ids"), constant, request.GENERATE, reading, chat)


def _head(model: str, prompt: str) -> bytes:
    return b'{"model":' + _encode(model) + b',"' + prompt.encode() + b'":['


def _inside(fields: dict[str, JSON]) -> bytes:
    """The members of an object, without its braces."""
    return _encode(fields)[1:-1]


@runtime_checkable
class Renderer(Protocol):
    """Writes conversations as token ids. The same conversation is always the same ids."""

    async def render(self, messages: Sequence[Message], tools: Sequence[JSON] = ()) -> list[int]:
        """Write a whole conversation, with what opens the model's turn.

        Args:
            messages: What was said, oldest first, in the OpenAI form.
            tools: Tool definitions in the OpenAI form.

        Raises:
            ConfigError: The template does not take these messages or tools.
            LLMError: A server that renders gave no answer.
        """
        ...

    async def extend(self, previous: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """Write what follows a model's turn: what closes it, further messages, and what opens the next turn.

        Args:
            previous: The last ids of the model's turn as they were sampled; what of the closing they have is left out.
            messages: What was said since, at least one message.

        Returns:
            The ids to put behind ``previous``.

        Raises:
            ConfigError: The template does not take these messages.
            LLMError: A server that renders gave no answer.
        """
        ...

    async def decode(self, ids: Sequence[int]) -> str:
        """Say what token ids spell, special tokens included; what is no character is U+FFFD.

        Raises:
            ConfigError: The tokenizer has no token of an id.
            LLMError: A server that decodes gave no answer.
        """
        ...


_SENTINELS: Final = ("trunk 1", "trunk 2")


class ConversationRenderer:
    """Base of renderers that write whole conversations, which finds the token ids that follow a model's turn."""

    template_apart = False

    def __init__(self) -> None:
        # By number of tool calls in the stand-in: its ids, and what of them comes after the sentinel.
        self._bases: dict[int, tuple[list[int], list[int]]] = {}

    async def _render(self, messages: Sequence[Message], *, opened: bool, tools: Sequence[JSON] = ()) -> list[int]:
        """Write a conversation, with what opens the model's turn if ``opened``."""
        raise NotImplementedError

    async def render(self, messages: Sequence[Message], tools: Sequence[JSON] = ()) -> list[int]:
        return await self._render(messages, tools=tools, opened=True)

    async def extend(self, previous: Sequence[int], messages: Sequence[Message]) -> list[int]:
        _, closing = await self._base(0, messages)
        ids = closing + await self._new(closing, messages)
        return ids[_overlap(previous, ids if self.template_apart else closing) :]

    async def _new(self, closing: list[int], messages: Sequence[Message]) -> list[int]:
        """The ids of the new messages and the opening of the next turn."""
        try:
            return await self._after(0, messages)
        except ConfigError:
            calls = sum(message.get("role") == "tool" for message in messages)
            if not calls:
                raise
        # Some templates take a tool's answer only after its call; the call must be closed as any turn is.
        _, tail = await self._base(calls, messages)
        if tail[len(tail) - len(closing) :] != closing:
            raise ConfigError(
                "the chat template closes a turn with tool calls in a way of its own; use drift='realign'"
            )
        return await self._after(calls, messages)

    async def _after(self, calls: int, messages: Sequence[Message]) -> list[int]:
        """The ids after the stand-in and its closing."""
        base, tail = await self._base(calls, messages)
        whole = await self._render([*_stand_in(0, calls, messages), *messages], opened=True)
        if whole[: len(base)] == base:
            return whole[len(base) :]
        # A template may write an assistant's last message in another way than those before.
        other = await self._render([*_stand_in(1, calls, messages), *messages], opened=True)
        shared = _shared_end(whole, other)
        if shared[: len(tail)] != tail:
            raise ConfigError(
                "the chat template writes an assistant's message anew once others follow; use drift='realign'"
            )
        return shared[len(tail) :]

    async def _base(self, calls: int, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
        known = self._bases.get(calls)
        if known is None:
            one, other = [await self._render(_stand_in(which, calls, messages), opened=False) for which in (0, 1)]
            known = self._bases[calls] = one, _shared_end(one, other)
        return known


def _stand_in(which: int, calls: int, messages: Sequence[Message]) -> list[Message]:
    """A question, and an assistant's message that ends with a sentinel."""
    question: Message = {"role": "user", "content": "trunk"}
    sentinel = _SENTINELS[which]
    if not calls:
        return [question, {"role": "assistant", "content": sentinel}]
    answers = [message for message in messages if message.get("role") == "tool"]
    made = [
        {
            "id": answer.get("tool_call_id", ""),
            "type": "function",
            "function": {"name": "trunk", "arguments": f'{{"trunk":"{sentinel}"}}'},
        }
        for answer in answers
    ]
    return [question, {"role": "assistant", "content": "", "tool_calls": made}]


def _shared_end(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """The common end of two lists."""
    size = 0
    while size < min(len(one), len(other)) and one[-1 - size] == other[-1 - size]:
        size += 1
    return list(one[len(one) - size :])


def _overlap(previous: Sequence[int], closing: Sequence[int]) -> int:
    """How many ids at the end of a turn belong to a closing already."""
    sizes = range(min(len(previous), len(closing)), 0, -1)
    return next((size for size in sizes if list(previous[len(previous) - size :]) == list(closing[:size])), 0)
