"""Who may send now: slots of the run and of each endpoint, and rates, first come first served."""

from __future__ import annotations

import asyncio
import re
import time
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from trunkline.llm.bell import Bell
from trunkline.llm.quota import LONGEST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trunkline.llm.bucket import Lease
    from trunkline.llm.gate import Gate
    from trunkline.llm.transport import Body

__all__ = ["Limiter", "estimate"]

# A quote inside a JSON string is escaped, so that no message can hold this.
_MAX_TOKENS: Final = re.compile(rb'"max_(?:completion_|new_)?tokens":(\d{1,9})')
_EDGE: Final = 4096

_MOMENT: Final = 0.5
"""Seconds that a narrow window waits for its first answer. A wrong key is told sooner; a reply may take minutes."""

_LOOK: Final = 1.0
"""Seconds after which a wait for an endpoint's own rate is reconsidered."""


def estimate(body: Body, n: int) -> int:
    """Tokens that a request may come to: a quarter of its bytes, and for each draw what it may generate if it says so.

    Args:
        body: The request's body, in one piece or in several.
        n: Draws it asks for.
    """
    # Sampling stands after the messages or before them; the messages may be long.
    pieces = [body] if isinstance(body, bytes) else body
    found = _MAX_TOKENS.search(pieces[-1][-_EDGE:]) or _MAX_TOKENS.search(pieces[0][:_EDGE])
    return sum(map(len, pieces)) // 4 + (n * int(found[1]) if found else 0)


class Limiter:
    """Lets requests in where a slot of the run, a slot of the endpoint and all rates allow it.

    At each gate requests enter in the order they came; of several gates' first ones, the one that has waited longest
    for a slot gets it. Where nothing limits, :meth:`enter` is a few comparisons and two sums.

    Args:
        concurrency: Most requests in flight, over all gates.
        lease: The run's rates; None where there are none.
        sleep: Waits for a rate.
        later: Calls a function after so many seconds; the running loop's ``call_later`` when None.
        clock: Monotonic seconds.

    Attributes:
        free: Slots of the run that are in nobody's use.
        owed: How many slots are lost as soon as requests come back; see :mod:`.tenant`.
        back: How many were lost so, until somebody asks.
        news: Called when a request must wait for a slot, and when a slot that is owed is back.
    """

    def __init__(
        self,
        concurrency: int,
        lease: Lease | None = None,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        later: Callable[[float, Callable[[Gate], None], Gate], asyncio.TimerHandle] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.free = concurrency
        self._held = False
        self.owed = self.back = 0
        self.news: Callable[[], None] = _nobody
        self._lease = lease
        self._sleep = sleep
        self._later = later
        self._clock = clock
        self._parked: dict[Gate, None] = {}
        self._numbers = count()
        self._openings: dict[Gate, asyncio.TimerHandle] = {}
        # Held by the one request, of all gates' first ones, that is next to get its share of the run's rates.
        self._rates = asyncio.Lock()
        self._refund = Bell(sleep)

    def enter(self, gate: Gate) -> bool:
        """Let a request in at once, where nobody waits and nothing limits; else it must :meth:`wait`."""
        if (
            self.free <= 0
            or self._held
            or gate.waiting
            or gate.closed
            or gate.in_flight >= gate.window.size
            or gate.in_flight >= gate.slots
            or gate.quota.known
            or self._lease is not None
        ):
            return False
        self.free -= 1
        gate.in_flight += 1
        return True

    async def wait(self, gate: Gate, tokens: int, *, probe: bool = False) -> bool:
        """Wait until a request may be sent; it must then :meth:`leave`.

        Args:
            gate: Where to.
            tokens: What it may come to; see :func:`estimate`.
            probe: Whether it is to find out if a closed endpoint is up.

        Returns:
            False if the gate closed meanwhile: try another one.
        """
        gate.waiting += 1
        try:
            if self._lease is None and not gate.quota.known:
                return await self._slot(gate, probe=probe)
            async with gate.turn:
                if gate.closed and not probe:
                    return False
                await self._book(gate, tokens)
                try:
                    entered = await self._slot(gate, probe=probe)
                except BaseException:
                    self._unbook(gate, tokens)
                    raise
                if not entered:
                    self._unbook(gate, tokens)
                    return False
                gate.ahead = 0
                return True
        finally:
            gate.waiting -= 1

    def leave(self, gate: Gate, booked: int = 0, spent: int | None = None) -> None:
        """Note that a request is over.

        Args:
            gate: Where it had been let in.
            booked: The tokens it waited with; 0 if it entered at once.
            spent: The tokens it really took; None if that is not known.
        """
        gate.in_flight -= 1
        gate.tokens -= booked
        if self.owed or gate.owed:
            self._give_up(gate)
        else:
            self.free += 1
        if self._lease is not None and spent is not None:
            self._lease.acquire(0, spent - booked)
            self._refund.ring()
        if self._parked:
            self.admit()

    def refunded(self) -> None:
        """Look again whether the rates that somebody waits for are there."""
        self._refund.ring()

    def begun(self, gate: Gate) -> None:
        """Note that a request was sent through a narrow window, which opens a moment after the first."""
        if gate not in self._openings:
            later = self._later or asyncio.get_running_loop().call_later
            self._openings[gate] = later(_MOMENT, self.open, gate)

    def open(self, gate: Gate) -> None:
        """Open a window that is still narrow: it has served, or will say nothing soon."""
        gate.window.open()
        opening = self._openings.pop(gate, None)
        if opening is not None:
            opening.cancel()
            self.admit()

    def hold(self) -> None:
        """Let nobody in any more: who waits, and who comes, waits until it is cancelled."""
        self._held = True

    def close(self) -> None:
        """Stop every timer."""
        for opening in self._openings.values():
            opening.cancel()

    @property
    def counts_tokens(self) -> bool:
        """Whether the run has rates, so that tokens must be estimated wherever a request goes."""
        return self._lease is not None

    async def _book(self, gate: Gate, tokens: int) -> None:
        """Take what the request needs out of all rates, as soon as it is there."""
        # Headers of answers correct the quota meanwhile, so the wait is not slept in one piece.
        slept = 0.0
        while slept < LONGEST and gate.quota.known and (wait := gate.quota.acquire(1, tokens)) > 0:
            wait = min(wait, _LOOK)
            await self._sleep(wait)
            slept += wait
        gate.ahead, gate.tokens = 1, gate.tokens + tokens
        if self._lease is None:
            return
        try:
            async with self._rates:
                while (wait := self._lease.acquire(1, tokens)) > 0:
                    await self._refund.wait(wait)
        except BaseException:
            self._unquote(gate, tokens)
            raise

    def _unbook(self, gate: Gate, tokens: int) -> None:
        self._unquote(gate, tokens)
        if self._lease is not None:
            self._lease.acquire(-1, -tokens)
            self._refund.ring()

    @staticmethod
    def _unquote(gate: Gate, tokens: int) -> None:
        gate.ahead, gate.tokens = 0, gate.tokens - tokens
        if gate.quota.known:
            gate.quota.acquire(-1, -tokens)

    async def _slot(self, gate: Gate, *, probe: bool) -> bool:
        """Take a slot, now or when one is handed over; False if the gate is closed."""
        if gate.closed and not probe:
            return False
        if self.free > 0 and not self._held and gate.first() is None and self._fits(gate):
            self._take(gate)
            return True
        parked: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        gate.row.append((next(self._numbers), parked))
        self._parked[gate] = None
        self.news()
        try:
            return await parked
        except asyncio.CancelledError:
            # A slot may have been handed over in the moment of the cancellation.
            if parked.done() and not parked.cancelled() and parked.result():
                self.leave(gate)
            raise

    def admit(self) -> None:
        """Hand all free slots to those who wait for one, the longest wait first."""
        while self.free > 0 and not self._held:
            waiting = [(number, gate) for gate in self._parked if (number := gate.first()) is not None]
            fitting = [one for one in waiting if self._fits(one[1])]
            if not fitting:
                break
            _, gate = min(fitting, key=itemgetter(0))
            self._take(gate)
            gate.row.popleft()[1].set_result(True)
        if not any(gate.row for gate in self._parked):
            self._parked.clear()

    def _fits(self, gate: Gate) -> bool:
        window = gate.window
        if window.size < window.cap:
            window.grow(self._clock())
        return gate.in_flight < gate.slots and (gate.urgent or gate.in_flight < window.size)

    def _give_up(self, gate: Gate) -> None:
        """Take the slots of a request that is over from this process, as far as they are owed."""
        if gate.owed:
            gate.owed -= 1
            gate.slots -= 1
            gate.back += 1
        if self.owed:
            self.owed -= 1
            self.back += 1
        else:
            self.free += 1
        self.news()

    def _take(self, gate: Gate) -> None:
        self.free -= 1
        gate.in_flight += 1


def _nobody() -> None:
    """There is nobody to tell: the slots are this process's own."""
