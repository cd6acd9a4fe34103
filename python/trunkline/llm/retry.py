"""When to ask again, and after how long."""

from __future__ import annotations

import random
import time
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import msgspec

from trunkline.bounds import number, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Backoff", "retry_after"]


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """How a failing call is repeated. All times are seconds.

    Attributes:
        attempts: Most requests for one call, the first included.
        base: Ceiling of the first wait; it doubles with each attempt.
        cap: Largest ceiling.
        after_cap: Most that a server's ``Retry-After`` is believed.
        deadline: Most that the attempts and waits of one call may take together.
    """

    attempts: int = 6
    base: float = 0.5
    cap: float = 30.0
    after_cap: float = 120.0
    deadline: float = 3600.0

    def __post_init__(self) -> None:
        whole("attempts", self.attempts, 1)
        for name in ("base", "cap", "after_cap", "deadline"):
            number(name, getattr(self, name), 0, unit="seconds")

    def delay(self, attempt: int, after: float | None = None, draw: Callable[[], float] = random.random) -> float:
        """Seconds to wait before the next attempt.

        Without a wish of the server, a uniform draw below the ceiling of this attempt (full jitter). With
        one, that time and up to a tenth more, so that callers told the same moment do not come back at once.

        Args:
            attempt: Attempts made so far, from 1.
            after: What the server asked for.
            draw: Gives a number from 0 to 1.
        """
        if after is not None:
            return min(after, self.after_cap) * (1.0 + 0.1 * draw())
        return min(self.cap, self.base * 2.0 ** min(attempt - 1, 60)) * draw()


def retry_after(headers: Mapping[str, str], now: Callable[[], float] = time.time) -> float | None:
    """Read how long a server asks to wait: ``retry-after-ms``, or ``Retry-After`` in seconds or as a date.

    Args:
        headers: Answer headers; the mapping must not mind case.
        now: The wall clock, seconds since the epoch.

    Returns:
        Seconds, or None if there is no wish or none that makes sense (negative, no number, a past date).
    """
    millis = headers.get("retry-after-ms")
    if millis is not None:
        value = _seconds(millis)
        if value is not None:
            return value / 1000
    text = headers.get("Retry-After")
    if text is None:
        return None
    value = _seconds(text)
    if value is not None:
        return value
    try:
        moment = parsedate_to_datetime(text)
    except (TypeError, ValueError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    wait = moment.timestamp() - now()
    return wait if wait >= 0 else None


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value >= 0 else None
