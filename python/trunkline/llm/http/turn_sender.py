"""The requests of a turn engine, sent to the endpoints of one LLM."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeAlias

from trunkline.llm.http.transport import CONNECTION_BROKE, Answer, Headers, TransportError
from trunkline.llm.limits.router import SILENT
from trunkline.llm.receiver import FirstAttempt
from trunkline.llm.request import CHAT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trunkline._core import ExchangeTable, TurnEngine
    from trunkline.llm.http.connection import Actions, ArrivedAnswer, FailedRequest
    from trunkline.llm.http.direct_transport import DirectTransport
    from trunkline.llm.limits.rate_limiter import Limiter
    from trunkline.llm.limits.router import Endpoint, Router
    from trunkline.llm.receiver import AnsweredDraws, RequestedDraws, TurnReceiver, UnansweredDraws

__all__ = ["TurnSender"]

AnsweredOf: TypeAlias = "tuple[int, tuple[list[AnsweredDraws], list[tuple[float, int]], list[dict[bytes, bytes]]]]"
"""What the answers of a target became; see `TurnEngine` in `_core.pyi`."""


class TurnSender:
    """Decides in each pass of the event loop which requests of a model leave, and to which endpoint.

    What needs to wait for more than a slot (rates, an endpoint that is closed or must be probed) is handed back.
    """

    def __init__(
        self,
        engine: TurnEngine[Any],
        model: int,
        router: Router,
        limiter: Limiter,
        transport: DirectTransport,
        headers: Mapping[str, str],
        session: Sequence[str],
        limit: float,
        receiver: TurnReceiver,
    ) -> None:
        self.in_flight = 0
        self._engine = engine
        self._model = model
        self._router = router
        self._limiter = limiter
        self._transport = transport
        self._table: ExchangeTable = transport.driver.table
        self._limit = limit
        self._receiver = receiver
        self._endpoints: dict[int, Endpoint] = {}
        self._targets: dict[Endpoint, int] = {}
        for endpoint in router.endpoints:
            origin, path, host = transport.aim(endpoint.target(CHAT)[0])
            target = engine.target(origin, path, host, list(headers.items()), list(session))
            self._endpoints[target], self._targets[endpoint] = endpoint, target
        self.asked = False
        self._watched = True
        self._passing = False
        transport.driver.turns = self
        for endpoint in router.endpoints:
            endpoint.queue.on_close = self.wake
        limiter.wakes.append(self.wake)

    def wake(self) -> None:
        """Look in this pass whether requests can leave."""
        self.asked = True
        if not self._passing:
            self._transport.driver.wake()

    def give_up(self, ask: int) -> tuple[Sequence[Any], bool]:
        """A rollout does not wait any more: what waited for a request that ends with it, and whether it was sent."""
        waiters, found = self._engine.abandon(ask, self._table, time.monotonic())
        if found is None:
            return waiters, False
        target, sent = found
        endpoint = self._endpoints[target]
        if sent:
            self._left(endpoint)
            self._transport.driver.wake()
        else:
            self._limiter.line_up(endpoint.queue, -1)
        return waiters, sent

    def hold(self, *, abort: bool) -> None:
        """Hand back what is not sent, and with ``abort`` what is."""
        self._engine.gather(self._model, time.monotonic())
        self._hand_back(self._engine.take(self._model))
        for target, endpoint in self._endpoints.items():
            self._empty(target, endpoint)
        if abort:
            for target, taken, times, _, _ in self._engine.recall(self._model, self._table, time.monotonic()):
                self._left(self._endpoints[target])
                self._receiver.recalled(taken, times[2])
            self._transport.driver.wake()

    def land(self, now: float) -> tuple[Sequence[ArrivedAnswer], Sequence[FailedRequest]]:
        """Take what has come out of the table, and send what may leave; returns what others have sent."""
        arrived, failed, turned, missed, unsent = self._engine.land(self._table, now, self._watched)
        self._passing = True
        try:
            if turned:
                self._turned(turned, now)
            for lost in missed:
                self._missed(lost)
            if unsent:
                self._hand_back(unsent)
            if self.asked or turned:
                self._send(now)
        finally:
            self._passing = False
        return arrived, failed

    def act(self, now: float) -> Actions:
        """Take what is to be done out of the table."""
        return self._engine.act(self._table, now)

    def request(self, token: int) -> memoryview:
        """Make a long request."""
        return self._engine.request(token, self._table)

    def refused(self, token: int, error: BaseException) -> None:
        """No connection could be made for a request."""
        target, taken, (queued, _, took), _, _ = self._engine.refused(token, time.monotonic())
        self._transport.driver.wake()
        if not isinstance(error, TransportError):
            error = TransportError(f"{CONNECTION_BROKE} ({type(error).__name__})")
        self._fail(self._endpoints[target], taken, error, queued, took)

    def _send(self, now: float) -> None:
        self.asked = False
        engine, router = self._engine, self._router
        waiting = engine.gather(self._model, now)
        if waiting and len(router.endpoints) == 1 and (endpoint := router.choose(waiting[0])) is not None:
            self._route(endpoint, len(waiting))
        elif waiting:
            for key in waiting:
                endpoint = router.choose(key)
                if endpoint is None:
                    self._hand_back(engine.take(self._model))
                    break
                self._route(endpoint, 1)
        for target, endpoint in self._endpoints.items():
            queue = endpoint.queue
            if not queue.queued:
                continue
            if queue.closed or endpoint.ejected or queue.rate_limits.known or self._limiter.counts_tokens:
                self._empty(target, endpoint)
                continue
            most = self._limiter.grant(queue, queue.queued)
            if most:
                if queue.window.narrow:
                    self._limiter.begun(queue)
                engine.send(target, most, self._table, self._limit, now)
                self._limiter.line_up(queue, -most)
                self.in_flight += most

    def _route(self, endpoint: Endpoint, count: int) -> None:
        if endpoint.ejected:
            self._router.released(endpoint)  # the probe is sent by those to whom its requests are handed back
        self._engine.route(self._model, self._targets[endpoint], count)
        self._limiter.line_up(endpoint.queue, count)

    def _empty(self, target: int, endpoint: Endpoint) -> None:
        self._limiter.line_up(endpoint.queue, -endpoint.queue.queued)
        self._hand_back(self._engine.take(self._model, target))

    def _hand_back(self, taken: Sequence[tuple[RequestedDraws, float]]) -> None:
        for one, asked in taken:
            self._receiver.missed(one, FirstAttempt(asked))

    def _turned(self, answered: Sequence[AnsweredOf], now: float) -> None:
        for target, (answers, replies, headers) in answered:
            endpoint = self._endpoints[target]
            queue = endpoint.queue
            for one in headers:
                self._watch(endpoint, one)
            endpoint.refusals = 0
            if endpoint.ejected or endpoint.failures:
                self._router.served(endpoint)
            self.in_flight -= len(replies)
            self._receiver.turned(endpoint.base_url, answers)
            queue.window.replied(replies, queue.in_flight, now)
            self._limiter.leave(queue, count=len(replies))

    def _watch(self, endpoint: Endpoint, headers: dict[bytes, bytes]) -> None:
        """Read the headers of an endpoint's first answers."""
        read = Headers(headers)
        if not endpoint.reached:
            endpoint.reached, endpoint.software = True, read.get("Server", "")
        endpoint.learn(200, read)
        if not endpoint.good:
            endpoint.good = True
            self._limiter.open(endpoint.queue)
        self._watched = any(not one.good or one.queue.rate_limits.silent < SILENT for one in self._router.endpoints)

    def _missed(self, missed: UnansweredDraws) -> None:
        target, taken, (queued, first, took), answer, (fault, detail) = missed
        endpoint = self._endpoints[target]
        outcome: Answer | TransportError
        if answer is None:
            outcome = self._transport.error(fault, detail, self._limit)
        else:
            status, headers, body = answer
            outcome = Answer(status, Headers(headers), body, first)
        self._fail(endpoint, taken, outcome, queued, took)

    def _fail(
        self, endpoint: Endpoint, taken: RequestedDraws, outcome: Answer | TransportError, queued: float, took: float
    ) -> None:
        asked = time.monotonic() - took - queued
        self._receiver.missed(taken, FirstAttempt(asked, (endpoint, outcome), took))
        # After the first step of the task that repeats the request, which notes what the outcome says of the endpoint.
        asyncio.get_running_loop().call_soon(self._left, endpoint)

    def _left(self, endpoint: Endpoint) -> None:
        self.in_flight -= 1
        self._limiter.leave(endpoint.queue)
        self._receiver.left()
