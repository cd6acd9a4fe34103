"""Admission of requests: slots of the run and of each endpoint, and rates."""

from __future__ import annotations

import asyncio
import math
import re
import sys
import time
from collections import deque
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from trunkline._internal.aio import InterruptibleSleep
from trunkline.llm.limits.token_bucket import LONGEST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from trunkline.llm.http.transport import Body
    from trunkline.llm.limits.adaptive_window import Window
    from trunkline.llm.limits.token_bucket import RateLease, ServerRateLimits


# A quote inside a JSON string is escaped, so that no message can hold this.
_MAX_TOKENS: Final = re.compile(rb'"max_(?:completion_|new_)?tokens":(\d{1,9})')
_EDGE: Final = 4096

_MOMENT: Final = 0.5
"""Seconds that a narrow window waits for its first answer: a wrong key is refused sooner."""

_LOOK: Final = 1.0
"""Seconds after which a wait for an endpoint's own rate is reconsidered."""


def estimate(body: Body, n: int) -> int:
    """Estimate the tokens of a request: a quarter of its bytes, and ``max_tokens`` for each of ``n`` draws."""
    # Sampling stands after the messages or before them; the messages may be long.
    pieces = [body] if isinstance(body, bytes) else body
    found = _MAX_TOKENS.search(pieces[-1][-_EDGE:]) or _MAX_TOKENS.search(pieces[0][:_EDGE])
    return sum(map(len, pieces)) // 4 + (n * int(found[1]) if found else 0)


class Limiter:
    """Admits requests where a slot of the run, a slot of the endpoint and all rates allow it, the longest wait first.

    Where nothing limits, ``enter`` is a few comparisons and two sums. ``owed`` slots are lost as soon as requests
    complete, and counted in ``back``; see ``SharedSlots``. ``on_change`` is called when a request must wait for a
    slot, and when a slot that is owed is back.
    """

    def __init__(
        self,
        concurrency: int,
        lease: RateLease | None = None,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        later: Callable[[float, Callable[[EndpointQueue], None], EndpointQueue], asyncio.TimerHandle] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.free = concurrency
        self._held = False
        self.owed = self.back = 0
        self._lined_up = 0
        self.on_change: Callable[[], object] = lambda: None
        self.wakes: list[Callable[[], None]] = []
        self._lease = lease
        self._sleep = sleep
        self._later = later
        self._clock = clock
        self._waiting: dict[EndpointQueue, None] = {}
        self._numbers = count()
        self._openings: dict[EndpointQueue, asyncio.TimerHandle] = {}
        # Held by the one request, of the first ones of all queues, that is next to take from the run's rates.
        self._rates = asyncio.Lock()
        self._refund = InterruptibleSleep(sleep)

    def enter(self, queue: EndpointQueue) -> bool:
        """Admit a request at once where nothing limits it; else it must ``wait``."""
        if (
            self.free <= 0
            or self._held
            or queue.waiting
            or queue.closed
            or queue.in_flight >= queue.window.size
            or queue.in_flight >= queue.slots
            or queue.rate_limits.known
            or self._lease is not None
        ):
            return False
        self.free -= 1
        queue.in_flight += 1
        return True

    async def wait(self, queue: EndpointQueue, tokens: int, *, probe: bool = False) -> bool:
        """Wait until a request or a ``probe`` may be sent; False if the queue closed: try another endpoint."""
        queue.waiting += 1
        try:
            if self._lease is None and not queue.rate_limits.known:
                return await self._slot(queue, probe=probe)
            async with queue.turn:
                if queue.closed and not probe:
                    return False
                await self._book(queue, tokens)
                try:
                    entered = await self._slot(queue, probe=probe)
                except BaseException:
                    self._unbook(queue, tokens)
                    raise
                if not entered:
                    self._unbook(queue, tokens)
                    return False
                queue.ahead = 0
                return True
        finally:
            queue.waiting -= 1

    def grant(self, queue: EndpointQueue, most: int) -> int:
        """Admit up to ``most`` requests that wait in a turn engine, which are sent at once; return how many."""
        window = queue.window
        if window.size < window.cap:
            window.grow(self._clock())
        if self._held or queue.row:
            return 0
        room = min(self.free, queue.slots - queue.in_flight, math.ceil(window.size) - queue.in_flight)
        granted = max(0, min(most, room))
        self.free -= granted
        queue.in_flight += granted
        if granted < most:
            self.on_change()
        return granted

    def leave(self, queue: EndpointQueue, booked: int = 0, spent: int | None = None, *, count: int = 1) -> None:
        """Note that a request is over: the tokens it waited with, 0 if it entered at once, and those it took.

        Several that entered at once may leave together.
        """
        queue.in_flight -= count
        queue.tokens -= booked
        if self.owed or queue.owed:
            for _ in range(count):
                self._give_up(queue)
        else:
            self.free += count
        if self._lease is not None and spent is not None:
            self._lease.acquire(0, spent - booked)
            self._refund.wake()
        if self._waiting:
            self.admit()
        elif self._lined_up:
            self._wake()

    def line_up(self, queue: EndpointQueue, more: int) -> None:
        """Note that more requests of a turn engine, or fewer, wait for a slot."""
        queue.queued += more
        self._lined_up += more

    def refunded(self) -> None:
        """Look again whether the rates that a request waits for are there."""
        self._refund.wake()

    def begun(self, queue: EndpointQueue) -> None:
        """Note that a request was sent through a narrow window, which opens a moment after the first one."""
        if queue not in self._openings:
            later = self._later or asyncio.get_running_loop().call_later
            self._openings[queue] = later(_MOMENT, self.open, queue)

    def open(self, queue: EndpointQueue) -> None:
        """Open a narrow window: a request was served, or takes long."""
        queue.window.open()
        opening = self._openings.pop(queue, None)
        if opening is not None:
            opening.cancel()
            self.admit()

    def hold(self) -> None:
        self._held = True

    def close(self) -> None:
        for opening in self._openings.values():
            opening.cancel()

    @property
    def counts_tokens(self) -> bool:
        """Whether the run has rates, so that the tokens of every request must be estimated."""
        return self._lease is not None

    async def _book(self, queue: EndpointQueue, tokens: int) -> None:
        """Take what a request needs out of all rates, as soon as it is there."""
        # Headers of answers correct the rates meanwhile, so the wait is not slept in one piece.
        slept = 0.0
        while slept < LONGEST and queue.rate_limits.known and (wait := queue.rate_limits.acquire(1, tokens)) > 0:
            wait = min(wait, _LOOK)
            await self._sleep(wait)
            slept += wait
        queue.ahead, queue.tokens = 1, queue.tokens + tokens
        if self._lease is None:
            return
        try:
            async with self._rates:
                while (wait := self._lease.acquire(1, tokens)) > 0:
                    await self._refund.wait(wait)
        except BaseException:
            self._unquote(queue, tokens)
            raise

    def _unbook(self, queue: EndpointQueue, tokens: int) -> None:
        self._unquote(queue, tokens)
        if self._lease is not None:
            self._lease.acquire(-1, -tokens)
            self._refund.wake()

    @staticmethod
    def _unquote(queue: EndpointQueue, tokens: int) -> None:
        queue.ahead, queue.tokens = 0, queue.tokens - tokens
        if queue.rate_limits.known:
            queue.rate_limits.acquire(-1, -tokens)

    async def _slot(self, queue: EndpointQueue, *, probe: bool) -> bool:
        """Take a slot, now or when one is handed over; False if the queue is closed."""
        if queue.closed and not probe:
            return False
        if self.free > 0 and not self._held and queue.first() is None and self._fits(queue):
            self._take(queue)
            return True
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        queue.row.append((next(self._numbers), waiter))
        self._waiting[queue] = None
        self.on_change()
        try:
            return await waiter
        except asyncio.CancelledError:
            # A slot may have been handed over in the moment of the cancellation.
            if waiter.done() and not waiter.cancelled() and waiter.result():
                self.leave(queue)
            raise

    def admit(self) -> None:
        """Hand free slots to waiting requests, the longest wait first."""
        while self.free > 0 and not self._held:
            waiting = [(number, queue) for queue in self._waiting if (number := queue.first()) is not None]
            fitting = [one for one in waiting if self._fits(one[1])]
            if not fitting:
                break
            _, queue = min(fitting, key=itemgetter(0))
            self._take(queue)
            queue.row.popleft()[1].set_result(True)
        if not any(queue.row for queue in self._waiting):
            self._waiting.clear()
        self._wake()

    def _wake(self) -> None:
        for wake in self.wakes:
            wake()

    def _fits(self, queue: EndpointQueue) -> bool:
        window = queue.window
        if window.size < window.cap:
            window.grow(self._clock())
        return queue.in_flight < queue.slots and (queue.urgent or queue.in_flight < window.size)

    def _give_up(self, queue: EndpointQueue) -> None:
        """Take the slots of a completed request from this process, as far as they are owed."""
        if queue.owed:
            queue.owed -= 1
            queue.slots -= 1
            queue.back += 1
        if self.owed:
            self.owed -= 1
            self.back += 1
        else:
            self.free += 1
        self.on_change()

    def _take(self, queue: EndpointQueue) -> None:
        self.free -= 1
        queue.in_flight += 1


class EndpointQueue:
    """The requests of one endpoint: those in flight, and those that wait.

    Attributes:
        in_flight: Requests that were admitted and are not complete.
        ahead: Requests, 0 or 1, whose rates are booked but that are not admitted yet.
        tokens: Tokens that all these are booked for, where rates count tokens.
        waiting: Requests that wait to be admitted.
        queued: Requests of a turn engine that wait for a slot.
        closed: Whether no request is admitted, and waiting ones leave.
        urgent: Whether one request, a probe, passes a full window and a closed queue.
        row: Requests that wait for a slot alone, with numbers in the order in which they came.
        slots: The most that may be in flight, however large the window is; see ``SharedSlots``.
        owed: Slots that are lost as soon as requests complete.
        back: Slots that were lost so since they were last reported.
        on_close: Called when it closes while requests of a turn engine wait.
    """

    def __init__(self, window: Window, rate_limits: ServerRateLimits) -> None:
        self.window = window
        self.rate_limits = rate_limits
        self.in_flight = self.ahead = self.tokens = self.waiting = self.queued = 0
        self.closed = self.urgent = False
        self.row: deque[tuple[int, asyncio.Future[bool]]] = deque()
        # Held by the one request that is getting its rates; an asyncio.Lock is first come, first served.
        self.turn = asyncio.Lock()
        self.slots = sys.maxsize
        self.owed = self.back = 0
        self.on_close: Callable[[], object] = lambda: None

    def close(self) -> None:
        """Admit no request, and let waiting ones leave."""
        self.closed = True
        for _, waiter in self.row:
            if not waiter.done():
                waiter.set_result(False)
        self.row.clear()
        if self.queued:
            self.on_close()

    def first(self) -> int | None:
        """The number of the first request in the row that still waits; None without one."""
        while self.row and self.row[0][1].done():
            self.row.popleft()
        return self.row[0][0] if self.row else None

    def lacking(self) -> int:
        """Slots that waiting requests could use now, as far as the window admits; 0 if rates delay them."""
        waiting = self.queued + (0 if self.first() is None else self.waiting)
        window = self.window
        if not waiting or window.size >= window.cap:
            return waiting
        return min(waiting, max(int(self.urgent), int(window.size) - self.in_flight))


class SharedSlots:
    """The slots of a run, and of each endpoint where these are limited, that one of several processes holds.

    Amounts are lists: slots of the run, then of each limited endpoint in order. There are never more requests in
    flight than slots held: a slot is returned when it is free. A request takes a slot of its endpoint before one of the
    run, so that no two processes wait for each other's. A window adapts on an equal part (``fair``), and beyond it only
    as far as more is held; ``most`` are the slots that this process can use.
    """

    def __init__(self, limiter: Limiter, queues: Sequence[EndpointQueue], fair: int, *, limited: bool) -> None:
        self.fair = fair
        self.most = sys.maxsize
        self._limiter = limiter
        self._queues = tuple(queues)
        self._limited = self._queues if limited else ()
        self._idle = [0] * (1 + len(self._limited))
        limiter.free = 0
        for queue in self._limited:
            queue.slots = 0
        self._resize()

    @property
    def held(self) -> list[int]:
        run = self._limiter.free + sum(queue.in_flight for queue in self._queues)
        return [run, *(queue.slots for queue in self._limited)]

    @property
    def wishes(self) -> list[int]:
        """The slots that are in use, and those that would be if they were held."""
        ours = [queue.in_flight + queue.lacking() for queue in self._queues]
        run = sum(min(want, max(queue.slots, queue.in_flight)) for want, queue in zip(ours, self._queues, strict=True))
        return [min(wish, self.most) for wish in (run, *(ours if self._limited else ()))]

    def grant(self, slots: Sequence[int]) -> None:
        """Take more slots, and admit requests that wait for one."""
        self._limiter.free += slots[0]
        for queue, more in zip(self._limited, slots[1:], strict=True):
            queue.slots += more
        self._resize()
        self._limiter.admit()

    def reclaim(self, slots: Sequence[int]) -> None:
        """Owe so many slots from now on; ``repaid`` says which are back."""
        limiter, held = self._limiter, self.held
        limiter.owed = min(limiter.owed + slots[0], held[0])
        for queue, less in zip(self._limited, slots[1:], strict=True):
            queue.owed = min(queue.owed + less, queue.slots)
        free = min(limiter.owed, max(0, limiter.free))
        limiter.free -= free
        limiter.owed -= free
        limiter.back += free
        for queue in self._limited:
            free = min(queue.owed, queue.slots - queue.in_flight)
            queue.slots -= free
            queue.owed -= free
            queue.back += free
        self._resize()

    def repaid(self) -> list[int]:
        """Return the slots that were owed and are held no longer, since the last call."""
        back = [self._limiter.back, *(queue.back for queue in self._limited)]
        self._limiter.back = 0
        for queue in self._limited:
            queue.back = 0
        self._resize()
        return back

    def unused(self) -> None:
        """Give back what was not needed, at this look and the one before."""
        idle = [max(0, held - wish) for held, wish in zip(self.held, self.wishes, strict=True)]
        less = list(map(min, idle, self._idle))
        self._idle = [now - gone for now, gone in zip(idle, less, strict=True)]
        owed = [self._limiter.owed, *(queue.owed for queue in self._limited)]
        self.reclaim([max(0, gone - due) for gone, due in zip(less, owed, strict=True)])

    def _resize(self) -> None:
        """Let windows be as large as what is held, but no smaller than an equal part."""
        run = self.held[0]
        for queue in self._queues:
            cap = max(self.fair, min(run, queue.slots))
            if cap != queue.window.cap:
                queue.window.resize(cap)
