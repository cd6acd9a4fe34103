"""The borrower: an engine's side of the slots and rates that the controller lends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from trunkline.runtime.rates import LeasedRates
from trunkline.runtime.wire import Allot, Ask, Grant, Reclaim, Return

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.llm.http import HttpLLM
    from trunkline.llm.limiter import Limiter
    from trunkline.llm.spec import EndpointSpec
    from trunkline.llm.tenant import Tenant
    from trunkline.runtime.wire import FromWorker

__all__ = ["Borrower"]

_GATHER = 0.02
"""Seconds at least from one message about slots to the next."""

_MOMENT = 0.25
"""Seconds from one look for what nobody uses to the next."""


class _Timer(Protocol):
    def cancel(self) -> None: ...


class Borrower:
    """Asks for slots when requests wait for them, and gives back what is reclaimed, or not used for a moment.

    Args:
        llm: Whose limits are shared.
        parties: How many engines share them.
        send: Takes each message for the controller.
        resized: Called with the number of slots that are held, whenever it has changed.
        later: Calls a function after so many seconds; the running loop's ``call_later`` when None.
    """

    def __init__(
        self,
        llm: EndpointSpec,
        parties: int,
        send: Callable[[FromWorker], None],
        resized: Callable[[int], None],
        later: Callable[[float, Callable[[], None]], _Timer] | None = None,
    ) -> None:
        limits = llm.limits
        rated = limits.requests_per_minute is not None or limits.tokens_per_minute is not None
        self._rates = LeasedRates(limits, send) if rated else None
        self.llm: HttpLLM = llm.open(parties, lease=self._rates)
        assert self.llm.tenant is not None
        self._tenant: Tenant = self.llm.tenant
        self._limiter: Limiter = self.llm.limiter
        self._alone = parties == 1
        self._send = send
        self._resized = resized
        self._later = later or asyncio.get_running_loop().call_later
        self._told = self._tenant.held
        self._rest: _Timer | None = None
        self._stirred = False
        self._limiter.news = self._stir
        if self._rates is not None:
            self._rates.waiting = lambda: sum(endpoint.gate.waiting for endpoint in self.llm.endpoints)
        self._moment = self._later(_MOMENT, self._tick)

    def take(self, message: Grant | Reclaim | Allot) -> None:
        """Take a message of the controller."""
        match message:
            case Grant(slots):
                self._tenant.grant(slots)
                self._resized(self._tenant.held[0])
                self._stir()
            case Reclaim(slots):
                self._tenant.reclaim(slots)
                self._look()
            case Allot(requests, tokens) if self._rates is not None:
                self._rates.allot(requests, tokens)
                self._limiter.refunded()

    def close(self) -> None:
        """Ask for nothing any more."""
        self._limiter.news = lambda: None
        self._moment.cancel()
        if self._rest is not None:
            self._rest.cancel()

    def _stir(self) -> None:
        """Look soon: at the end of this tick, but a moment after the last time."""
        self._stirred = True
        if self._rest is None:
            self._rest = self._later(0, self._rested)

    def _rested(self) -> None:
        self._rest = None
        if self._stirred:
            self._stirred = False
            self._look()
            self._rest = self._later(_GATHER, self._rested)

    def _look(self) -> None:
        """Return what is back, and ask for what is lacking."""
        back = self._tenant.repaid()
        wishes, held = self._tenant.wishes, self._tenant.held
        if any(back):
            self._told = wishes
            self._send(Return(back, wishes))
            self._resized(held[0])
        # What the controller knows is that more is wanted; it need not know of every request less.
        if any(
            wish > have and not wish <= told < 2 * wish
            for wish, have, told in zip(wishes, held, self._told, strict=True)
        ):
            self._told = wishes
            self._send(Ask(wishes))

    def _tick(self) -> None:
        """Give back what was not used for a moment."""
        self._moment = self._later(_MOMENT, self._tick)
        if self._rates is not None:
            self._rates.unused()
        if not self._alone:
            self._tenant.unused()
            self._look()
