"""Request bodies: ``head + fragments + constant + draws``, joined by the core; constant parts are encoded once."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Final

import msgspec

from trunkline._internal.text import JSON, is_credential
from trunkline._internal.validation import check_bool, check_float, check_int, check_text, short_repr, type_phrase
from trunkline.errors import ConfigError
from trunkline.llm.response import read

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.llm.types import Reply, ReplyReader, Request


CHAT: Final = "/chat/completions"
COMPLETIONS: Final = "/completions"
GENERATE: Final = "//generate"
"""SGLang's own interface, which is not below the base URL but at the server's root."""

_IDS: Final = ("return_token_ids", "return_tokens_as_token_ids")  # fields of vLLM's that ask for token ids
RESERVED: Final = frozenset({"messages", "model", "n", "seed", "stream", "stream_options", "tools"})
_RANGES: Final = (
    ("temperature", 0.0, math.inf),
    ("top_p", 0.0, 1.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
)

_encoder = msgspec.json.Encoder(order="sorted")


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Sampling parameters. None is not sent, so the server's own default holds.

    Attributes:
        temperature: At least 0.
        top_p: Above 0, at most 1.
        max_tokens: Most tokens a turn may generate.
        stop: Up to 16 strings that end a turn.
        presence_penalty: From -2 to 2.
        frequency_penalty: From -2 to 2.
        logprobs: Whether to ask for the log-probabilities of the sampled tokens.
        top_logprobs: How many alternatives to ask for at each token, 0 to 20; needs ``logprobs``.
        extra: Further fields of the body, for example ``top_k`` or ``chat_template_kwargs``.

    Raises:
        ConfigError: A value is out of range, or ``extra`` has a key such as ``api_key``; the message names the field.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    extra: dict[str, JSON] = {}

    def __post_init__(self) -> None:
        for field, low, high in _RANGES:
            value = getattr(self, field)
            if value is not None:
                check_float(f"sampling.{field}", value, low, high, above=field == "top_p")
        if self.max_tokens is not None:
            check_int("sampling.max_tokens", self.max_tokens, 1, 2**31 - 1)
        if self.top_logprobs is not None:
            check_int("sampling.top_logprobs", self.top_logprobs, 0, 20)
        if self.logprobs is not None:
            check_bool("sampling.logprobs", self.logprobs)
        if self.top_logprobs is not None and not self.logprobs:
            raise ConfigError("sampling.top_logprobs needs sampling.logprobs=True")
        _stop(self.stop)
        _extra(self.extra)


def check_model(name: str, model: str) -> None:
    """Raise ConfigError for a model name that is no text, or empty."""
    if not check_text(name, model).strip():
        raise ConfigError(f"{name} is empty; name the model as its endpoint does")


def head(model: str, name: str = "Agent: model") -> bytes:
    """The body up to the first message."""
    check_model(name, model)
    return b'{"model":' + _encoder.encode(model) + b',"messages":['


def wants_ids(sampling: Sampling) -> bool:
    """Whether a request asks for token ids: servers give them by the names of their log-probabilities, or when told."""
    return bool(sampling.logprobs) or any(sampling.extra.get(name) for name in _IDS)


def constant(sampling: Sampling, tools: bytes = b"") -> bytes:
    """The body after the last message, up to what depends on the draws: see ``draws``."""
    listed = b'"tools":' + tools if len(tools) > 2 else b""
    return b",".join(part for part in (b"]", listed, _fields(sampling)[1:-1]) if part)


def draws(seed: int | None, n: int = 1, route: str = CHAT) -> bytes:
    """The end of a body: ``n`` and the seed."""
    if route == GENERATE:
        return b',"n":%d}}' % n if seed is None else b',"n":%d,"sampling_seed":%d}}' % (n, seed)
    if seed is None:
        return b"}" if n == 1 else b',"n":%d}' % n
    return b',"seed":%d}' % seed if n == 1 else b',"n":%d,"seed":%d}' % (n, seed)


def part(request: Request, first: int, n: int) -> Request:
    """The request for draws ``first`` to ``first + n - 1`` of a request."""
    if (first, n) == (0, request.n):
        return request
    seed = None if request.seed is None else request.seed + first
    take = request.take and _read_part(request.take, first, n)
    body = request.body[: request.constant] + draws(seed, n, request.route)
    rollouts = request.rollouts[first : first + n]
    return msgspec.structs.replace(request, content=body, n=n, seed=seed, take=take, rollouts=rollouts)


def unseeded(request: Request) -> Request:
    """The same request, made with ``draws``, without its seed."""
    content = request.body[: request.constant] + draws(None, request.n, request.route)
    return msgspec.structs.replace(request, content=content, seed=None)


def tap(request: Request, note: Callable[[int, int, bytes], None]) -> Request:
    """The same request, with the bytes of its answer passed to ``note`` once they are read."""
    take = request.take or read

    def tapped(data: bytes, first: int, attempts: int, micros: int, most: int | None = None) -> Reply:
        reply = take(data, first, attempts, micros, most)
        note(first, len(reply.choices), data)
        return reply

    return msgspec.structs.replace(request, take=tapped)


def _read_part(take: ReplyReader, start: int, n: int) -> ReplyReader:
    """Read ``n`` draws of a request from ``start`` on, whatever a server sends beyond them."""

    def read_part(data: bytes, first: int, attempts: int, micros: int, most: int | None = None) -> Reply:
        left = n - first
        return take(data, start + first, attempts, micros, left if most is None else min(left, most))

    return read_part


def namespace(model: str, sampling: Sampling, tools: bytes = b"") -> str:
    """The merge namespace of turns: model, sampling and a hash of the tools, never the seed."""
    digest = hashlib.blake2b(tools, digest_size=8).hexdigest() if len(tools) > 2 else "none"
    return f"{model} {_fields(sampling).decode()} tools:{digest}"


def model_in(namespace: str) -> str:
    """The model's name in a namespace; other text as it is."""
    return namespace.partition(" {")[0]


def fields(sampling: Sampling) -> dict[str, JSON]:
    """The members of a body that hold sampling parameters."""
    given = msgspec.structs.asdict(sampling)
    extra = given.pop("extra")
    known = {name: value for name, value in given.items() if value is not None}
    return {**known, **extra}


def _fields(sampling: Sampling) -> bytes:
    return _encoder.encode(fields(sampling))


def _stop(value: object) -> None:
    if value is None:
        return
    if not isinstance(value, tuple | list) or not 1 <= len(value) <= 16:
        raise ConfigError(f"sampling.stop must be one to sixteen strings, not {short_repr(value)}")
    for position, item in enumerate(value):
        if not check_text(f"sampling.stop[{position}]", item):
            raise ConfigError(f"sampling.stop[{position}] is empty")


def _extra(value: object) -> None:
    if not isinstance(value, dict):
        raise ConfigError(f"sampling.extra must be a dict of body fields, not {type_phrase(value)}")
    for name in value:
        if not isinstance(name, str):
            raise ConfigError(f"sampling.extra has a field name that is not a string: {short_repr(name)}")
        if name in RESERVED:
            raise ConfigError(f"sampling.extra must not hold {name!r}: it is set for every request")
        if name in Sampling.__struct_fields__:
            raise ConfigError(f"sampling.extra must not hold {name!r}: set sampling.{name} instead")
        if is_credential(name):
            raise ConfigError(
                f"sampling.extra must not hold {short_repr(name)}: it would be stored; use api_key_env or headers"
            )
    try:
        _encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"sampling.extra is not JSON: {error}") from None
