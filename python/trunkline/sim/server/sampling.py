"""Drafts as sampled tokens, and their log-probs as JSON."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from trunkline.sim.model import generation as drafts
from trunkline.sim.model.generation import Token, filler, variation
from trunkline.sim.model.tokenizer import default_bpe
from trunkline.sim.world.names import Draws

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trunkline.sim.model.generation import Draft


__all__ = [
    "END",
    "Generated",
    "Limits",
    "chat_logprobs",
    "completion_logprobs",
    "generate",
    "keep",
    "listed",
    "token_text",
]


END: Final = "<|im_end|>"
"""The token that ends a reply; it is counted and has an id, and its text is not part of the reply."""


class Limits(NamedTuple):
    """Where a reply must end: its most tokens, the end token included, and its stop texts, kept in it or not."""

    tokens: int
    stops: tuple[str, ...] = ()
    keep_stop: bool = False


class Generated(NamedTuple):
    """One choice; ``finish`` is ``stop`` or ``length``, ``key`` is that of the variations of its log-probs."""

    tokens: list[Token]
    text: str
    finish: str
    stopped_by: str | None
    key: bytes

    @property
    def ids(self) -> list[int]:
        """Its token ids."""
        return [token.id for token in self.tokens]


def generate(draft: Draft, limits: Limits, key: bytes, *, logprobs: bool, noncanonical: float) -> Generated:
    """Sample a draft within limits; ``logprobs`` asks for branches, ``noncanonical`` is the rate of split tokens."""
    bpe = default_bpe()
    if logprobs or noncanonical:
        tokens = drafts.tokens(draft, END)
    else:
        tokens = [Token(token) for token in drafts.ids(draft, END)]
    if noncanonical:
        draws = Draws("noncanonical", key.hex())
        # A token at a branch stays whole, since the mass of its alternatives is that of whole tokens.
        tokens = [
            part
            for token in tokens
            for part in ([token] if token.branches else [Token(i) for i in bpe.split([token.id], noncanonical, draws)])
        ]
    text = draft.text()
    finish: str = "stop"
    stopped_by: str | None = None
    found = [(place, stop) for stop in limits.stops if (place := text.find(stop)) >= 0]
    if found:
        place, stopped_by = min(found, key=lambda item: item[0] + len(item[1]))
        end = place + len(stopped_by)
        tokens = _until(tokens, len(text[:end].encode("utf-8", "replace")))
        text = text[:end] if limits.keep_stop else text[:place]
    if len(tokens) > limits.tokens:
        tokens = tokens[: limits.tokens]
        text = bpe.decode([token.id for token in tokens]).decode("utf-8", "ignore")
        finish, stopped_by = "length", None
    return Generated(tokens, text, finish, stopped_by, key)


def _until(tokens: list[Token], size: int) -> list[Token]:
    """The tokens up to and including the one that completes so many bytes."""
    bpe = default_bpe()
    reached = 0
    for count, token in enumerate(tokens, 1):
        reached += len(bpe.token_bytes(token.id))
        if reached >= size:
            return tokens[:count]
    return tokens


_VARIATIONS = 256
_PAD = -25.0


def keep(generated: Generated, *, thinking: bool, calls: bool) -> list[int]:
    """Places of the tokens shown: thinking and tool calls only where asked for."""
    special = default_bpe().special
    opens = {special["<think>"]: "think", special["<tool_call>"]: "call"}
    closes = {special["</think>"], special["</tool_call>"]}
    shown = {"": True, "think": thinking, "call": calls}
    places = []
    region = ""
    for place, token in enumerate(generated.tokens):
        region = opens.get(token.id, region)
        if shown[region]:
            places.append(place)
        if token.id in closes:
            region = ""
    return places


def chat_logprobs(generated: Generated, top: int, places: Sequence[int]) -> list[msgspec.Raw]:
    """The entries of ``logprobs.content`` of the tokens shown, each with ``top`` alternatives."""
    numbers = filler(generated.key, len(generated.tokens))
    return [msgspec.Raw(_entry(generated.tokens[place], numbers[place], top)) for place in places]


def completion_logprobs(generated: Generated, top: int) -> dict[str, Any]:
    """The ``logprobs`` object of a completion choice, with ``top`` alternatives for each token."""
    texts: list[str] = []
    values: list[float] = []
    tops: list[dict[str, float]] = []
    offsets: list[int] = []
    offset = 0
    for token, own, alternatives in listed(generated, top):
        text = token_text(token)
        texts.append(text)
        values.append(own)
        tops.append({token_text(other): value for other, value in alternatives})
        offsets.append(offset)
        offset += len(text)
    return {"tokens": texts, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}


def listed(generated: Generated, top: int) -> Iterator[tuple[int, float, list[tuple[int, float]]]]:
    """Each token's id, its log-prob, and the ``top`` likeliest tokens at its place with theirs."""
    numbers = filler(generated.key, len(generated.tokens))
    for token, number in zip(generated.tokens, numbers, strict=True):
        yield token.id, *_alternatives(token, number, top)


def _alternatives(token: Token, number: int, top: int) -> tuple[float, list[tuple[int, float]]]:
    """A token's log-prob and the likeliest tokens at its place, itself included where it is one."""
    if token.branches:
        listed = list(token.branches[:top])
        known = {other for other, _ in token.branches}
        for other, _ in variation(number)[1]:
            if len(listed) >= top:
                break
            if other not in known:
                listed.append((other, _PAD - len(listed)))
        return token.logprob, listed
    own, others = variation(_settle(token.id, number))
    return own, [(token.id, own), *others][:top]


def _settle(token: int, number: int) -> int:
    """The next variation whose alternatives do not hold the token itself."""
    while token in _others(number):
        number = (number + 1) % _VARIATIONS
    return number


@lru_cache(maxsize=_VARIATIONS)
def _others(number: int) -> frozenset[int]:
    return frozenset(other for other, _ in variation(number)[1])


@lru_cache(maxsize=_VARIATIONS * 24)
def _tail(number: int, top: int) -> bytes:
    """The alternatives of an ordinary token as JSON, after the token itself."""
    return b"".join([b"," + _head(other) + b"%.6f}" % value for other, value in variation(number)[1][: top - 1]])


def _entry(token: Token, number: int, top: int) -> bytes:
    head = _head(token.id)
    if not token.branches:
        number = _settle(token.id, number)
        own = b"%.6f" % variation(number)[0]
        if not top:
            return head + own + b',"top_logprobs":[]}'
        return b"".join((head, own, b',"top_logprobs":[', head, own, b"}", _tail(number, top), b"]}"))
    value, entries = _alternatives(token, number, top)
    listed = b",".join([_head(other) + b"%.6f}" % logprob for other, logprob in entries])
    return head + b'%.6f,"top_logprobs":[%s]}' % (value, listed)


@lru_cache(maxsize=4096)
def _head(token: int) -> bytes:
    raw = default_bpe().token_bytes(token)
    fields = msgspec.json.encode({"token": token_text(token), "bytes": list(raw)})
    return fields[:-1] + b',"logprob":'


def token_text(token: int) -> str:
    """The text of a token; a part of a character is U+FFFD."""
    return default_bpe().token_bytes(token).decode("utf-8", "replace")
