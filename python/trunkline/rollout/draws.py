"""Asks for draws of one state: in one request where the LLM takes that, else one by one, and for equal ones once."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trunkline.errors import BadRequest, LLMError, ReplyError, RolloutError, TrunklineError
from trunkline.llm.lanes import Lanes
from trunkline.llm.request import part, tap
from trunkline.printable import said
from trunkline.rollout.flights import Flights
from trunkline.store.redact import redact as hide_secrets

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator, Sequence

    from trunkline.llm.cache import Cache
    from trunkline.llm.protocol import LLM, Reply, Request
    from trunkline.rollout.exact import Exact
    from trunkline.rollout.turns import Turns

__all__ = ["Draws", "Part"]

_CACHE = "cache"
"""The endpoint of a reply that was kept: no server is asked for it."""


class Part(NamedTuple):
    """What became of some draws of a request.

    Attributes:
        first: The first of these draws.
        outcome: The reply, whose choices are draws from ``first`` on; or why there is none, for this draw and those
            after it up to the next part.
    """

    first: int
    outcome: Reply | RolloutError


class Draws:
    """Asks one LLM for draws, for all trees of a worker.

    Args:
        llm: Who answers.
        cache: Answers to look up and to keep; None for none.
        exact: Makes prompts whose every token is known; None where tokens do not matter.

    Attributes:
        exact: The same.
        lanes: Where rollouts say whether they run, ask or are in a tool; for an LLM that wants to know (a batcher).
    """

    def __init__(self, llm: LLM, cache: Cache | None = None, exact: Exact | None = None) -> None:
        lanes = getattr(llm, "lanes", None)
        self.lanes = lanes if isinstance(lanes, Lanes) else Lanes()
        self.exact = exact
        self._llm = llm
        self._name = type(llm).__name__
        self._together = bool(getattr(llm, "siblings", False))
        self._cache = cache
        self._flights = Flights()

    async def ask(self, request: Request, turns: Turns) -> list[Part]:
        """Get every draw of a request, and put it on the tree.

        Args:
            request: The request; ``turns`` is its reader.
            turns: Where the draws go.

        Returns:
            Parts in the order of their draws; together they are all draws.

        Raises:
            EndpointError: The endpoint serves nobody.
        """
        if self._cache is not None:
            return await self._cached(self._cache, request, turns)
        return await self._fresh(request, turns, 0)

    async def _fresh(self, request: Request, turns: Turns, first: int) -> list[Part]:
        """Get draws that are in no cache; in the request they count from 0, on the tree from ``first``."""
        return await (self._greedy if request.greedy else self._send)(request, turns, first)

    async def _cached(self, cache: Cache, request: Request, turns: Turns) -> list[Part]:
        """Look every draw up, and ask for runs of those that are missing."""
        parts, missing = [], []
        key = cache.key(request)
        for draw in range(request.n):
            start = time.perf_counter_ns()
            data = cache.get(key, draw)
            try:
                if data is not None:
                    reply = turns(data, draw, 0, _micros(start))
                    reply.endpoint = _CACHE
                    parts.append(Part(draw, reply))
                    continue
            except ReplyError:
                pass  # An answer that another version kept and this one cannot read is asked for again.
            missing.append(draw)
        asked = []
        for start, count in _runs(missing):
            piece = part(request, start, count)
            keep = partial(cache.keep, key, start)
            asked.append(self._fresh(tap(piece, keep), turns, start))
        return sorted(parts + await _all(asked), key=lambda found: found.first)

    async def _greedy(self, request: Request, turns: Turns, first: int) -> list[Part]:
        """Ask once for what temperature 0 makes equal, whoever else asks for it meanwhile."""
        start = time.perf_counter_ns()
        parts: list[Part] = []
        flight = self._flights.find(request)
        if flight is None:
            with self._flights.lead(request) as flight:
                parts = await self._send(tap(part(request, 0, 1), flight.keep), turns, first)
                flight.outcome = parts[0].outcome
        else:
            await flight.landed.wait()
        outcome = flight.outcome
        if outcome is None:
            # Whoever led was cancelled; one of those who waited leads now.
            return await self._greedy(request, turns, first)
        for place in range(first + len(parts), first + request.n):
            if isinstance(outcome, RolloutError):
                return [*parts, Part(place, outcome)]
            if flight.data is not None:
                reply = (request.take or turns)(flight.data, place - first, 0, _micros(start))
                reply.endpoint = outcome.endpoint
            else:
                again = msgspec.structs.replace(outcome, attempts=0, micros=_micros(start))
                reply = turns.adopt(again, place, self._name)
            parts.append(Part(place, reply))
        return parts

    async def _send(self, request: Request, turns: Turns, first: int) -> list[Part]:
        """Send a request; its draws count from ``first`` on."""
        if request.n > 1 and not self._together:
            return await self._one_by_one(request, turns, first, 0)
        try:
            reply = turns.adopt(await self._complete(request), first, self._name)
        except RolloutError as error:
            if request.n == 1 or type(error) is not BadRequest:
                return [Part(first, error)]
            return await self._refused(request, turns, first)
        parts = [Part(first, reply)]
        if len(reply.choices) < request.n:
            # The server takes no notice of n; what it gave is the first draw.
            self._together = False
            parts += await self._one_by_one(request, turns, first, len(reply.choices))
        return parts

    async def _refused(self, request: Request, turns: Turns, first: int) -> list[Part]:
        """Find out whether a request was refused because of its n: then the first draw alone is answered."""
        alone = await self._send(part(request, 0, 1), turns, first)
        if isinstance(alone[0].outcome, RolloutError):
            return alone
        self._together = False
        return alone + await self._one_by_one(request, turns, first, 1)

    async def _one_by_one(self, request: Request, turns: Turns, first: int, start: int) -> list[Part]:
        """Send a request for each draw from ``start`` on, at once."""
        return await _all(self._send(part(request, draw, 1), turns, first + draw) for draw in range(start, request.n))

    async def _complete(self, request: Request) -> Reply:
        """Ask the LLM. Whatever somebody's own LLM raises ends the rollouts that asked, and no other."""
        try:
            return await self._llm.complete(request)
        except TrunklineError:
            raise
        except asyncio.CancelledError:
            if (own := asyncio.current_task()) is not None and own.cancelling():
                raise
            raise LLMError(f"{self._name} was cancelled from within") from None
        except Exception as error:
            message = hide_secrets(said(error))
            raise LLMError(f"{self._name} raised {type(error).__name__}: {message}") from error


async def _all(work: Iterable[Coroutine[None, None, list[Part]]]) -> list[Part]:
    """Do things at once, and gather what they return in their order."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except ExceptionGroup as problems:
        raise problems.exceptions[0] from None
    return [found for task in tasks for found in task.result()]


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of consecutive numbers in ascending ones, as (first, count)."""
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        found = [number for _, number in run]
        yield found[0], len(found)


def _micros(start: int) -> int:
    return (time.perf_counter_ns() - start) // 1000
