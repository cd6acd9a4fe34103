"""Probe an endpoint."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from trunkline._core import read_reply
from trunkline.errors import BadRequest, ConfigError, EndpointError, LLMError, ReplyError
from trunkline.llm import request
from trunkline.llm.token_ids.base import option_of
from trunkline.llm.types import Reply, ReplyChoice, Request

_Answer = TypeVar("_Answer", bound=msgspec.Struct)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from trunkline._core import ParsedChoice, ParsedReply
    from trunkline._internal.text import JSON
    from trunkline.llm.http.client import HttpLLM
    from trunkline.llm.request import Sampling
    from trunkline.llm.token_ids.base import TokenMode


ABILITIES: Final = {
    "ids": "token ids of prompt and reply in chat completions",
    "logprobs": "log-probs of the text",
    "tool_logprobs": "log-probs of tool calls",
    "reasoning_logprobs": "log-probs of reasoning",
    "n": "several completions in one request",
    "usage_of_n": "usage of several completions counts the tokens of all",
    "cached": "usage tells how many prompt tokens were cached",
    "seeds": "equal seeds give equal completions",
    "tokenize": "/tokenize of messages",
    "detokenize": "/detokenize of token ids",
    "completions": "/v1/completions with a prompt of ids, and ids and log-probs in return",
    "generate": "SGLang's /generate with ids and log-probs",
}
"""The abilities that a probe looks for, by name."""

_ALTERNATIVES: Final = {
    "ids": "vLLM 0.10.2 or later gives them with return_token_ids; for llama.cpp use "
    f"{option_of('completions')}, for SGLang {option_of('generate')}",
    "logprobs": "start the server with log-probs allowed, or leave TokenMode (--tokens) out",
    "tool_logprobs": f"use {option_of('completions')} or 'generate', where the server takes no calls apart",
    "reasoning_logprobs": f"start the server without a reasoning parser, or use {option_of('completions')}",
    "n": "leave siblings on: where n is ignored, draws are asked for one by one",
    "usage_of_n": "once that is noticed, draws are asked for one by one; with log-probs all are counted",
    "cached": "the option that turns it on is in the guide to servers; nothing else depends on it",
    "seeds": "without them a run cannot be repeated; nothing else depends on it",
    "tokenize": "give a tokenizer of your own: TokenMode(tokenizer=...) (--tokens completions:tokenizer=FOLDER)",
    "detokenize": "give a tokenizer of your own: TokenMode(tokenizer=...) (--tokens completions:tokenizer=FOLDER)",
    "completions": "vLLM and llama.cpp have it",
    "generate": "SGLang has it",
}

_APIS: Final = {"chat": "ids", "completions": "completions", "generate": "generate"}
"""The ability behind the token ids of each ``TokenMode(api=...)``."""

_WITHOUT_CHAT: Final = frozenset({"completions", "generate", "tokenize", "detokenize"})

_TOKENS: Final = 96
_THOUGHT: Final = 1536  # tokens for an answer that thinking left no room for
QUESTION: Final = "Who is the person who directs the employer of Kosa Garener?"
"""It has no answer, so that a model with a tool calls it, and answers differ unless their seeds are equal."""
_ASK: Final[tuple[JSON, ...]] = ({"role": "user", "content": QUESTION},)
_TOOL: Final[JSON] = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search for something.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "What to search for."}},
            "required": ["query"],
        },
    },
}


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Abilities of a server: True, False, or None where a probe did not show it."""

    site: str
    model: str
    ids: bool | None = None
    logprobs: bool | None = None
    tool_logprobs: bool | None = None
    reasoning_logprobs: bool | None = None
    n: bool | None = None
    usage_of_n: bool | None = None
    cached: bool | None = None
    seeds: bool | None = None
    tokenize: bool | None = None
    detokenize: bool | None = None
    completions: bool | None = None
    generate: bool | None = None


async def probe(
    open_llm: Callable[[], HttpLLM],
    model: str,
    only: Sequence[str] = tuple(ABILITIES),
    spent: list[Reply] | None = None,
    prompt: Sequence[int] | None = None,
) -> Capabilities:
    """Probe the abilities of a server with one or two dozen small requests.

    A chat is asked for only where one of the abilities is of chats, or where nothing else had an answer, to say why.
    ``prompt`` are token ids to ask with.
    """
    asked = _Probe(open_llm, model, [] if spent is None else spent, prompt)
    chat = not _WITHOUT_CHAT.issuperset(only)
    if chat:
        await asked.plain()
    found: dict[str, bool | None] = {}
    for ability in only:
        if ability in found:
            continue
        try:
            found |= await asked.questions[ability]()
        except LLMError:
            # No answer, or a failure: nothing follows from that.
            found[ability] = None
    if not chat and not asked.reached:
        await asked.plain()
    return Capabilities(site=asked.site, model=model, **{name: found[name] for name in only})


def needs(mode: TokenMode, *, tools: bool, inside: bool = False) -> dict[str, str]:
    """The abilities that a mode needs, each with the setting that needs it."""
    api = option_of(mode.api)
    if mode.api == "chat":
        found = dict.fromkeys(("ids", "logprobs", "reasoning_logprobs"), api)
        return {**found, "tool_logprobs": api} if tools else found
    found = {mode.api: api}
    if mode.tokenizer is None:
        found["tokenize"] = f"{api} without a tokenizer"
        if inside:
            found["detokenize"] = "forks inside turns"
    return found


def other_apis(capabilities: Capabilities, wanted: Mapping[str, str]) -> list[str]:
    """Abilities that could give token ids instead of the wanted ones."""
    lacking = any(name in wanted and getattr(capabilities, name) is False for name in _APIS.values())
    return [name for name in _APIS.values() if name not in wanted] if lacking else []


def require(capabilities: Capabilities, wanted: Mapping[str, str], others: Capabilities | None = None) -> None:
    """Raise ConfigError for a server that lacks a needed ability; unknown abilities pass."""
    missing = [name for name in wanted if getattr(capabilities, name) is False]
    if missing:
        ways = _ALTERNATIVES if others is None else _ALTERNATIVES | dict.fromkeys(_APIS.values(), _instead(others))
        told = [f"{ABILITIES[name]} (needed by {wanted[name]}; {ways[name]})" for name in missing]
        raise ConfigError(f"{capabilities.site} lacks, for {capabilities.model!r}: {'; '.join(told)}")


def _instead(others: Capabilities) -> str:
    found = [option_of(api) for api, ability in _APIS.items() if getattr(others, ability)]
    if found:
        return f"this server has them with {' and '.join(found)}"
    open_ = [option_of(api) for api, ability in _APIS.items() if getattr(others, ability) is None]
    return "no other API of this server gives them either" if len(open_) < 2 else f"try {' or '.join(open_)}"


class _Probe:
    def __init__(
        self, open_llm: Callable[[], HttpLLM], model: str, spent: list[Reply], prompt: Sequence[int] | None
    ) -> None:
        self._open = open_llm
        self._model = model
        self._spent = spent
        self.site = ""
        self.reached = False
        self._prompt = list(prompt or ())
        self.questions: dict[str, Callable[[], Awaitable[dict[str, bool | None]]]] = {
            "ids": self._text,
            "logprobs": self._text,
            "reasoning_logprobs": self._text,
            "tool_logprobs": self._calls,
            "n": self._siblings,
            "usage_of_n": self._usage_of_siblings,
            "cached": self._cached,
            "seeds": self._seeds,
            "tokenize": self._tokenize,
            "detokenize": self._detokenize,
            "completions": self._completions,
            "generate": self._generate,
        }

    async def plain(self) -> None:
        """Ask for a plain completion, which tells a server that is down from one that lacks an ability."""
        llm = self._open()
        try:
            reply = await llm.complete(Request(msgspec.json.encode(self._chat(_ASK)), 0))
        finally:
            await llm.close()
        self._spent.append(msgspec.structs.replace(reply, choices=[_NOTHING] * len(reply.choices)))
        self.site = reply.endpoint

    async def _text(self) -> dict[str, bool | None]:
        body = self._chat(_ASK, logprobs=True, return_token_ids=True)
        reply = await self._ask(request.CHAT, body)
        if reply is not None and _silent(reply.choices[0]):
            # All of it went into thinking that is kept back.
            reply = await self._ask(request.CHAT, {**body, "max_tokens": _THOUGHT}) or reply
        choice = None if reply is None else reply.choices[0]
        if reply is None or choice is None:
            # It refuses to be asked for one of the two.
            reply = await self._ask(request.CHAT, self._chat(_ASK, logprobs=True))
            found = False if reply is None else _shown(reply.choices[0])
            return {"ids": False, "logprobs": found, "reasoning_logprobs": None}
        if reply.prompt_ids is not None:
            self._prompt = list(reply.prompt_ids)
        listed = _listed(choice)
        covered = _covers(reply, listed)
        reasoned = bool(choice.reasoning) or "<think>" in choice.content
        return {
            "ids": bool(self._prompt) and choice.has_ids and _covers(reply, len(choice.tokens)),
            "logprobs": _shown(choice),
            "reasoning_logprobs": _reasoning(reply, choice, listed, covered=covered, reasoned=reasoned),
        }

    async def _calls(self) -> dict[str, bool | None]:
        body = self._chat(_ASK, logprobs=True, tools=[_TOOL], max_tokens=4 * _TOKENS)
        reply = await self._ask(request.CHAT, {**body, "tool_choice": "required"}) or await self._ask(
            request.CHAT, body
        )
        if reply is None or not reply.choices[0].tool_calls:
            return {"tool_logprobs": None}
        choice = reply.choices[0]
        covered = _covers(reply, _listed(choice))
        return {"tool_logprobs": None if not covered and _merged(reply, choice, _listed(choice)) else covered}

    async def _siblings(self) -> dict[str, bool | None]:
        reply = await self._ask(request.CHAT, self._chat(_ASK, n=2))
        return {"n": reply is not None and len(reply.choices) == 2}

    async def _usage_of_siblings(self) -> dict[str, bool | None]:
        reply = await self._ask(request.CHAT, self._chat(_ASK, n=2, max_tokens=1))
        if reply is None or len(reply.choices) != 2 or reply.generated is None:
            return {"usage_of_n": None}
        return {"usage_of_n": reply.estimated == 0 and reply.generated > 1}

    async def _cached(self) -> dict[str, bool | None]:
        # Some servers tell nothing of a prompt of which nothing was cached.
        replies = [await self._ask(request.CHAT, self._chat(_ASK, max_tokens=1)) for _ in range(2)]
        told = [reply.cached for reply in replies if reply is not None and reply.prompt is not None]
        return {"cached": any(figure is not None for figure in told) if told else None}

    async def _seeds(self) -> dict[str, bool | None]:
        # Several pairs: a model that says few things may say one of them twice by chance.
        said, again = [[await self._reply_to_seed(seed) for seed in (7, 8, 9, 10)] for _ in range(2)]
        if said != again:
            return {"seeds": False}
        # Where everything is alike, whatever the seed, nothing follows.
        return {"seeds": True if len(set(said)) > 1 else None}

    async def _reply_to_seed(self, seed: int) -> object:
        """The completion for a seed."""
        body = self._chat(_ASK, seed=seed, temperature=1.0, tools=[_TOOL])
        reply = await self._ask(request.CHAT, body) or await self._ask(request.CHAT, self._chat(_ASK, seed=seed))
        if reply is None:
            return None
        choice = reply.choices[0]
        # A call's id is new each time.
        return choice.content, choice.reasoning, tuple(call[1:] for call in choice.tool_calls)

    async def _tokenize(self) -> dict[str, bool | None]:
        body: dict[str, JSON] = {"model": self._model, "messages": list(_ASK), "add_generation_prompt": True}
        found = await self._decoded("//tokenize", body, _Tokenized)
        if not found.tokens:
            # llama.cpp has two routes for that.
            written = await self._decoded("//apply-template", body, _Text)
            text: dict[str, JSON] = {"model": self._model, "content": written.prompt, "add_special": True}
            found = await self._decoded("//tokenize", text, _Tokenized) if written.prompt else found
        self._prompt = found.tokens or self._prompt
        return {"tokenize": bool(found.tokens)}

    async def _detokenize(self) -> dict[str, bool | None]:
        ids = await self._ids()
        found = await self._decoded("//detokenize", {"model": self._model, "tokens": list(ids)}, _Text)
        return {"detokenize": bool(found.prompt or found.content)}

    async def _decoded(self, route: str, body: dict[str, JSON], kind: type[_Answer]) -> _Answer:
        """The answer of a route; an empty one where the route is missing."""
        data = await self._post(route, body)
        try:
            return msgspec.json.decode(data or b"{}", type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return kind()

    async def _completions(self) -> dict[str, bool | None]:
        body: dict[str, JSON] = {
            "model": self._model,
            "prompt": list(await self._ids()),
            "max_tokens": _TOKENS,
            "logprobs": 0,
            "return_token_ids": True,
        }
        reply = await self._ask(request.COMPLETIONS, body, "completion")
        if reply is not None and not _listed(reply.choices[0]):
            # llama.cpp lists no token unless an alternative is asked for.
            reply = await self._ask(request.COMPLETIONS, body | {"logprobs": 1}, "completion") or reply
        if reply is None or reply.choices[0].aligned:
            return {"completions": reply is not None}
        return {"completions": None if _merged(reply, reply.choices[0], _listed(reply.choices[0])) else False}

    async def _generate(self) -> dict[str, bool | None]:
        body: dict[str, JSON] = {
            "model": self._model,
            "input_ids": list(await self._ids()),
            "sampling_params": {"max_new_tokens": _TOKENS},
            "return_logprob": True,
        }
        reply = await self._ask(request.GENERATE, body, "generate")
        return {"generate": reply is not None and reply.choices[0].aligned}

    async def _ids(self) -> list[int]:
        """Token ids of a prompt; ones that every vocabulary has where ``/tokenize`` gives none."""
        if not self._prompt:
            await self._tokenize()
        return self._prompt or [100, 101, 102, 103]

    def _chat(self, messages: Sequence[JSON], **more: JSON) -> dict[str, JSON]:
        return {"model": self._model, "messages": list(messages), "max_tokens": _TOKENS, **more}

    async def _ask(self, route: str, body: dict[str, JSON], form: str = "chat") -> ParsedReply | None:
        """The reply to a body; None if the server refuses it or answers something else."""
        data = await self._post(route, body)
        try:
            reply = read_reply(data or b"", form=form)
        except ReplyError:
            return None
        self._spent.append(_cost(reply, self.site))
        return reply if reply.choices else None

    async def _post(self, route: str, body: dict[str, JSON]) -> bytes | None:
        """The answer to a body; None if the server refuses it or has no such route."""
        llm = self._open()
        self.site = llm.endpoints[0].base_url
        try:
            data = await llm.call(route, msgspec.json.encode(body))
        except BadRequest:
            self.reached = True
            return None
        except EndpointError:
            return None
        else:
            self.reached = True
            return data
        finally:
            await llm.close()


_NOTHING: Final = ReplyChoice("", None, [], "")


def _cost(reply: ParsedReply, site: str) -> Reply:
    """A reply's usage without its text."""
    prompt, cached, generated = (
        -1 if figure is None else figure for figure in (reply.prompt, reply.cached, reply.generated)
    )
    return Reply([_NOTHING] * len(reply.choices), prompt, cached, generated, 1, 0, endpoint=site)


class _Text(msgspec.Struct):
    prompt: str = ""
    content: str = ""


class _Tokenized(msgspec.Struct):
    tokens: list[int] = []


def _listed(choice: ParsedChoice) -> int:
    """How many tokens have log-probs."""
    return 0 if choice.logprobs is None else len(choice.logprobs)


def _silent(choice: ParsedChoice) -> bool:
    """Whether a choice is empty, so that missing log-probs show nothing."""
    return not (choice.content or choice.reasoning or choice.tool_calls or _listed(choice))


def _shown(choice: ParsedChoice) -> bool | None:
    """Whether there are log-probs; None if that does not show."""
    return None if _silent(choice) else _listed(choice) > 0


def _covers(reply: ParsedReply, listed: int) -> bool:
    """Whether ``listed`` tokens are all that were generated; some servers leave the last out."""
    return reply.generated is not None and 0 < listed >= reply.generated - 1


def _merged(reply: ParsedReply, choice: ParsedChoice, listed: int) -> bool:
    """Whether all tokens may be listed with those of one character merged, as llama.cpp does."""
    calls = "".join(name + arguments for _, name, arguments in choice.tool_calls)
    texts = (choice.content, choice.reasoning or "", calls)
    more = sum(len(text.encode("utf-8", "replace")) - len(text) for text in texts)
    generated = reply.generated or 0
    # Some servers leave the last token out.
    return more > 0 and 0 < listed < generated <= listed + more + 1


def _reasoning(reply: ParsedReply, choice: ParsedChoice, listed: int, *, covered: bool, reasoned: bool) -> bool | None:
    """Whether there are log-probs of reasoning; None if that does not show."""
    if not listed or (covered and not reasoned) or (not covered and _merged(reply, choice, listed)):
        return None
    # What was generated and is neither text nor listed was thought and kept back.
    return covered


REGIONS: Final = {"think": ("think",), "tool": ("tool",), "all": ("all",), "mixed": ("think", "tool")}
"""The regions of a turn that each ``region`` of a strategy needs."""

_WORDS: Final = {"think": "thinking", "tool": "tool calls", "all": "all tokens of a turn"}
_ROUTES: Final = {
    "think": "start the server without a reasoning parser",
    "tool": "use dialect='hermes', where calls are text",
    "all": "use dialect='hermes' where calls have none, and no reasoning parser where thinking has none",
}


class Regions(msgspec.Struct, frozen=True, kw_only=True):
    """Regions of a turn with log-probs: True, False, or None where the reply had no such region."""

    site: str
    model: str
    think: bool | None
    tool: bool | None
    all: bool | None


async def find_regions(
    open_llm: Callable[[], HttpLLM],
    model: str,
    sampling: Sampling,
    messages: Sequence[bytes],
    tools: bytes = b"",
    spent: list[Reply] | None = None,
) -> Regions:
    """Ask for a turn, and find the regions that have log-probs."""
    body = request.head(model) + b",".join(messages) + request.constant(sampling, tools)
    end = request.draws(None)
    if len(tools) > 2:
        with suppress(ConfigError):  # Not every server can be told to call one.
            return await _ask(open_llm, model, body + b',"tool_choice":"required"' + end, spent)
    return await _ask(open_llm, model, body + end, spent)


def require_region(found: Regions, region: str, who: str) -> None:
    """Raise ConfigError for a server that gives no log-probs for a region; unknown regions pass."""
    missing = [part for part in REGIONS[region] if getattr(found, part) is False]
    if missing:
        others = [name for name, parts in REGIONS.items() if all(getattr(found, part) for part in parts)]
        ways = [_ROUTES[part] for part in missing]
        ways += [f"use {option_of('completions')}, where the server takes nothing apart"]
        ways += [f"choose a region that has them ({', '.join(others)})"] if others else []
        told = " and ".join(_WORDS[part] for part in missing)
        raise ConfigError(
            f"{found.site} gives no log-probs for {told} of {found.model!r} (region {region!r}, needed by {who}): "
            f"{'; '.join(ways)}; or take a strategy that needs none (Chain, TreeGRPO)"
        )


async def _ask(open_llm: Callable[[], HttpLLM], model: str, body: bytes, spent: list[Reply] | None) -> Regions:
    """The regions in the reply to a body."""
    llm = open_llm()
    site = llm.endpoints[0].base_url
    try:
        reply = read_reply(await llm.call(request.CHAT, body))
    except BadRequest as error:
        raise ConfigError(f"{site} refuses to be asked for log-probs of {model!r}: {error}") from None
    except ReplyError as error:
        raise ConfigError(f"{site} was asked for log-probs of {model!r}, and its answer is no reply: {error}") from None
    finally:
        await llm.close()
    if spent is not None:
        spent.append(_cost(reply, site))
    if not reply.choices:
        raise ConfigError(f"{site} was asked for log-probs of {model!r}, and its answer has no choice")
    return _regions(reply, site, model)


def _regions(reply: ParsedReply, site: str, model: str) -> Regions:
    choice = reply.choices[0]
    listed = _listed(choice)
    think, tool, some = (not math.isnan(figure) for figure in choice.tokens.entropy)
    # Some servers leave the last token out.
    whole: bool | None = some and (reply.generated is None or listed >= reply.generated - 1)
    if some and not whole and _merged(reply, choice, listed):
        whole = None
    thought = bool(choice.reasoning or reply.reasoning) or "<think>" in choice.content
    called = bool(choice.tool_calls) or "<tool_call>" in choice.content
    return Regions(site=site, model=model, think=think if thought else None, tool=tool if called else None, all=whole)
