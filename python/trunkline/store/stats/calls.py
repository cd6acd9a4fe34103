"""What the calls of a run come to: usage, time and money by endpoint, all from their rows."""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING, Final

import msgspec

from trunkline.llm.pricing import Price, price_at
from trunkline.store.schema import CallRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "ESTIMATED_USAGE",
    "PROBES",
    "Bill",
    "EndpointSummary",
    "Spending",
    "Times",
    "by_endpoint",
    "cached",
    "estimated_usage",
    "probes",
    "times",
    "total",
]

ESTIMATED_USAGE: Final = "estimated_usage"
"""Key of the file's ``meta`` table under which stands which generated tokens are estimated."""

PROBES: Final = "probes"
"""Key under which stand the requests that were sent to find out what servers can do: they belong to no task."""

_MICROS = 1e6


class Times(msgspec.Struct, frozen=True):
    """Seconds that calls took. Percentiles are nearest ranks: each is the time of some call.

    Attributes:
        p50: Half of the calls took no longer.
        p95: 95 % of the calls took no longer.
        max: The longest.
    """

    p50: float
    p95: float
    max: float


class Spending(msgspec.Struct, frozen=True):
    """What some calls cost.

    Attributes:
        money: What the priced ones cost, in the currency of the price.
        priced: Calls in it.
        unpriced: Calls that are in no sum, since the server did not report what its price depends on, or their endpoint
            has no price. Replies out of a cache cost nothing and are in neither count.
        silent: Priced calls whose server did not say what it had cached, though that has a price of its own: their
            whole prompts are priced as uncached.
    """

    money: float
    priced: int
    unpriced: int
    silent: int = 0

    @property
    def known(self) -> bool:
        """Whether ``money`` is the price of something: not if no call has one."""
        return self.priced > 0 or not self.unpriced


class EndpointSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What one endpoint answered. Replies out of a cache are in ``kept`` and in no other figure.

    Attributes:
        endpoint: Its name, as the replies gave it: not safe to print.
        requests: Requests that it answered.
        failed: Requests that it was the last to fail for good; but for ``retries`` and ``spent`` they are in no other
            figure.
        kept: Replies of it that came out of a cache.
        probes: Requests that were sent before the run, to find out what it can do; their tokens and what these cost are
            in all sums, and they are in no other figure.
        draws: Completions in its answers.
        retries: Attempts beyond the first.
        prompt: Prompt tokens, cached ones included.
        cached: Cached ones among them; None where no answer says so.
        silent: Requests with usage that does not say what was cached: their prompts are in ``prompt`` alone.
        generated: Generated tokens.
        estimated: Of these, tokens that are estimated, where usage is that of the first of several completions.
        unreported: Requests without usage; their tokens are in no figure.
        rate: Generated tokens per second, from the begin of its first request to the end of its last.
        queue: Waiting for a slot or a limit; None where nothing was sent, as below.
        first: Up to the first byte; None also where no answer says so.
        total: Whole calls, waits and retries included.
        spent: What they cost; None without a price.
    """

    endpoint: str
    requests: int
    failed: int
    kept: int
    probes: int
    draws: int
    retries: int
    prompt: int
    cached: int | None
    silent: int
    generated: int
    estimated: int
    unreported: int
    rate: float
    queue: Times | None
    first: Times | None
    total: Times | None
    spent: Spending | None


class Bill:
    """Adds up what calls cost. Tokens are summed as whole numbers, so the order of calls makes no difference.

    Args:
        prices: Prices by base URL.
    """

    def __init__(self, prices: Mapping[str, Price]) -> None:
        self._prices = prices
        self._tokens: dict[str, tuple[Price | None, list[int]]] = {}
        self._priced = 0
        self._unpriced = 0
        self._silent = 0

    def add(self, call: CallRow) -> None:
        """Add a call, unless it was answered out of a cache."""
        if not call.attempts:
            return
        known = self._tokens.get(call.endpoint)
        if known is None:
            known = self._tokens[call.endpoint] = price_at(self._prices, call.endpoint), [0, 0, 0]
        price, sums = known
        if price is None or not call.reported:
            self._unpriced += 1
            return
        self._priced += 1
        self._silent += call.cached < 0 and not price.flat
        sums[0] += call.prompt
        sums[1] += cached(call)
        sums[2] += call.generated

    def spending(self) -> Spending:
        """What has been added so far."""
        costs = [price.of(*sums) for price, sums in self._tokens.values() if price is not None]
        return Spending(math.fsum(costs), self._priced, self._unpriced, self._silent)


def cached(call: CallRow) -> int:
    """Cached tokens of a call that has usage: none where the server does not say, and no more than its prompt has."""
    return min(max(call.cached, 0), call.prompt)


def estimated_usage(meta: Mapping[str, str]) -> dict[str, int]:
    """Read from a run file's table ``meta`` how many generated tokens are estimated, by endpoint."""
    try:
        return msgspec.json.decode(meta.get(ESTIMATED_USAGE, "{}"), type=dict[str, int])
    except msgspec.MsgspecError:
        return {}


def probes(meta: Mapping[str, str]) -> list[CallRow]:
    """Read from a run file's table ``meta`` which requests were sent to find out what servers can do."""
    try:
        return msgspec.json.decode(meta.get(PROBES, "[]"), type=list[CallRow])
    except msgspec.MsgspecError:
        return []


def by_endpoint(
    calls: Iterable[CallRow],
    prices: Mapping[str, Price],
    estimated: Mapping[str, int] | None = None,
    probes: Iterable[CallRow] = (),
) -> list[EndpointSummary]:
    """Sum calls up by endpoint.

    Args:
        calls: The rows, in any order.
        prices: Prices by base URL; nothing is priced if it is empty.
        estimated: Generated tokens that are estimated, by endpoint.
        probes: Requests that belong to no task; see :class:`EndpointSummary`.

    Returns:
        A summary of each endpoint, in the order of their names.
    """
    accounts: dict[str, _Account] = {}
    for call in calls:
        account = accounts.get(call.endpoint)
        if account is None:
            account = accounts[call.endpoint] = _Account(prices)
        account.add(call)
    for call in probes:
        accounts.setdefault(call.endpoint, _Account(prices)).probe(call)
    guessed = estimated or {}
    return [account.summary(endpoint, guessed.get(endpoint, 0)) for endpoint, account in sorted(accounts.items())]


def total(endpoints: Sequence[EndpointSummary]) -> Spending | None:
    """What all endpoints cost together; None without a price."""
    bills = [endpoint.spent for endpoint in endpoints if endpoint.spent is not None]
    if not bills:
        return None
    counts = (sum(getattr(bill, count) for bill in bills) for count in ("priced", "unpriced", "silent"))
    return Spending(math.fsum(bill.money for bill in bills), *counts)


class _Account:
    """One endpoint's figures while its calls are read."""

    def __init__(self, prices: Mapping[str, Price]) -> None:
        self._bill = Bill(prices) if prices else None
        self._failed = self._kept = self._draws = self._retries = self._probes = self._counted = 0
        self._prompt = self._cached = self._generated = self._unreported = self._silent = 0
        self._queue, self._first, self._total = array("q"), array("q"), array("q")
        self._began: float = math.inf
        self._ended: float = -math.inf

    def add(self, call: CallRow) -> None:
        if not call.attempts:
            self._kept += 1
            return
        self._retries += call.attempts - 1
        if self._bill is not None:
            self._bill.add(call)
        if call.failed:
            self._failed += 1
            return
        self._draws += call.draws
        if call.reported:
            self._count(call)
        else:
            self._unreported += 1
        self._queue.append(call.queue)
        self._total.append(call.micros)
        if call.first >= 0:
            self._first.append(call.first)
        self._began = min(self._began, call.started)
        self._ended = max(self._ended, call.started + call.micros)

    def probe(self, call: CallRow) -> None:
        """Add a request that belongs to no task."""
        self._probes += 1
        if self._bill is not None:
            self._bill.add(call)
        if call.reported:
            self._count(call)

    def _count(self, call: CallRow) -> None:
        self._counted += 1
        self._prompt += call.prompt
        self._cached += cached(call)
        self._silent += call.cached < 0
        self._generated += call.generated

    def summary(self, endpoint: str, estimated: int) -> EndpointSummary:
        seconds = (self._ended - self._began) / _MICROS if self._total else 0.0
        return EndpointSummary(
            endpoint=endpoint,
            requests=len(self._total),
            failed=self._failed,
            kept=self._kept,
            probes=self._probes,
            draws=self._draws,
            retries=self._retries,
            prompt=self._prompt,
            cached=None if self._silent and self._silent == self._counted else self._cached,
            silent=self._silent,
            generated=self._generated,
            estimated=min(estimated, self._generated),
            unreported=self._unreported,
            rate=self._generated / seconds if seconds > 0 else 0.0,
            queue=times(self._queue),
            first=times(self._first),
            total=times(self._total),
            spent=self._bill.spending() if self._bill is not None else None,
        )


def times(micros: array[int]) -> Times | None:
    """Return percentiles of what calls took, in microseconds; None without any."""
    if not micros:
        return None
    ordered = sorted(micros)
    # In whole numbers: 0.95 * 20 is a little more than 19.
    p50, p95 = (ordered[(len(ordered) * share + 99) // 100 - 1] for share in (50, 95))
    return Times(p50 / _MICROS, p95 / _MICROS, ordered[-1] / _MICROS)
