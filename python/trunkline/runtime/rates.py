"""Rates that an engine was allotted of the run's, and how it asks for more."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trunkline.runtime.wire import Draw, Refund

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.llm.limits import Limits

__all__ = ["LeasedRates"]

_PATIENCE = 60.0
"""Seconds to wait for what was asked for; who waits is woken as soon as it is there."""

_RECENT = 8
"""Requests over which the tokens of one are averaged, to know what those that wait will come to."""


class LeasedRates:
    """Grants requests and tokens as long as they last, and asks for more before they are used up.

    It is a :class:`trunkline.llm.bucket.Lease`. What replies took less than was set aside for them is used for the next
    requests; what they took beyond it is owed, and is part of what is asked for.

    Args:
        limits: The run's limits; only which rates have one matters.
        send: Takes each message for the controller.

    Attributes:
        waiting: Tells how many requests wait to be sent.
    """

    def __init__(self, limits: Limits, send: Callable[[Draw | Refund], None]) -> None:
        self._counted = (limits.requests_per_minute is not None, limits.tokens_per_minute is not None)
        self._has = [0 if counted else math.inf for counted in self._counted]
        self._send = send
        self._asked = False
        self._usual = 0.0
        self._used = self._recent = 0
        self.waiting: Callable[[], int] = int

    def acquire(self, requests: int, tokens: int) -> float:
        """Take so much if it is there; see :meth:`trunkline.llm.bucket.Lease.acquire`."""
        if requests > 0:
            if self._lacks(requests, tokens) != (0, 0):
                self._ask(requests, tokens)
                return _PATIENCE
            self._usual += (tokens - self._usual) / _RECENT if self._used or self._usual else tokens
            self._used += requests
        self._has[0] -= requests
        self._has[1] -= tokens
        if requests > 0 and self.waiting() > 1 and self._lacks(1, int(self._usual)) != (0, 0):
            self._ask(1, int(self._usual))
        return 0.0

    def allot(self, requests: int, tokens: int) -> None:
        """Take what was asked for."""
        self._asked = False
        self._has[0] += requests
        self._has[1] += tokens

    def unused(self) -> None:
        """Give back what is more than was used since the last call; say what is owed."""
        self._recent = used = self._used
        self._used = 0
        if self._asked:
            return  # Somebody waits.
        keep = (used, int(used * self._usual))
        excess = [
            int(has) if has < 0 else int(max(0, has - most)) if counted else 0
            for counted, has, most in zip(self._counted, self._has, keep, strict=True)
        ]
        if any(excess):
            self._has = [has - less for has, less in zip(self._has, excess, strict=True)]
            self._send(Refund(excess[0], excess[1]))

    def _lacks(self, requests: int, tokens: int) -> tuple[int, int]:
        lacks = [math.ceil(max(0, need - has)) for need, has in zip((requests, tokens), self._has, strict=True)]
        return lacks[0], lacks[1]

    def _ask(self, requests: int, tokens: int) -> None:
        """Ask for what a request lacks, and for those behind it, unless something was asked for already.

        As many are expected as wait, or as there were lately.
        """
        if self._asked:
            return
        self._asked = True
        behind = max(0, self.waiting() - 1, self._recent)
        least = self._lacks(requests, tokens)
        most = self._lacks(requests + behind, tokens + int(behind * self._usual))
        self._send(Draw(least, most))
