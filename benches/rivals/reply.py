"""Perplexity of a reply in Python: what the native reader is measured against."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import msgspec


class Alternative(msgspec.Struct):
    """One of the likeliest tokens."""

    logprob: float


class Entry(msgspec.Struct):
    """A token."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[Alternative]


class Logprobs(msgspec.Struct):
    """The tokens of a choice."""

    content: list[Entry]


class Choice(msgspec.Struct):
    """A completion."""

    logprobs: Logprobs


class Completion(msgspec.Struct):
    """A reply."""

    choices: list[Choice]


_decode: Callable[[bytes], Completion] = msgspec.json.Decoder(Completion).decode


def entropy(logprobs: list[float]) -> float:
    """Entropy of the likeliest tokens, taken for all there are."""
    weights = [math.exp(logprob) for logprob in logprobs]
    mass = sum(weights)
    return math.log(mass) - sum(weight * logprob for weight, logprob in zip(weights, logprobs, strict=True)) / mass


def perplexity(entropies: list[float]) -> float:
    """Perplexity of a span."""
    return math.exp(sum(entropies) / len(entropies))


def with_json(data: bytes) -> float:
    """Read with the standard library."""
    entries = json.loads(data)["choices"][0]["logprobs"]["content"]
    return perplexity([entropy([one["logprob"] for one in entry["top_logprobs"]]) for entry in entries])


def with_msgspec(data: bytes) -> float:
    """Read with msgspec, into the fields that are needed."""
    entries = _decode(data).choices[0].logprobs.content
    return perplexity([entropy([one.logprob for one in entry.top_logprobs]) for entry in entries])
