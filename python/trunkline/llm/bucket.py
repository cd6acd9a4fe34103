"""Rates: a token bucket, and the lease through which a run's rates are granted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Bucket", "Lease", "LocalLease", "acquire", "limits_of"]


_AT_ONCE: Final = 1e-6
"""Seconds that are no wait: a sum of floats may fall short by them for ever."""

_REQUESTS, _TOKENS = 1.0, 5.0
"""Seconds of a rate that may go at once. Providers fill their buckets as steadily and let them hold a minute; tokens
need some room, as a request is taken for all that it may generate until its reply tells."""


class Lease(Protocol):
    """Grants requests and tokens out of a run's rates, wherever they are kept."""

    def acquire(self, requests: int, tokens: int) -> float:
        """Take so much if it is there, all or nothing. Only one caller at a time asks again and again.

        Args:
            requests: Requests; negative gives them back, which is always granted.
            tokens: Tokens; as with requests. What a reply really took may differ from what was acquired for it, and
                the difference is acquired or given back then: with ``requests`` 0 it is granted whatever it is.

        Returns:
            0 if it was taken; else the seconds after which it can be there, to ask again.
        """
        ...


class Bucket:
    """Fills at a constant rate up to a burst.

    A take larger than the burst waits for a full bucket and leaves a debt, which those after it wait off. In any minute
    at most ``60 * rate + burst`` and one take are let through, and what was taken before it and is given back in it.

    Args:
        rate: What flows in each second; above 0.
        burst: What it holds when full, and at first.
        clock: Monotonic seconds.
    """

    __slots__ = ("_clock", "_seen", "burst", "level", "rate")

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self.burst = burst
        self.level = burst
        self._clock = clock
        self._seen = clock()

    def wait(self, amount: float) -> float:
        """Seconds until an amount may be taken; 0 if it may be now."""
        self._fill()
        seconds = (min(amount, self.burst) - self.level) / self.rate
        return seconds if seconds > _AT_ONCE else 0.0

    def take(self, amount: float) -> None:
        """Take an amount, into debt if need be, or give a negative one back."""
        self._fill()
        self.level -= amount

    def correct(self, level: float, rate: float, burst: float) -> None:
        """Set what somebody who knows better says is left, and how it fills."""
        self._fill()
        self.rate, self.burst, self.level = rate, burst, min(burst, level)

    def _fill(self) -> None:
        now = self._clock()
        elapsed, self._seen = now - self._seen, now
        # What was given back may stand above the burst: it was let through earlier, and is not lost.
        self.level = max(self.level, min(self.burst, self.level + elapsed * self.rate))


class LocalLease:
    """A run's rates, kept in this process.

    Args:
        requests: Requests a minute; unlimited when None.
        tokens: Tokens a minute; unlimited when None.
        clock: Monotonic seconds.
    """

    def __init__(
        self, requests: float | None, tokens: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._requests, self._tokens = limits_of(requests, tokens, clock)

    def acquire(self, requests: int, tokens: int) -> float:
        """Take so much if it is there; see :meth:`Lease.acquire`."""
        return acquire(self._requests, self._tokens, requests, tokens)


def acquire(first: Bucket | None, second: Bucket | None, requests: int, tokens: int) -> float:
    """Take from a bucket of requests and one of tokens, both or neither; see :meth:`Lease.acquire`."""
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
) -> tuple[Bucket | None, Bucket | None]:
    """Make the buckets of a run's rates: requests and tokens a minute, None for what has no limit."""
    return (
        None if requests is None else _per_minute(requests, _REQUESTS, clock),
        None if tokens is None else _per_minute(tokens, _TOKENS, clock),
    )


def _per_minute(amount: float, seconds: float, clock: Callable[[], float]) -> Bucket:
    return Bucket(amount / 60, max(1.0, amount / 60 * seconds), clock)
