"""The constant parts of a request body: ``head + fragments + tail``.

The core joins the message fragments between the two. Whatever does not change between turns is encoded once.
"""

from __future__ import annotations

import hashlib
import math
from typing import Final

import msgspec

from trunkline.bounds import kind, number, shown, text, whole
from trunkline.errors import ConfigError
from trunkline.types import JSON

__all__ = ["Sampling", "head", "namespace", "tail"]

RESERVED: Final = frozenset({"messages", "model", "n", "seed", "stream", "stream_options", "tools"})
_CACHED: Final = 256
_RANGES: Final = (
    ("temperature", 0.0, math.inf),
    ("top_p", 0.0, 1.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
)

_encoder = msgspec.json.Encoder(order="sorted")


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a model samples. What is None is not sent, so the server's own default holds.

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
        ConfigError: A value is out of range; the message names the field.
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
                number(f"sampling.{field}", value, low, high, above=field == "top_p")
        if self.max_tokens is not None:
            whole("sampling.max_tokens", self.max_tokens, 1, 2**31 - 1)
        if self.top_logprobs is not None:
            whole("sampling.top_logprobs", self.top_logprobs, 0, 20)
        if self.logprobs is not None and not isinstance(self.logprobs, bool):
            raise ConfigError(f"sampling.logprobs must be true or false, not {shown(self.logprobs)}")
        if self.top_logprobs is not None and not self.logprobs:
            raise ConfigError("sampling.top_logprobs needs sampling.logprobs=True")
        _stop(self.stop)
        _extra(self.extra)


def head(model: str) -> bytes:
    """The body up to the first message.

    Raises:
        ConfigError: The model's name is empty or no text.
    """
    if not text("Agent: model", model).strip():
        raise ConfigError("Agent: model is empty; name the model as its endpoint does")
    return b'{"model":' + _encoder.encode(model) + b',"messages":['


def tail(sampling: Sampling, tools: bytes = b"", seed: int | None = None, n: int = 1) -> bytes:
    """The body after the last message.

    Args:
        sampling: How to sample.
        tools: The tool definitions as a JSON array, as ``Toolbox.definitions`` makes it; empty for none.
        seed: Seed of the first draw; not sent when None.
        n: Draws wanted; not sent when 1.
    """
    constant = _constant(sampling, tools)
    if n != 1:
        constant += b',"n":%d' % n
    if seed is not None:
        constant += b',"seed":%d' % seed
    return constant + b"}"


def namespace(model: str, sampling: Sampling, tools: bytes = b"") -> str:
    """What makes draws comparable, as one canonical string: model, sampling and tools, never the seed.

    Two turns may merge into one node only when their namespaces are equal. The tools stand as a hash.
    """
    digest = hashlib.blake2b(tools, digest_size=8).hexdigest() if len(tools) > 2 else "none"
    return f"{model} {_fields(sampling).decode()} tools:{digest}"


_tails: dict[tuple[int, bytes], tuple[Sampling, bytes]] = {}


def _constant(sampling: Sampling, tools: bytes) -> bytes:
    # A Sampling may hold a dict and cannot be hashed; the entry keeps it alive, so its id is not reused.
    key = (id(sampling), tools)
    entry = _tails.get(key)
    if entry is not None:
        return entry[1]
    constant = b"]"
    if len(tools) > 2:
        constant += b',"tools":' + tools
    fields = _fields(sampling)[1:-1]
    if fields:
        constant += b"," + fields
    if len(_tails) >= _CACHED:
        _tails.clear()
    _tails[key] = (sampling, constant)
    return constant


def _fields(sampling: Sampling) -> bytes:
    fields = msgspec.structs.asdict(sampling)
    extra = fields.pop("extra")
    known = {name: value for name, value in fields.items() if value is not None}
    return _encoder.encode({**known, **extra})


def _stop(value: object) -> None:
    if value is None:
        return
    if not isinstance(value, tuple | list) or not 1 <= len(value) <= 16:
        raise ConfigError(f"sampling.stop must be one to sixteen strings, not {shown(value)}")
    for position, item in enumerate(value):
        if not text(f"sampling.stop[{position}]", item):
            raise ConfigError(f"sampling.stop[{position}] is empty")


def _extra(value: object) -> None:
    if not isinstance(value, dict):
        raise ConfigError(f"sampling.extra must be a dict of body fields, not {kind(value)}")
    for name in value:
        if not isinstance(name, str):
            raise ConfigError(f"sampling.extra has a field name that is not a string: {shown(name)}")
        if name in RESERVED:
            raise ConfigError(f"sampling.extra must not hold {name!r}: it is set for every request")
        if name in Sampling.__struct_fields__:
            raise ConfigError(f"sampling.extra must not hold {name!r}: set sampling.{name} instead")
    try:
        _encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"sampling.extra is not JSON: {error}") from None
