"""Chooses an endpoint for each request: prefix affinity, endpoint health, circuit breaker."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections import OrderedDict
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from trunkline._internal.aio import InterruptibleSleep
from trunkline.llm.http.outcome import RequestContext
from trunkline.llm.limits.rate_limiter import EndpointQueue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from trunkline.llm.http.outcome import Outcome
    from trunkline.llm.limits.adaptive_window import Window
    from trunkline.llm.limits.token_bucket import ServerRateLimits
    from trunkline.llm.types import Routing


logger = logging.getLogger(__name__)

_PROBED: Final = 3
"""Ejections of an endpoint that has never answered, the first included, until it counts as the wrong one."""


class Router:
    """Chooses among endpoints.

    A new tree goes to the endpoint with the least in flight; equals are tried from the tree's key on, so that many
    workers do not all begin with the first. A tree stays at its endpoint until that closes, or has more than ``margin``
    requests above the least loaded one. An ejected endpoint whose time is over gets one request, a probe; the tree it
    belongs to does not move there with it. ``draw`` returns jitter from 0 to 1.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        routing: Routing,
        *,
        sleep: Callable[[float], Awaitable[object]],
        draw: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self.endpoints = tuple(endpoints)
        self._routing = routing
        self._draw = draw
        self._clock = clock
        self._affinity: OrderedDict[int, Endpoint] = OrderedDict()
        self._closed = 0
        self._waiting = 0
        self._room = asyncio.Lock()
        self._sleep = InterruptibleSleep(sleep)

    @property
    def reached(self) -> bool:
        return any(endpoint.reached for endpoint in self.endpoints)

    @property
    def shut(self) -> bool:
        return self._closed == len(self.endpoints)

    @property
    def hopeless(self) -> bool:
        """Whether every endpoint is out, or none has ever answered and each was probed more than once."""
        unreached = not self.reached
        return all(each.out or (unreached and each.ejections >= _PROBED) for each in self.endpoints)

    @property
    def trouble(self) -> Outcome:
        """Why some endpoint is closed; for when none is open."""
        return next(each.trouble for each in self.endpoints if each.trouble is not None)

    def choose(self, key: int, avoid: Endpoint | None = None) -> Endpoint | None:
        """Choose at once, ``avoid`` only where no other is open; None if none is, or requests ``wait`` already."""
        if self._waiting:
            return None
        return self._pick(key, avoid, self._clock() if self._closed else 0.0)

    async def wait(self, key: int, limit: float) -> Endpoint | None:
        """Wait for an endpoint that opens or may be probed, first come first served; None after ``limit`` seconds."""
        if limit <= 0:
            return None
        self._waiting += 1
        end = self._clock() + limit
        try:
            async with asyncio.timeout(None if limit == math.inf else limit), self._room:
                now = self._clock()
                while (endpoint := self._pick(key, None, now)) is None:
                    if self.hopeless:
                        return None
                    delay = min((e.until - now for e in self.endpoints if not e.probing), default=math.inf)
                    if delay < math.inf and now + delay >= end:
                        return None
                    passed = await self._sleep.wait(delay)
                    # The slept time counts, also where the clock is a little behind.
                    now = max(self._clock(), now + delay if passed else 0.0)
                return endpoint
        except TimeoutError:
            return None
        finally:
            self._waiting -= 1

    def failed(self, endpoint: Endpoint, outcome: Outcome, *, probe: bool) -> None:
        now, after = self._clock(), self._routing.eject_after
        if endpoint.failed(outcome, probe=probe, after=after, now=now, draw=self._draw()):
            logger.info("%s; it gets no requests for %.1f s", outcome.message, endpoint.until - now)
        self._count()

    def served(self, endpoint: Endpoint) -> None:
        if endpoint.served():
            self._count()

    def paused(self, endpoint: Endpoint, outcome: Outcome, seconds: float) -> None:
        endpoint.pause(outcome, self._clock() + seconds)
        self._count()

    def released(self, endpoint: Endpoint) -> None:
        """Note that a probe was not sent after all."""
        endpoint.probing = endpoint.queue.urgent = False
        self._count()

    def struck(self, endpoint: Endpoint, outcome: Outcome) -> bool:
        """Take an endpoint out, the last one only until ``renew``; returns whether others are left."""
        others = not all(other is endpoint or other.out for other in self.endpoints)
        if not endpoint.out:
            if others:
                logger.warning("%s; continuing without this endpoint", outcome.message)
            endpoint.strike(outcome, math.inf if others else self._clock())
            self._count()
        return others

    def renew(self, begun: float) -> None:
        """Let a call try the last endpoint again if it began after that one was taken out."""
        for endpoint in self.endpoints:
            if endpoint.out and endpoint.until < begun:
                endpoint.open()
                self._count()

    def _pick(self, key: int, avoid: Endpoint | None, now: float) -> Endpoint | None:
        if self._closed:
            due = self._due(avoid, now)
            if due is not None:
                return due
            if self._closed == len(self.endpoints):
                return None
        if len(self.endpoints) == 1:
            return self.endpoints[0]
        affinity = self._affinity
        preferred = affinity.get(key)
        if preferred is not None and preferred is not avoid and not preferred.queue.closed:
            affinity.move_to_end(key)
            if preferred.load <= self._routing.margin:
                return preferred
        else:
            preferred = None
        least = self._least(key, avoid)
        if preferred is not None and preferred.load - least.load <= self._routing.margin:
            return preferred
        if avoid is None or avoid.queue.closed or key not in affinity:
            affinity[key] = least
            affinity.move_to_end(key)
            if len(affinity) > self._routing.memory:
                affinity.popitem(last=False)
        return least

    def _least(self, key: int, avoid: Endpoint | None) -> Endpoint:
        """The least loaded open endpoint; there is one."""
        count = len(self.endpoints)
        found: Endpoint | None = None
        for step in range(count):
            endpoint = self.endpoints[(key + step) % count]
            if endpoint.queue.closed or endpoint is avoid:
                continue
            if found is None or endpoint.load < found.load:
                found = endpoint
        if found is None:
            assert avoid is not None
            return avoid
        return found

    def _due(self, avoid: Endpoint | None, now: float) -> Endpoint | None:
        """Open endpoints whose pause is over; return an ejected one that needs a probe, if any."""
        for endpoint in self.endpoints:
            if not endpoint.queue.closed or endpoint.out or endpoint.until > now or endpoint.probing:
                continue
            if not endpoint.ejected:
                endpoint.open()
                self._count()
            elif endpoint is not avoid or len(self.endpoints) == 1:
                endpoint.probe()
                return endpoint
        return None

    def _count(self) -> None:
        """Count closed endpoints, and wake requests that wait for one."""
        self._closed = sum(endpoint.queue.closed for endpoint in self.endpoints)
        self._sleep.wake()


EJECTED: Final = 1.0
"""Seconds of the first ejection in a row; each further one is twice as long."""

EJECTED_CAP: Final = 30.0
"""The longest ejection in seconds, before jitter."""

SILENT: Final = 16
"""Answers without a rate limit after which none is looked for: most servers of one's own have none."""

_VERSION: Final = re.compile(r"/v\d+[a-z0-9]*$")
_CROWD: Final = 8
"""So many requests in flight allow one more failure in a row: they fail at the same moment."""


class Endpoint:
    """One base URL and its state: open, closed until a time, or out for good.

    Closed by an ejection it needs a probe: one request that is let through when its time is over, and whose outcome
    opens it or closes it for twice as long. Closed by a pause, which a server asked for, it opens by itself.

    Attributes:
        queue: Admits requests.
        reached: Whether it has ever answered.
        good: Whether it has ever completed a request.
        until: When it may be asked again; minus infinity while it is open, infinity when it is out.
        ejected: Whether it needs a probe.
        failures: Answers in a row that did not serve.
        ejections: Ejections in a row, without an answer between them.
        out: Whether it can serve no request: wrong key, model, quota or URL.
        refusals: Refusals of that kind in a row, without a reply between them.
        software: What its first answer named as the server; empty where it did not.
        erratic: Whether it has served a request at which it had failed before.
        probing: Whether the probe is in flight.
        trouble: Why it is closed or out, or was last.
    """

    def __init__(
        self, base_url: str, key_env: str, secret: str | tuple[str, ...], window: Window, rate_limits: ServerRateLimits
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._root = _VERSION.sub("", self.base_url)
        self._key_env = key_env
        self._secret = secret
        self._targets: dict[str, tuple[str, RequestContext]] = {}
        self.failures = self.ejections = 0
        self.queue = EndpointQueue(window, rate_limits)
        self.plain = self.base_url.startswith("http://")
        self.reached = self.good = self.erratic = False
        self.software = ""
        self.refusals = 0
        self.until = -math.inf
        self.ejected = self.probing = self.out = False
        self.trouble: Outcome | None = None

    @property
    def load(self) -> int:
        return self.queue.in_flight + self.queue.waiting + self.queue.queued

    def target(self, route: str) -> tuple[str, RequestContext]:
        """Return the URL of a route and the context for its errors; ``//route`` is below the root, without ``/v1``."""
        found = self._targets.get(route)
        if found is None:
            url = self._root + route[1:] if route.startswith("//") else self.base_url + route
            shown = urlsplit(url)._replace(query="", fragment="").geturl()
            found = self._targets[route] = (url, RequestContext(shown, self._key_env, self._secret))
        return found

    def failed(self, outcome: Outcome, *, probe: bool, after: int, now: float, draw: float) -> bool:
        """Note that it did not serve: refused, reset, too slow, or a 5xx; returns whether it is ejected by this."""
        if self.out:
            return False
        self.failures += 1
        self.trouble = outcome
        if not probe and (self.ejected or self.failures < after + self.queue.in_flight // _CROWD):
            return False
        if not self.ejected:
            self.queue.window.restart()
        seconds = min(EJECTED_CAP, EJECTED * 2.0 ** min(self.ejections, 60)) * (0.75 + 0.5 * draw)
        self.ejections += 1
        self.ejected, self.probing = True, False
        self.close(now + seconds)
        return True

    def pause(self, outcome: Outcome, until: float) -> None:
        if not self.out:
            self.trouble = outcome
            self.close(max(until, self.until))

    def strike(self, outcome: Outcome, until: float) -> None:
        self.trouble = outcome
        self.ejected = self.probing = False
        self.out = True
        self.close(until)

    def close(self, until: float) -> None:
        """Admit no request until a time; those that wait in the queue leave."""
        self.until = until
        self.queue.urgent = False
        self.queue.close()

    def served(self) -> bool:
        """Note an answer that shows that it is up; returns whether it was ejected, and is open by this."""
        self.failures = 0
        if not self.ejected:
            return False
        self.ejections = 0
        self.open()
        return True

    def open(self) -> None:
        self.until = -math.inf
        self.ejected = self.probing = self.out = self.queue.urgent = False
        self.queue.closed = False

    def probe(self) -> None:
        self.probing = self.queue.urgent = True

    def learn(self, status: int, headers: Mapping[str, str]) -> None:
        """Read an answer's rate limits; where an endpoint never tells of any, only those of a 429."""
        queue = self.queue
        if queue.rate_limits.silent < SILENT or status == 429:
            queue.rate_limits.learn(headers, queue.in_flight - 1 + queue.ahead, queue.tokens)
