"""Requests to answers, apart from HTTP: prompts, choices and accounts."""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from trunkline.errors import ConfigError
from trunkline.sim.model import chat_template as chat
from trunkline.sim.model.choices import PRESETS, SIM_VERSION, fingerprint, with_dials
from trunkline.sim.model.generation import Sampling
from trunkline.sim.model.registry import find_model, reply
from trunkline.sim.model.tokenizer import default_bpe
from trunkline.sim.server.api import GenerateRequest, chat_choice, completion_choice, generated_object
from trunkline.sim.server.latency import Metrics, Prefix, PrefixCache, of_messages
from trunkline.sim.server.requests import ApiError, ChatRequest
from trunkline.sim.server.sampling import Generated, Limits, generate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.sim.model.chat_template import Conversation, Message
    from trunkline.sim.model.registry import Model
    from trunkline.sim.server.options import Settings
    from trunkline.sim.server.requests import CompletionRequest, DetokenizeRequest, TokenizeRequest

__all__ = ["Answer", "Service"]

_EPOCH = 1_700_000_000
_MOST_REMEMBERED = 65536


class Answer(NamedTuple):
    """A response before it is sent, with its uncached prompt tokens, the tokens of the longest choice, and a digest."""

    head: dict[str, Any]
    choices: list[dict[str, Any]]
    usage: dict[str, Any]
    extra: dict[str, Any]
    uncached: int
    longest: int
    key: bytes


class _Prompt(NamedTuple):
    conversation: Conversation
    prefix: Prefix
    ids: list[int] | None


class Service:
    """One server's models and accounts.

    Raises:
        ConfigError: The preset or a dial does not exist.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self._dials = with_dials(settings.preset, dict(settings.dials))
        self._fingerprint = fingerprint(settings.preset, self._dials)
        self._cache = PrefixCache(settings.cache_tokens)
        self._failures: Counter[bytes] = Counter()

    def fingerprint(self, name: str) -> str:
        """The fingerprint of a known model: version, preset and dials."""
        preset = name.partition(":")[2]
        return fingerprint(preset, PRESETS[preset]) if preset else self._fingerprint

    def describe(self, name: str) -> dict[str, Any]:
        """A model of ``/v1/models``; an ``ApiError`` where there is none."""
        self._model(name)
        return {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "trunkline",
            "max_model_len": self.settings.max_context,
            "sim_version": SIM_VERSION,
            "system_fingerprint": self.fingerprint(name),
        }

    def maybe_fail(self, body: bytes) -> None:
        """Raise 429 or 500 for a share of all requests, by the body and how often it was sent."""
        if not self.settings.fail_rate:
            return
        if len(self._failures) > _MOST_REMEMBERED:
            self._failures.clear()
        digest = hashlib.blake2b(body, digest_size=16, key=self.settings.fail_seed.to_bytes(8, "little")).digest()
        attempt = self._failures[digest]
        self._failures[digest] += 1
        word = hashlib.blake2b(digest + attempt.to_bytes(8, "little"), digest_size=8).digest()
        if int.from_bytes(word, "little") / 2**64 >= self.settings.fail_rate:
            return
        if word[0] & 1:
            headers = {"Retry-After": "0"}
            raise ApiError(429, "Rate limit reached; try again.", code="rate_limit_exceeded", headers=headers)
        raise ApiError(500, "The server had an error.", kind="server_error", code="internal_error")

    def chat(self, request: ChatRequest) -> Answer:
        """Answer a chat request, or raise an ``ApiError``."""
        model = self._model(request.model)
        conversation = self._conversation(request)
        tail = chat.opening(conversation.opened)
        prefix = of_messages(conversation.messages).then(tail)
        ids = None
        if request.return_token_ids:
            ids = [token for message in conversation.messages for token in chat.encoded(message).ids] + tail
        if request.top_logprobs and not request.logprobs:
            raise ApiError(400, "top_logprobs: needs logprobs to be true", param="top_logprobs")
        count = request.n or 1
        prompt = _Prompt(conversation, prefix, ids)
        cached, choices = self._choices(model, request, prompt, request.limit(), count, logprobs=bool(request.logprobs))
        shown = [chat_choice(each, index, request, self.settings) for index, each in enumerate(choices)]
        extra = {"prompt_token_ids": ids} if ids is not None else {}
        form = ("chatcmpl", "chat.completion", request.model)
        return self._answer(form, shown, [(prefix.tokens, cached)], choices, extra)

    def complete(self, request: CompletionRequest) -> Answer:
        """Answer a completion request, or raise an ``ApiError``."""
        model = self._model(request.model)
        if request.echo:
            raise ApiError(400, "echo: is not supported; prompt and reply have ids with return_token_ids", param="echo")
        shown: list[dict[str, Any]] = []
        everything: list[Generated] = []
        accounts = []
        for text in request.prompts():
            prompt = self._prompt(text)
            count = request.n or 1
            cached, choices = self._choices(
                model, request, prompt, request.max_tokens, count, logprobs=request.logprobs is not None
            )
            accounts.append((prompt.prefix.tokens, cached))
            for each in choices:
                shown.append(completion_choice(each, len(shown), request, prompt.ids or []))
            everything += choices
        form = ("cmpl", "text_completion", request.model)
        return self._answer(form, shown, accounts, everything, {})

    def generate(self, request: GenerateRequest) -> tuple[Any, Answer]:
        """Answer a request of SGLang's form with the body and an answer, or raise an ``ApiError``."""
        model = self._model(request.model)
        prompt = self._prompt(request.prompt())
        asked = request.sampling_params
        cached, choices = self._choices(
            model, request, prompt, asked.max_tokens, asked.n, logprobs=bool(request.return_logprob)
        )
        tokens = prompt.prefix.tokens
        shown = [generated_object(each, request, tokens, cached) for each in choices]
        form = ("gen", "generation", request.model)
        return shown if asked.n > 1 else shown[0], self._answer(form, shown, [(tokens, cached)], choices, {})

    def tokenize(self, request: TokenizeRequest) -> dict[str, Any]:
        """Token ids of a prompt or of messages; an ``ApiError`` where neither can be rendered."""
        if request.messages is not None:
            rendered = self._render(request.messages, request.tools or ())
            ids = [token for message in rendered for token in chat.encoded(message).ids]
            if request.add_generation_prompt is not False:
                ids += chat.opening()
        elif request.prompt is not None:
            ids = default_bpe().encode(request.prompt, control=True)
        else:
            raise ApiError(400, "prompt: needed where there are no messages", param="prompt")
        return {"count": len(ids), "max_model_len": self.settings.max_context, "tokens": ids, "token_strs": None}

    def detokenize(self, request: DetokenizeRequest) -> dict[str, Any]:
        """The text of token ids; an ``ApiError`` where one is outside the vocabulary."""
        try:
            return {"prompt": default_bpe().decode(request.tokens).decode("utf-8", "replace")}
        except ConfigError as error:
            raise ApiError(400, f"tokens: {error}", param="tokens") from None

    def _model(self, name: str) -> Model:
        try:
            return find_model(name, self._dials)
        except ConfigError as error:
            raise ApiError(404, str(error), param="model", code="model_not_found") from None

    def _conversation(self, request: ChatRequest) -> Conversation:
        calling, tools = "auto", request.tools or []
        opened = ""
        try:
            known = chat.tools_from(tools)
            if request.tool_choice is not None:
                calling, known = _calling(request.tool_choice, known)
        except ConfigError as error:
            raise _refusal(error) from None
        rendered = self._render(request.messages, tools)
        if not tools and rendered[0].role == "system":
            # Who sends no tools may describe them in the system message, and gets the calls as they are written.
            known = chat.tools_in(rendered[0].text)
        if request.continue_final_message:
            if rendered[-1].role != "assistant":
                raise ApiError(400, "continue_final_message: the last message is not the assistant's", param="messages")
            rendered, opened = rendered[:-1], rendered[-1].text
        return chat.Conversation(rendered, known, opened, calling)

    def _render(self, messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> tuple[Message, ...]:
        try:
            return chat.render(messages, tools, drop_thinking=self.settings.history_thinking == "drop")
        except ConfigError as error:
            raise _refusal(error) from None

    def _prompt(self, prompt: str | list[int]) -> _Prompt:
        bpe = default_bpe()
        ids = bpe.encode(prompt, control=True) if isinstance(prompt, str) else prompt
        if not ids:
            raise ApiError(400, "prompt: is empty", param="prompt")
        bad = next((token for token in ids if not 0 <= token < len(bpe)), None)
        if bad is not None:
            raise ApiError(400, f"prompt: token id {bad} is outside the vocabulary of {len(bpe)}", param="prompt")
        return _Prompt(chat.parse_ids(ids), Prefix().then(ids), ids)

    def _choices(
        self,
        model: Model,
        request: ChatRequest | CompletionRequest | GenerateRequest,
        prompt: _Prompt,
        limit: int | None,
        count: int,
        *,
        logprobs: bool,
    ) -> tuple[int, list[Generated]]:
        settings = self.settings
        tokens, room = prompt.prefix.tokens, settings.max_context - prompt.prefix.tokens
        wanted = limit or 1
        if room < wanted:
            raise ApiError(
                400,
                f"This model's maximum context length is {settings.max_context} tokens. However, "
                f"{tokens + wanted} were requested: {tokens} in the prompt and {wanted} to generate.",
                param="messages" if isinstance(request, ChatRequest) else "prompt",
                code="context_length_exceeded",
            )
        asked = request.sampling_params if isinstance(request, GenerateRequest) else request
        limits = Limits(min(limit or room, room), asked.stops(), keep_stop=bool(asked.include_stop_str_in_output))
        seed, step = asked.seed, 1
        if seed is None or settings.ignore_seed:
            seed = secrets.randbits(62)
        elif isinstance(request, GenerateRequest):
            step = 0  # SGLang gives all completions of a request its seed; vLLM counts up from there.
        temperature = 1.0 if asked.temperature is None else asked.temperature
        top_p = 1.0 if asked.top_p is None else asked.top_p
        digest = chat.digest(prompt.conversation)
        cached = self._cache.enter(prompt.prefix)
        choices = []
        for index in range(1 if settings.ignore_n else count):
            sampling = Sampling(seed + index * step, temperature, top_p)
            draft = reply(model, prompt.conversation, sampling, digest)
            key = hashlib.blake2b(
                f"{request.model}\n{sampling}\n{settings.noncanonical}".encode(), digest_size=16, key=digest
            ).digest()
            one = generate(draft, limits, key, logprobs=logprobs, noncanonical=settings.noncanonical)
            self._cache.extend(prompt.prefix, one.ids)
            choices.append(one)
        return cached, choices

    def _answer(
        self,
        form: tuple[str, str, str],
        shown: list[dict[str, Any]],
        accounts: list[tuple[int, int]],
        choices: list[Generated],
        extra: dict[str, Any],
    ) -> Answer:
        prompt, cached = sum(a[0] for a in accounts), sum(a[1] for a in accounts)
        generated = sum(len(choice.tokens) for choice in choices)
        metrics = self.metrics
        metrics.prompt += prompt
        metrics.cached += cached
        metrics.generated += generated
        metrics.choices += len(choices)
        key = choices[0].key
        if len(choices) > 1:
            key = hashlib.blake2b(b"".join(choice.key for choice in choices), digest_size=16).digest()
        prefix, kind, model = form
        head = {
            "id": f"{prefix}-{key.hex()}",
            "object": kind,
            "created": _EPOCH + int.from_bytes(key[:3], "little"),
            "model": model,
            "system_fingerprint": self.fingerprint(model),
        }
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        longest = max(len(choice.tokens) for choice in choices)
        return Answer(head, shown, usage, extra, prompt - cached, longest, key)


def _calling(choice: str | dict[str, Any], tools: tuple[chat.Tool, ...]) -> tuple[str, tuple[chat.Tool, ...]]:
    """The way to call and the tools that may be called, as ``tool_choice`` says."""
    if isinstance(choice, str):
        if choice not in {"auto", "none", "required"}:
            raise ConfigError(f"tool_choice: expected auto, none, required or a function, got {choice!r}")
        if choice == "required" and not tools:
            raise ConfigError("tool_choice: required needs tools")
        return choice, tools
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    named = tuple(tool for tool in tools if tool.name == name)
    if not named:
        raise ConfigError(f"tool_choice: there is no tool {name!r}")
    return "required", named


def _refusal(error: ConfigError) -> ApiError:
    text = str(error)
    return ApiError(400, text, param=text.partition(":")[0], code="invalid_value")
