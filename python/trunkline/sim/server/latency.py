"""How long a reply takes: a queue, prefill of uncached tokens, decoding that slows with the batch, a tail."""

from __future__ import annotations

import asyncio
import hashlib
import math
from contextlib import asynccontextmanager
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["Engine", "Latency", "Span"]

# The upper ends leave out infinity, which no clock can wait for.
Rate = Annotated[float, msgspec.Meta(gt=0.0, le=1e12)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=86400.0)]

_NORMAL = NormalDist()


class Latency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The latency model.

    A reply waits for a place in the batch, then takes ``overhead + uncached / prefill`` seconds to its
    first token and ``tokens * token * (1 + slowdown * batch / max_batch)`` more, where ``batch`` counts
    the replies being decoded when it starts. The sum is multiplied by a lognormal factor of median 1.

    Attributes:
        overhead: Seconds before anything happens.
        prefill: Uncached prompt tokens a second.
        token: Seconds for a generated token in an otherwise empty batch.
        slowdown: How much slower a token is in a full batch: 1 means twice the time.
        max_batch: Replies decoded at once; the others queue in order of arrival.
        tail: Sigma of the lognormal factor.
    """

    overhead: Seconds = 0.015
    prefill: Rate = 20000.0
    token: Seconds = 0.002
    slowdown: Annotated[float, msgspec.Meta(ge=0.0, le=1e6)] = 1.0
    max_batch: Annotated[int, msgspec.Meta(ge=1)] = 96
    tail: Annotated[float, msgspec.Meta(ge=0.0, le=5.0)] = 0.3


class Span(msgspec.Struct, frozen=True):
    """Seconds to the first token and to the last one, both since the reply left the queue."""

    first: float
    total: float


class Engine:
    """The batch of one server.

    Args:
        latency: The model, or ``None`` for no latency at all.
    """

    def __init__(self, latency: Latency | None) -> None:
        self._latency = latency
        self._places = asyncio.Semaphore(latency.max_batch if latency else 1)
        self._batch = 0

    def span(self, uncached: int, tokens: int, key: bytes) -> Span:
        """How long a reply takes that starts now.

        Args:
            uncached: Prompt tokens that no cache holds.
            tokens: Tokens of the longest choice.
            key: What the tail is drawn from, so that the same reply has the same share of bad luck.
        """
        model = self._latency
        if model is None:
            return Span(0.0, 0.0)
        word = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
        factor = math.exp(model.tail * _NORMAL.inv_cdf((word + 0.5) / 2**64)) if model.tail else 1.0
        first = (model.overhead + uncached / model.prefill) * factor
        share = min(self._batch, model.max_batch) / model.max_batch
        return Span(first, first + tokens * model.token * (1 + model.slowdown * share) * factor)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place in the batch; waits in order of arrival when it is full."""
        if self._latency is None:
            yield
            return
        async with self._places:
            self._batch += 1
            try:
                yield
            finally:
                self._batch -= 1
