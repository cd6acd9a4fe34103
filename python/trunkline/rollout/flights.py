"""Requests that are out, so that an equal one need not be sent."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trunkline.errors import RolloutError
    from trunkline.llm.protocol import Reply, Request

__all__ = ["Flight", "Flights"]

_SAMPLE = 256
"""Bytes of a body that tell most requests apart before whole bodies are compared."""


class Flight:
    """A request on its way.

    Attributes:
        landed: Set when there is an outcome, or there will be none.
        outcome: The reply or why there is none; None while it is out, and when whoever sent it was cancelled.
        data: The bytes of the answer, where the LLM received any.
    """

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.landed = asyncio.Event()
        self.outcome: Reply | RolloutError | None = None
        self.data: bytes | None = None

    def keep(self, _first: int, _count: int, data: bytes) -> None:
        """Note the bytes of the answer."""
        self.data = data


class Flights:
    """Finds a request that is out and equal to another but for its draws: same body up to ``Request.constant``."""

    def __init__(self) -> None:
        self._out: dict[tuple[str, int, bytes, str | None], list[Flight]] = {}

    def find(self, request: Request) -> Flight | None:
        """Return the flight that has what a request asks for."""
        flights = self._out.get(_key(request))
        if not flights:
            return None
        start = request.body[: request.constant]
        return next((flight for flight in flights if flight.body.startswith(start)), None)

    @contextmanager
    def lead(self, request: Request) -> Iterator[Flight]:
        """Let others find a request while it is out; it lands at the end of the block."""
        key, flight = _key(request), Flight(request.body)
        flights = self._out.setdefault(key, [])
        flights.append(flight)
        try:
            yield flight
        finally:
            flights.remove(flight)
            if not flights:
                self._out.pop(key, None)
            flight.landed.set()


def _key(request: Request) -> tuple[str, int, bytes, str | None]:
    """What is quick to compare: among others the middle of the body, as all bodies of an agent end alike."""
    end = request.constant
    return request.route, end, request.body[end // 2 : min(end // 2 + _SAMPLE, end)], request.weights
