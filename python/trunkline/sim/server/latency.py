"""Latency, prefix cache, counters."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections import Counter, OrderedDict
from contextlib import asynccontextmanager
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec

from trunkline.sim.model.chat_template import Message, encoded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


__all__ = ["BLOCK", "Engine", "Latency", "Metrics", "Prefix", "PrefixCache", "of_messages"]


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
    """Seconds to the first and to the last token, both since the reply left the queue."""

    first: float
    total: float


class Engine:
    """The batch of one server."""

    def __init__(self, latency: Latency | None) -> None:
        self._latency = latency
        self._places = asyncio.Semaphore(latency.max_batch if latency else 1)
        self._batch = 0

    def span(self, uncached: int, tokens: int, key: bytes) -> Span:
        """The time of a reply that starts now; ``key`` draws its factor, so that equal replies have equal factors."""
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


BLOCK: Final = 16
"""Tokens of a block; only whole blocks are shared."""


class Prefix(NamedTuple):
    """A token sequence in the cache: chained hashes of its whole blocks, the tokens behind them, and their number."""

    blocks: tuple[int, ...] = ()
    rest: tuple[int, ...] = ()
    tokens: int = 0

    def then(self, ids: Sequence[int]) -> Prefix:
        """The sequence with more tokens at its end."""
        blocks, rest = _chain(self.blocks[-1] if self.blocks else 0, self.rest, tuple(ids))
        return Prefix(self.blocks + blocks, rest, self.tokens + len(ids))


class PrefixCache:
    """The blocks that a server holds, at most ``capacity`` tokens."""

    def __init__(self, capacity: int) -> None:
        self._most = capacity // BLOCK
        self._held: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        """Tokens held."""
        return len(self._held) * BLOCK

    def enter(self, prompt: Prefix) -> int:
        """Add a prompt; returns its tokens that were held, never its last one, which is always computed."""
        if not self._most:
            return 0
        cached = 0
        for block in prompt.blocks:
            if block not in self._held:
                break
            cached += 1
        self._hold(prompt.blocks)
        return min(cached, max(prompt.tokens - 1, 0) // BLOCK) * BLOCK

    def extend(self, prompt: Prefix, ids: Sequence[int]) -> None:
        """Add the tokens generated after a prompt."""
        if self._most:
            self._hold(prompt.then(ids).blocks[len(prompt.blocks) :])

    def _hold(self, blocks: Sequence[int]) -> None:
        held = self._held
        # From the end, so that the beginning of a sequence, which others share, is the last to be dropped.
        for block in reversed(blocks):
            held[block] = None
            held.move_to_end(block)
        while len(held) > self._most:
            held.popitem(last=False)


def of_messages(messages: Sequence[Message]) -> Prefix:
    """The prefix of messages; what earlier requests had in common is not computed again."""
    blocks: list[int] = []
    rest: tuple[int, ...] = ()
    tokens = 0
    last = 0
    for message in messages:
        more, rest, count = _message(last, rest, message)
        if more:
            blocks += more
            last = more[-1]
        tokens += count
    return Prefix(tuple(blocks), rest, tokens)


@lru_cache(maxsize=16384)
def _message(last: int, rest: tuple[int, ...], message: Message) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    ids = encoded(message).ids
    blocks, left = _chain(last, rest, ids)
    return blocks, left, len(ids)


def _chain(last: int, rest: tuple[int, ...], ids: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    ids = rest + ids
    blocks = []
    whole = len(ids) - len(ids) % BLOCK
    for start in range(0, whole, BLOCK):
        last = hash((last, ids[start : start + BLOCK]))
        blocks.append(last)
    return tuple(blocks), ids[whole:]


_HELP: Final = {
    "requests_total": ("counter", "Requests answered, by path and status."),
    "errors_total": ("counter", "Requests answered with a status of 400 or more."),
    "prompt_tokens_total": ("counter", "Prompt tokens, cached ones included."),
    "cached_tokens_total": ("counter", "Prompt tokens found in the prefix cache."),
    "generated_tokens_total": ("counter", "Tokens generated."),
    "choices_total": ("counter", "Choices generated."),
    "requests_in_flight": ("gauge", "Requests being answered."),
    "process_cpu_seconds_total": ("counter", "CPU time of this process, user and system."),
}


class Metrics:
    """The counters of a server."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.prompt = 0
        self.cached = 0
        self.generated = 0
        self.choices = 0
        self.in_flight = 0

    @property
    def errors(self) -> int:
        """Requests answered with a status of 400 or more."""
        return sum(count for (_, status), count in self.requests.items() if status >= 400)

    def text(self) -> str:
        """All counters as Prometheus text; names begin with ``trunkline_sim_``."""
        counted = {
            "errors_total": self.errors,
            "prompt_tokens_total": self.prompt,
            "cached_tokens_total": self.cached,
            "generated_tokens_total": self.generated,
            "choices_total": self.choices,
            "requests_in_flight": self.in_flight,
            "process_cpu_seconds_total": time.process_time(),
        }
        requests = {f'{{path="{path}",status="{status}"}}': n for (path, status), n in sorted(self.requests.items())}
        lines = []
        for name, (kind, text) in _HELP.items():
            lines += [f"# HELP trunkline_sim_{name} {text}", f"# TYPE trunkline_sim_{name} {kind}"]
            rows = {"": counted[name]} if name in counted else requests
            lines += [f"trunkline_sim_{name}{labels} {n}" for labels, n in rows.items()]
        return "\n".join(lines) + "\n"
