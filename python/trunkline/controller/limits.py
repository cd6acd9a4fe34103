"""The flow of a run's rates: requests and tokens a minute, which the controller portions out to engines."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol

import msgspec

from trunkline.runtime.wire import Amount

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.llm.bucket import Bucket

__all__ = ["Flow"]

_SLICE = 0.25
"""Seconds of a rate that all engines together are given ahead of what they need at once."""

_GATHER = 0.05
"""Seconds at least from one portion to the next where all is taken as it flows, so that few messages are needed."""


class _Timer(Protocol):
    def cancel(self) -> None: ...


class _Draw(msgspec.Struct):
    """What an engine waits for: at least so much, and at most so much, of requests and tokens."""

    seat: int
    least: Amount
    most: Amount


class Flow:
    """Portions rates out, first come first served, a slice of time ahead.

    Who was given something and wants more comes again after all others who wait, so all who are short have equal parts.
    In any minute engines are given at most what the buckets let through; what they send in it beyond that they were
    given before, and that is no more than a slice, and replies that took less than was set aside for them.

    Args:
        requests: What requests are taken from; None where they are not limited.
        tokens: What tokens are taken from; likewise.
        give: Takes a seat, requests and tokens for it.
        later: Calls a function after so many seconds; the running loop's ``call_later`` when None.
    """

    def __init__(
        self,
        requests: Bucket | None,
        tokens: Bucket | None,
        give: Callable[[int, int, int], None],
        later: Callable[[float, Callable[[], None]], _Timer] | None = None,
    ) -> None:
        self._buckets = (requests, tokens)
        self._give = give
        self._later = later
        self._waiting: deque[_Draw] = deque()
        self._seats: set[int] = set()
        self._timer: _Timer | None = None
        self._long = False

    def join(self, seat: int) -> None:
        """Note an engine."""
        self._seats.add(seat)

    def draw(self, seat: int, least: Amount, most: Amount) -> None:
        """Give an engine something as soon as the least it needs is there; in the place of what it waits for now."""
        for draw in self._waiting:
            if draw.seat == seat:
                draw.least, draw.most = least, most
                break
        else:
            self._waiting.append(_Draw(seat, least, most))
        self._serve()

    def refund(self, requests: int, tokens: int) -> None:
        """Take back what an engine did not use; less than 0 is what it used beyond what it had."""
        for bucket, amount in zip(self._buckets, (requests, tokens), strict=True):
            if bucket is not None:
                bucket.take(-amount)
        self._hurry()

    def leave(self, seat: int) -> None:
        """Forget an engine that is gone: what it was given counts as used."""
        self._seats.discard(seat)
        self._waiting = deque(draw for draw in self._waiting if draw.seat != seat)
        self._hurry()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._long = False

    def _serve(self) -> None:
        """Give to those who wait, in their order, unless all was taken a moment ago."""
        if self._timer is not None:
            return
        short = False
        while self._waiting:
            wait = self._wait(self._waiting[0].least)
            if wait > 0:
                self._again(max(wait, _GATHER))
                return
            given = self._portion(self._waiting[0])
            draw = self._waiting.popleft()
            for bucket, amount in zip(self._buckets, given, strict=True):
                if bucket is not None:
                    bucket.take(amount)
            self._give(draw.seat, *given)
            short = short or given[0] < draw.most[0] or given[1] < draw.most[1]
        if short:
            # More is wanted than flows: let something gather.
            self._again(_GATHER)

    def _hurry(self) -> None:
        """Look again soon: what the first one waits for may be there earlier than it seemed."""
        if self._long:
            self.close()
            self._again(_GATHER)

    def _again(self, seconds: float) -> None:
        self._long = seconds > _GATHER
        later = self._later or asyncio.get_running_loop().call_later
        self._timer = later(seconds, self._due)

    def _due(self) -> None:
        self._timer = None
        self._long = False
        self._serve()

    def _portion(self, draw: _Draw) -> Amount:
        """What an engine gets: the least it needs, or its part of a slice, or its part of what is there, if more."""
        part = 1.0
        for bucket, most in zip(self._buckets, draw.most, strict=True):
            if bucket is not None and most > 0:
                ahead = bucket.rate * _SLICE / max(1, len(self._seats))
                part = min(part, ahead / most, max(0.0, bucket.level) / len(self._waiting) / most)
        least, more = draw.least, draw.most
        return max(least[0], int(more[0] * part)), max(least[1], int(more[1] * part))

    def _wait(self, amount: Amount) -> float:
        return max((b.wait(a) for b, a in zip(self._buckets, amount, strict=True) if b is not None), default=0.0)
