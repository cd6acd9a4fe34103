"""What an endpoint says of its own rate limits, in the headers of its answers."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from trunkline.llm.bucket import Bucket, acquire

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["LONGEST", "Quota", "seconds"]

_FAMILIES: Final = (
    # OpenAI, and who speaks like it: Azure, Groq, vLLM gateways. Then Anthropic.
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
"""No more seconds than this are believed for a reset; a limit per day is left to the 429 that names it."""


def seconds(text: str, now: Callable[[], float] = time.time) -> float | None:
    """Read a time until something: ``6m0s``, ``20ms``, a plain number of seconds, or a moment in RFC 3339.

    Args:
        text: The header's value.
        now: The wall clock, seconds since the epoch.

    Returns:
        Seconds, not negative; None if it is no such time.
    """
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


class Quota:
    """An endpoint's own limits as far as it told them: requests and tokens that are left, and how they come back.

    The rate is what was used up divided by the time until it is back; for OpenAI and Anthropic, whose limits refill
    continuously, that is exact.

    Args:
        clock: Monotonic seconds.
        wall: The wall clock, seconds since the epoch.
        parties: How many processes ask the same endpoint. What it says is left is said to each of them, so each
            believes in an equal part of it.

    Attributes:
        known: Whether it told of any limit.
        silent: Answers in a row that told of none.
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
        self.requests: Bucket | None = None
        self.tokens: Bucket | None = None

    def learn(self, headers: Mapping[str, str], requests: int, tokens: int) -> None:
        """Take in the headers of an answer.

        Args:
            headers: Looked up without regard to case.
            requests: Requests in flight that the server may not have counted.
            tokens: Tokens these are booked for.
        """
        for family, first, second in _FAMILIES:
            if first in headers or second in headers:
                self.requests = self._corrected(self.requests, headers, _NAMES[family, "requests"], requests)
                self.tokens = self._corrected(self.tokens, headers, _NAMES[family, "tokens"], tokens)
                self.known = self.requests is not None or self.tokens is not None
                self.silent = 0
                return
        self.silent += 1

    def acquire(self, requests: int, tokens: int) -> float:
        """Take so much if it is there; see :meth:`trunkline.llm.bucket.Lease.acquire`."""
        return acquire(self.requests, self.tokens, requests, tokens)

    def _corrected(
        self, bucket: Bucket | None, headers: Mapping[str, str], names: tuple[str, ...], flying: int
    ) -> Bucket | None:
        limit, left = (_count(headers.get(name)) for name in names[:2])
        if left is None:
            return bucket
        burst = float(max(limit or 0, left, 1))
        back = min(seconds(headers.get(names[2], ""), self._wall) or 0.0, LONGEST)
        # A limit that is untouched, or whose reset is not told, is one per minute.
        rate = (burst - left) / back if back > 0 and burst > left else burst / 60
        parties = self._parties
        bucket = bucket or Bucket(rate / parties, burst / parties, self._clock)
        bucket.correct(left / parties - flying, rate / parties, burst / parties)
        return bucket


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and _COUNT.fullmatch(text) else None
