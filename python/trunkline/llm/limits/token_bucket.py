"""Token buckets for rates, and the rate limits that servers tell in headers."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_AT_ONCE: Final = 1e-6
"""Seconds that count as no wait: a sum of floats may fall short by them for ever."""

_REQUESTS, _TOKENS = 1.0, 5.0
"""Seconds of a rate that may be used at once. Providers fill their buckets as steadily and let them hold a minute;
tokens need room, as a request is counted with all that it may generate until its reply."""


class RateLease(Protocol):
    """Grants requests and tokens out of a run's rates, wherever they are kept."""

    def acquire(self, requests: int, tokens: int) -> float:
        """Take requests and tokens, all or nothing; returns 0, or the seconds after which to retry.

        Only one caller at a time retries. Negative ``requests`` are given back; with ``requests`` 0 the difference of a
        reply's tokens to its estimate is taken or given back. Both are always granted.
        """
        ...


class TokenBucket:
    """Fills at a constant rate up to a burst.

    A take larger than the burst waits for a full bucket and leaves a debt, which delays those after it. In any minute
    at most ``60 * rate + burst`` and one take are let through, and what was taken before it and is given back in it.
    """

    __slots__ = ("_clock", "_seen", "burst", "level", "rate")

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self.burst = burst
        self.level = burst
        self._clock = clock
        self._seen = clock()

    def wait(self, amount: float) -> float:
        """Return the seconds until an amount may be taken; 0 if it may be now."""
        self._fill()
        seconds = (min(amount, self.burst) - self.level) / self.rate
        return seconds if seconds > _AT_ONCE else 0.0

    def take(self, amount: float) -> None:
        """Take an amount, into debt if need be, or give a negative one back."""
        self._fill()
        self.level -= amount

    def correct(self, level: float, rate: float, burst: float) -> None:
        self._fill()
        self.rate, self.burst, self.level = rate, burst, min(burst, level)

    def _fill(self) -> None:
        now = self._clock()
        elapsed, self._seen = now - self._seen, now
        # What was given back may stand above the burst: it was let through earlier, and is not lost.
        self.level = max(self.level, min(self.burst, self.level + elapsed * self.rate))


class LocalRates:
    """A run's rates a minute, kept in this process; None is unlimited."""

    def __init__(
        self, requests: float | None, tokens: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._requests, self._tokens = limits_of(requests, tokens, clock)

    def acquire(self, requests: int, tokens: int) -> float:
        return acquire(self._requests, self._tokens, requests, tokens)


def acquire(first: TokenBucket | None, second: TokenBucket | None, requests: int, tokens: int) -> float:
    """Take from a bucket of requests and one of tokens, both or neither; see ``RateLease.acquire``."""
    if requests > 0:
        wait = 0.0 if first is None else first.wait(requests)
        if second is not None:
            wait = max(wait, second.wait(tokens))
        if wait:
            return wait
    if first is not None:
        first.take(requests)
    if second is not None:
        second.take(tokens)
    return 0.0


def limits_of(
    requests: float | None, tokens: float | None, clock: Callable[[], float] = time.monotonic
) -> tuple[TokenBucket | None, TokenBucket | None]:
    """Make the buckets of a run's requests and tokens a minute, None for what has no limit."""
    return (
        None if requests is None else _per_minute(requests, _REQUESTS, clock),
        None if tokens is None else _per_minute(tokens, _TOKENS, clock),
    )


def _per_minute(amount: float, seconds: float, clock: Callable[[], float]) -> TokenBucket:
    return TokenBucket(amount / 60, max(1.0, amount / 60 * seconds), clock)


_FAMILIES: Final = (
    # OpenAI and compatible servers: Azure, Groq, vLLM gateways. Then Anthropic.
    ("x-ratelimit-{1}-{0}", "x-ratelimit-remaining-requests", "x-ratelimit-remaining-tokens"),
    ("anthropic-ratelimit-{0}-{1}", "anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-tokens-remaining"),
)
_NAMES: Final = {
    (family[0], kind): tuple(family[0].format(kind, part) for part in ("limit", "remaining", "reset"))
    for family in _FAMILIES
    for kind in ("requests", "tokens")
}
_PART: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|us|d|h|m|s)")
_UNITS: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_COUNT: Final = re.compile(r"[0-9]{1,15}")
LONGEST: Final = 120.0
"""The most seconds that are believed for a reset; a limit per day is left to the 429 that names it."""


def seconds(text: str, now: Callable[[], float] = time.time) -> float | None:
    """Read a time until something: ``6m0s``, ``20ms``, seconds, or a moment in RFC 3339; None for other text."""
    text = text.strip()[:40]
    parts = _PART.findall(text)
    if parts and "".join(value + unit for value, unit in parts) == text:
        return sum(float(value) * _UNITS[unit] for value, unit in parts)
    try:
        if "T" in text:
            moment = datetime.fromisoformat(text)
            return max(0.0, (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now())
        value = float(text)
    except (ValueError, OverflowError):
        return None
    return value if 0 <= value < float("inf") else None


class ServerRateLimits:
    """An endpoint's own limits as far as it told them: requests and tokens that are left, and how they come back.

    The rate is what was used up divided by the time until it is back; for OpenAI and Anthropic, whose limits refill
    continuously, that is exact. Each of several processes (``parties``) uses an equal part. ``silent`` counts answers
    in a row that told of no limit.
    """

    __slots__ = ("_clock", "_parties", "_wall", "known", "requests", "silent", "tokens")

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        parties: int = 1,
    ) -> None:
        self._clock = clock
        self._parties = parties
        self._wall = wall
        self.known = False
        self.silent = 0
        self.requests: TokenBucket | None = None
        self.tokens: TokenBucket | None = None

    def learn(self, headers: Mapping[str, str], requests: int, tokens: int) -> None:
        """Read an answer's headers; the server may not have counted these requests in flight, and their tokens."""
        for family, first, second in _FAMILIES:
            if first in headers or second in headers:
                self.requests = self._corrected(self.requests, headers, _NAMES[family, "requests"], requests)
                self.tokens = self._corrected(self.tokens, headers, _NAMES[family, "tokens"], tokens)
                self.known = self.requests is not None or self.tokens is not None
                self.silent = 0
                return
        self.silent += 1

    def acquire(self, requests: int, tokens: int) -> float:
        return acquire(self.requests, self.tokens, requests, tokens)

    def _corrected(
        self, bucket: TokenBucket | None, headers: Mapping[str, str], names: tuple[str, ...], flying: int
    ) -> TokenBucket | None:
        limit, left = (_count(headers.get(name)) for name in names[:2])
        if left is None:
            return bucket
        burst = float(max(limit or 0, left, 1))
        back = min(seconds(headers.get(names[2], ""), self._wall) or 0.0, LONGEST)
        # A limit that is untouched, or whose reset is not told, is one per minute.
        rate = (burst - left) / back if back > 0 and burst > left else burst / 60
        parties = self._parties
        bucket = bucket or TokenBucket(rate / parties, burst / parties, self._clock)
        bucket.correct(left / parties - flying, rate / parties, burst / parties)
        return bucket


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and _COUNT.fullmatch(text) else None
