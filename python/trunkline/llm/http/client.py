"""HttpLLM: one call over its attempts."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Protocol, TypeVar

from trunkline._internal.text import excerpt, without_key
from trunkline.errors import ArgumentError, EndpointError, LLMError, ReplyError
from trunkline.llm.http.aiohttp_transport import AioTransport, SwitchTransport
from trunkline.llm.http.outcome import REFUSALS, Backoff, Outcome, RequestContext, classify, embedded_status
from trunkline.llm.http.transport import Answer, Transport, TransportError
from trunkline.llm.http.turn_sender import TurnSender
from trunkline.llm.limits.adaptive_window import Window
from trunkline.llm.limits.rate_limiter import Limiter, SharedSlots, estimate
from trunkline.llm.limits.router import Endpoint, Router
from trunkline.llm.limits.token_bucket import LocalRates, ServerRateLimits
from trunkline.llm.request import CHAT
from trunkline.llm.response import read, unusable
from trunkline.llm.types import Limits, Reply, Routing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from trunkline._core import TurnEngine
    from trunkline.llm.http.transport import Body
    from trunkline.llm.limits.token_bucket import RateLease
    from trunkline.llm.receiver import FirstAttempt, TurnReceiver
    from trunkline.llm.types import Request


__all__ = ["BodyReader", "HttpLLM", "PendingCall"]


UNREACHED_ATTEMPTS: Final = 4
"""Attempts where no endpoint has ever answered: a late start is waited for, a wrong URL is named soon."""

UNUSABLE_ATTEMPTS: Final = 2
"""Attempts that may end in a body that is no completion, before the call is given up."""

_TRIES: Final = 20
"""Attempts that a failure tells of, the last ones."""

_WHOLE: Final = 4
"""What an attempt counts. One that was told to come later, or only found a server still down, counts 1: it says
nothing against the request, and with five retries a minute of 429s or of a restarting server must be survived."""

_HALF: Final = 2
"""What a failure of a server counts that answers such requests when they are repeated."""

_TOGETHER: Final = 2
"""Failures of a server at a request for several draws after which these are asked for one by one."""


T = TypeVar("T")
_Read_co = TypeVar("_Read_co", covariant=True)


class BodyReader(Protocol[_Read_co]):
    """Reads an answer; ``trunkline.llm.types.ReplyReader`` is one that makes replies."""

    def __call__(self, data: bytes, first: int, attempts: int, micros: int) -> _Read_co:
        """Read a body; see ``trunkline.llm.types.ReplyReader``."""
        ...


class PendingCall(Generic[T]):
    """The state of one call.

    Args:
        route: See ``trunkline.llm.types.Request.route``.
        body: What is posted.
        key: The tree's key.
        n: Draws it asks for.
        headers: What is sent with it.
        take: Reads the answer.
        start: The present, in monotonic seconds.
        backoff: How it may be repeated.

    Attributes:
        attempts: Requests sent so far.
        left: Seconds that attempts, backoff and closed endpoints may still take.
        busy: Seconds that its requests were under way, all together.
        last: Seconds of the last of them.
        spent: Tokens it took in the end; None while not known.
        asked: Base URL of the endpoint that was asked last; empty before.
        avoid: The endpoint that failed it last.
        outcome: What came of the last attempt.
        cause: What a retry after it is counted under.
        tries: What came of each attempt that brought nothing, a line each; the last ones of many.
        evidence: The beginning of what was answered last.
    """

    __slots__ = (
        "_backoff",
        "_own",
        "_strikes",
        "_unusable",
        "asked",
        "attempts",
        "avoid",
        "body",
        "busy",
        "cause",
        "evidence",
        "headers",
        "key",
        "last",
        "left",
        "n",
        "outcome",
        "route",
        "spent",
        "start",
        "take",
        "tries",
    )

    def __init__(
        self,
        route: str,
        body: Body,
        key: int,
        n: int,
        headers: Mapping[str, str],
        take: BodyReader[T],
        start: float,
        backoff: Backoff,
    ) -> None:
        self.route = route
        self.body = body
        self.key = key
        self.n = n
        self.headers = headers
        self.take = take
        self.start = start
        self.left = backoff.deadline
        self.busy = self.last = 0.0
        self.spent: int | None = None
        self.attempts = 0
        self.asked = ""
        self.avoid: Endpoint | None = None
        self.outcome: Outcome | None = None
        self.tries: list[str] = []
        self.cause = self.evidence = ""
        self._backoff = backoff
        self._strikes = self._unusable = self._own = 0

    def took(self, seconds: float) -> None:
        """Note how long a request was under way."""
        self.last = seconds
        self.busy += seconds
        self.left -= seconds

    def tried(self, outcome: Outcome, cause: str, evidence: str = "") -> None:
        """Write down what came of an attempt that brought nothing.

        Args:
            outcome: What it means.
            cause: What a retry after it is counted under.
            evidence: The beginning of what was answered, if anything was.
        """
        self.tries = [*self.tries[1 - _TRIES :], f"{self.attempts}: {outcome.message} ({self.last:.2f} s)"]
        self.cause, self.evidence = cause, evidence

    def failed(self, outcome: Outcome, weight: int, *, unusable: bool) -> None:
        """Note an attempt that brought nothing.

        Args:
            outcome: Why.
            weight: What it counts, of ``_WHOLE``.
            unusable: Whether it brought a body that is no completion.
        """
        self.outcome = outcome
        self._strikes += weight
        self._unusable += unusable
        self._own += outcome.own

    def over(self, *, reached: bool, endpoints: int) -> bool:
        """Whether it has had all its attempts.

        Args:
            reached: Whether any endpoint has ever answered.
            endpoints: How many there are.
        """
        if not reached and self.attempts >= max(UNREACHED_ATTEMPTS, endpoints):
            return True
        if self.n > 1 and self._own >= _TOGETHER:
            return True
        return self._strikes > _WHOLE * (self._backoff.attempts - 1) or self._unusable >= UNUSABLE_ATTEMPTS


_TREES: Final = 4096
"""Trees whose headers are kept."""

_SESSION: Final = ("X-Session-ID", "X-SMG-Routing-Key")


_EVIDENCE: Final = 2000
"""Characters of an answer that was no reply which a failure keeps."""


class HttpLLM:
    """A model behind one or more OpenAI-compatible base URLs.

    A request goes to the endpoint that its tree is at, once that one and the run's limits let it in; a failing
    attempt is repeated, elsewhere if there is an elsewhere. See
    ``trunkline.llm.limits.router`` and ``trunkline.llm.limits.rate_limiter``.

    Args:
        base_urls: Base URLs, ``/chat/completions`` left out.
        key: The bearer key, or None to send none.
        key_env: Name of the environment variable it came from, for messages.
        headers: Further headers of each request; they win over ours. Their values are secret, as the key is.
        max_concurrency: Most requests in flight at once; the others wait without a deadline.
        timeout: Seconds for one attempt.
        siblings: Whether draws of one state are asked for in one request.
        backoff: How a failing call is repeated.
        limits: Rates, and how much may be in flight at one endpoint.
        routing: How endpoints are chosen.
        lease: Grants the rates of ``limits`` where several processes share them; this process alone when None.
        parties: How many processes share the limits; where it is not 0, slots come through ``shared_slots`` alone.
        transport: What posts; a ``SwitchTransport`` when None. It is closed with this object.
        sleep: Waits between attempts.
        draw: Jitter, from 0 to 1.
        clock: Monotonic seconds.

    Attributes:
        limiter: Who lets requests in.
        shared_slots: What this process holds of slots that it shares with others; None where it does not.
        retry_causes: Attempts beyond the first, by what the one before came to: a status such as ``429``, ``timeout``,
            ``no connection``, ``connection lost``, or ``unusable reply``.
    """

    def __init__(
        self,
        base_urls: Sequence[str],
        key: str | None = None,
        *,
        key_env: str = "OPENAI_API_KEY",
        headers: Mapping[str, str] | None = None,
        max_concurrency: int = 256,
        timeout: float = 600.0,
        siblings: bool = True,
        backoff: Backoff | None = None,
        limits: Limits | None = None,
        routing: Routing | None = None,
        lease: RateLease | None = None,
        parties: int = 0,
        transport: Transport | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        draw: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limits, self._routing = limits or Limits(), routing or Routing()
        self._secret = _secrets(key or "", headers or {})
        most = min(max_concurrency, limits.endpoint_concurrency or max_concurrency)
        fair = -(-most // max(1, parties))
        endpoints = [
            Endpoint(
                url,
                key_env,
                self._secret,
                Window(fair, adaptive=limits.adaptive, slowdown=limits.slowdown),
                ServerRateLimits(clock, parties=max(1, parties)),
            )
            for url in base_urls
        ]
        if lease is None and (limits.requests_per_minute or limits.tokens_per_minute):
            lease = LocalRates(limits.requests_per_minute, limits.tokens_per_minute, clock)
        self._router = Router(endpoints, self._routing, sleep=sleep, draw=draw, clock=clock)
        self.limiter = Limiter(max_concurrency, lease, sleep=sleep, clock=clock)
        queues = [endpoint.queue for endpoint in endpoints]
        self.shared_slots = SharedSlots(self.limiter, queues, fair, limited=most < max_concurrency) if parties else None
        for queue in queues:
            queue.window.begin()
        ours = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._headers = _joined(ours, headers or {})
        named = self._routing.session_headers
        if named is None:
            named = all(endpoint.plain for endpoint in endpoints)
        free = _joined(dict.fromkeys(_SESSION, ""), headers or {})
        session = tuple(name for name in _SESSION if name in free and name not in self._headers)
        self._session = session if named else ()
        self._sessions = lru_cache(_TREES)(partial(_with_session, self._headers, session)) if named else None
        self._timeout = timeout
        self.siblings = siblings
        self._backoff = backoff or Backoff()
        self._transport = transport or SwitchTransport(max_concurrency)
        self._sleep = sleep
        self._draw = draw
        self._clock = clock
        self._retries: dict[object, float] = {}
        self.retry_causes: Counter[str] = Counter()

    def __repr__(self) -> str:
        urls = (endpoint.target("/chat/completions")[1].url for endpoint in self._router.endpoints)
        return f"HttpLLM({', '.join(urls)})"

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoints and their state, to look at."""
        return self._router.endpoints

    @property
    def next_try(self) -> float | None:
        """Seconds until a call is tried again, or a closed endpoint may be asked; None where none waits for that."""
        now = self._clock()
        closed = [endpoint.until for endpoint in self.endpoints if now < endpoint.until < math.inf]
        due = min([*closed, *self._retries.values()], default=None)
        return None if due is None else max(0.0, due - now)

    async def complete(self, request: Request) -> Reply:
        """Complete one request; see ``trunkline.llm.types.LLM.complete``.

        Raises:
            LLMError: No usable reply within the attempts and the deadline, or the request itself was refused.
            EndpointError: No endpoint serves anybody: wrong key, model, quota or URL, or none can be reached.
        """
        return await self._run(self._pending(request, self._clock()))

    def sender(self, engine: TurnEngine[Any], model: int, receiver: TurnReceiver) -> TurnSender | None:
        """Let requests of an engine's model be sent in its passes; None behind a proxy, and for all engines but one."""
        transport = self._transport
        urls = [endpoint.target(CHAT)[0] for endpoint in self.endpoints]
        direct = transport.direct(urls) if isinstance(transport, SwitchTransport) else None
        if direct is None or direct.driver.turns is not None:
            return None
        limit = min(self._timeout, self._backoff.deadline)
        try:
            return TurnSender(
                engine, model, self._router, self.limiter, direct, self._headers, self._session, limit, receiver
            )
        except (ArgumentError, TransportError):
            return None  # the first request says what is wrong

    async def resume(self, request: Request, attempt: FirstAttempt) -> Reply:
        """Complete a request that waited in a turn engine, and may have been sent once; see ``complete``."""
        call = self._pending(request, attempt.asked)
        if attempt.sent is None:
            return await self._run(call)
        now = self._clock()
        endpoint, answer = attempt.sent
        call.attempts = 1
        call.asked = endpoint.base_url
        call.took(attempt.took)
        if isinstance(answer, Answer) and isinstance(self._transport, SwitchTransport):
            try:
                answer = await self._transport.plain(answer)
            except TransportError as error:
                answer = error
        outcome = self._read(endpoint, call, answer, now - attempt.took, now, probe=False)
        if not isinstance(outcome, Outcome):
            return outcome
        await self._next(endpoint, call, outcome, probe=False)
        return await self._run(call)

    def _pending(self, request: Request, start: float) -> PendingCall[Reply]:
        key, take = request.key, request.take or read
        headers = self._sessions(key) if self._sessions else self._headers
        return PendingCall(request.route, request.content, key, request.n, headers, take, start, self._backoff)

    async def call(self, route: str, body: bytes, key: int = 0) -> bytes:
        """Post one body and hand back the answer's, with the limits and retries of a completion.

        Args:
            route: Where to; see ``trunkline.llm.types.Request.route``.
            body: The JSON body.
            key: The key of the tree that it is for, if it is for one: it goes where that tree is.

        Raises:
            LLMError: No answer within the attempts and the deadline, or the request itself was refused.
            EndpointError: There is no such route, or no endpoint serves anybody.
        """
        return await self._run(PendingCall(route, body, key, 0, self._headers, _raw, self._clock(), self._backoff))

    async def get(self, route: str) -> Answer | None:
        """The answer of the first endpoint to one GET; None where none comes, or one of more than 1 MiB."""
        url, _ = self.endpoints[0].target(route)
        transport = AioTransport(1, largest=1 << 20)
        try:
            return await transport.get(url, self._headers, self._timeout)
        except TransportError:
            return None
        finally:
            await transport.close()

    def hold(self) -> None:
        """Send nothing any more; what is out comes back."""
        self.limiter.hold()

    @property
    def waiting(self) -> int:
        """Calls that are not sent yet, or not again."""
        return sum(endpoint.queue.waiting for endpoint in self._router.endpoints)

    async def close(self) -> None:
        """Close every connection; may be called more than once."""
        self.limiter.close()
        await self._transport.close()

    async def _run(self, call: PendingCall[T]) -> T:
        """Attempt a call until it has its answer, or has had its share."""
        while True:
            endpoint = self._router.choose(call.key, call.avoid) or await self._opened(call)
            probe = endpoint.ejected  # nothing else is sent to an ejected one
            outcome = await self._attempt(endpoint, call, probe=probe)
            if isinstance(outcome, Outcome):
                await self._next(endpoint, call, outcome, probe=probe)
            elif outcome is not None:
                return outcome

    async def _opened(self, call: PendingCall[Any]) -> Endpoint:
        """Wait for an endpoint that is open, as long as the call may."""
        begun = self._clock()
        self._router.renew(call.start)
        endpoint = await self._router.wait(call.key, call.left)
        call.left -= self._clock() - begun
        if endpoint is None:
            if self._router.hopeless:
                self._give_up(self._router.trouble, call)
            self._give_up(self._late(call.outcome or self._router.trouble), call)
        return endpoint

    async def _attempt(self, endpoint: Endpoint, call: PendingCall[T], *, probe: bool) -> T | Outcome | None:
        """Send once, when let in: what came of it, or None if the endpoint closed before."""
        queue, limiter = endpoint.queue, self.limiter
        booked, spent = 0, None
        try:
            if not limiter.enter(queue):
                if limiter.counts_tokens or queue.rate_limits.known:
                    booked = estimate(call.body, call.n)
                if not await limiter.wait(queue, booked, probe=probe):
                    return None
            try:
                outcome = await self._send(endpoint, call, probe=probe)
                spent = 0 if isinstance(outcome, Outcome) else call.spent
            finally:
                limiter.leave(queue, booked, spent)
        finally:
            if probe and endpoint.probing:
                self._router.released(endpoint)
        return outcome

    async def _send(self, endpoint: Endpoint, call: PendingCall[T], *, probe: bool) -> T | Outcome:
        """Post, read what comes back, and note what it says of the endpoint."""
        url, _ = endpoint.target(call.route)
        if call.attempts:
            self.retry_causes[call.cause] += 1
        call.attempts += 1
        call.asked = endpoint.base_url
        begun = self._clock()
        if endpoint.queue.window.narrow:
            self.limiter.begun(endpoint.queue)
        outcome: Answer | TransportError
        try:
            outcome = await self._transport.post(url, call.headers, call.body, min(self._timeout, call.left))
        except TransportError as error:
            outcome = error
        now = self._clock()
        call.took(now - begun)
        return self._read(endpoint, call, outcome, begun, now, probe=probe)

    def _read(
        self,
        endpoint: Endpoint,
        call: PendingCall[T],
        answer: Answer | TransportError,
        begun: float,
        now: float,
        *,
        probe: bool,
    ) -> T | Outcome:
        """Read what came of an attempt, and note what it says of the endpoint."""
        _, context = endpoint.target(call.route)
        if isinstance(answer, TransportError):
            kind = EndpointError if answer.unreachable and not endpoint.reached else LLMError
            outcome = Outcome(kind, f"{context.url} gave no answer: {answer}", answer.retry)
            call.tried(outcome, answer.cause)
            if answer.retry:
                self._router.failed(endpoint, outcome, probe=probe)
            return outcome
        if not endpoint.reached:
            endpoint.reached, endpoint.software = True, answer.headers.get("Server", "")
        endpoint.learn(answer.status, answer.headers)
        found = classify(answer.status, answer.headers, answer.body, context)
        if found is None:
            try:
                result = call.take(answer.body, 0, call.attempts, int((now - call.start) * 1e6))
            except ReplyError as error:
                found = self._unusable(endpoint, answer, context, error)
            else:
                if not endpoint.good:
                    endpoint.good = True
                    self.limiter.open(endpoint.queue)
                endpoint.refusals = 0
                if call.attempts > 1 and call.outcome is not None and call.outcome.own:
                    endpoint.erratic = True
                self._router.served(endpoint)
                if isinstance(result, Reply):
                    self._note(result, endpoint, call, answer, now)
                return result
        cause = str(found.status) if found.status else "unusable reply"
        call.tried(found, cause, excerpt(answer.body, _EVIDENCE, context.secret))
        return self._judge(endpoint, call, found, begun=begun, now=now, probe=probe)

    @staticmethod
    def _note(reply: Reply, endpoint: Endpoint, call: PendingCall[Any], answer: Answer, now: float) -> None:
        """Fill in what only this side knows, and let the endpoint's window see the reply."""
        reply.endpoint = endpoint.base_url
        reply.first = int(answer.first * 1e6)
        reply.queue = max(0, int((now - call.start - call.busy) * 1e6))
        generated = max(0, reply.generated)
        if reply.prompt >= 0:
            call.spent = reply.prompt + generated
        queue = endpoint.queue
        # Draws of one request are generated side by side.
        tokens = generated if call.n <= 1 else generated // call.n
        queue.window.replied([(call.last, tokens)], queue.in_flight, now)

    def _judge(
        self, endpoint: Endpoint, call: PendingCall[Any], outcome: Outcome, *, begun: float, now: float, probe: bool
    ) -> Outcome:
        """Note what an answer that is no reply says of its endpoint."""
        if outcome.down:
            self._router.failed(endpoint, outcome, probe=probe)
        else:
            self._router.served(endpoint)
        if outcome.status == 429 and outcome.retry:
            endpoint.queue.window.refused(begun, now)
        if outcome.after:
            wait = self._backoff.delay(call.attempts, outcome.after, self._draw)
            self._router.paused(endpoint, outcome, wait)
        return outcome

    async def _next(self, endpoint: Endpoint, call: PendingCall[Any], outcome: Outcome, *, probe: bool) -> None:
        """Wait as long as the next attempt should, or give up."""
        weight = _weight(endpoint, outcome, probe=probe)
        if outcome.kind is EndpointError and not outcome.retry:
            # A server without some route of ours still completes.
            missing = call.take is _raw and outcome.status in {404, 405}
            if missing or self._refused(endpoint):
                if missing or not self._router.struck(endpoint, outcome):
                    self._give_up(outcome, call)
                return
            outcome, weight = outcome._replace(kind=LLMError, retry=True), _WHOLE
        call.failed(outcome, weight, unusable=outcome.kind is _UnusableError)
        router = self._router
        if not outcome.retry or call.over(reached=router.reached, endpoints=len(router.endpoints)):
            self._give_up(outcome, call)
        if router.hopeless:
            self._give_up(router.trouble, call)
        call.avoid = endpoint
        if router.shut:
            return  # the next choice waits until one opens
        wait = self._backoff.delay(call.attempts, None, self._draw)
        if wait >= call.left:
            self._give_up(self._late(outcome), call)
        self._retries[call] = self._clock() + wait
        try:
            await self._sleep(wait)
        finally:
            del self._retries[call]
        call.left -= wait

    @staticmethod
    def _refused(endpoint: Endpoint) -> bool:
        """Note a refusal; whether it is believed that everything will be refused."""
        endpoint.refusals += 1
        return not endpoint.good or endpoint.refusals >= REFUSALS

    @staticmethod
    def _unusable(endpoint: Endpoint, answer: Answer, context: RequestContext, error: ReplyError) -> Outcome:
        """What a success means whose body is no completion."""
        status, headers, data, _ = answer
        inside = embedded_status(data)
        if inside is not None:
            outcome = classify(inside, headers, data, context)
            if outcome is not None:
                return outcome
        message = f"{context.url} answered {status}, but {unusable(error, data, context.secret)}"
        if data.lstrip()[:1] == b"<" and not endpoint.good:
            return Outcome(EndpointError, message)
        return Outcome(_UnusableError, message, retry=True)

    def _late(self, outcome: Outcome) -> Outcome:
        return outcome._replace(message=f"{outcome.message}; the deadline of {self._backoff.deadline:g} s is near")

    def _give_up(self, outcome: Outcome, call: PendingCall[Any]) -> NoReturn:
        message = outcome.message if call.attempts <= 1 else f"{outcome.message} (after {call.attempts} attempts)"
        kind = LLMError if outcome.kind is _UnusableError else outcome.kind
        if kind is EndpointError and outcome.retry:
            if self._router.reached:
                kind = LLMError  # others serve, or will again
            else:
                message += "; is a server running there, and is the base URL right?"
        message = without_key(message, self._secret)
        if issubclass(kind, LLMError):
            error = kind(
                message,
                attempts=call.attempts,
                retryable=outcome.retry,
                endpoint=call.asked,
                tries=[without_key(line, self._secret) for line in call.tries],
                evidence=without_key(call.evidence, self._secret),
            )
            error.separable = outcome.own
            raise error
        raise kind(message)


def _weight(endpoint: Endpoint, outcome: Outcome, *, probe: bool) -> int:
    """What an attempt counts that brought nothing."""
    if outcome.own:
        return _HALF if endpoint.erratic else _WHOLE
    return 1 if outcome.status == 429 or (probe and outcome.kind is not _UnusableError) else _WHOLE


def _with_session(headers: Mapping[str, str], names: tuple[str, ...], key: int) -> dict[str, str]:
    """Headers by which a router in front of several servers keeps a tree on one of them."""
    return {**dict.fromkeys(names, f"{key:08x}"), **headers}


def _joined(ours: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """Headers of ours, where the user has none of that name in whatever case, and the user's."""
    taken = {name.lower() for name in theirs}
    return {name: value for name, value in ours.items() if name.lower() not in taken} | dict(theirs)


def _secrets(key: str, headers: Mapping[str, str]) -> tuple[str, ...]:
    """All that a server could echo and nobody may see, whatever holds another before that one."""
    values = {key, *headers.values()}
    parts = {part for value in headers.values() for part in value.split()}  # the scheme of an Authorization
    return tuple(sorted(values | parts, key=len, reverse=True))


def _raw(data: bytes, first: int, attempts: int, micros: int) -> bytes:
    """The reader of answers that are wanted as they are."""
    del first, attempts, micros
    return data


class _UnusableError(LLMError):
    """A body that is no completion; raised as ``LLMError``, told apart as it is repeated less often."""
