"""Totals of model calls: usage, times and cost, live and from the rows of a run file."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from itertools import groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from trunkline.llm.pricing import Price, price_at
from trunkline.store.schema import CallRow, meta_entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

T = TypeVar("T")

ESTIMATED_USAGE: Final = "estimated_usage"
"""Key of the table ``meta``: how many generated tokens are estimated, by endpoint."""

RETRY_CAUSES: Final = "retry_causes"
"""Key of the table ``meta``: attempts beyond the first, by what the attempt before came to."""

PROBES: Final = "probes"
"""Key of the table ``meta``: the requests that found out what servers can do; they belong to no task."""

_MICROS = 1e6
_ENDPOINT = attrgetter("endpoint")
_TOGETHER = 64  # rows that are added up at once


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
    """The cost of some calls.

    Attributes:
        money: The cost of priced calls, in the currency of the price.
        priced: Calls in it.
        unpriced: Calls without usage, or whose endpoint has no price; replies from the cache are free and in neither
            count.
        silent: Priced calls whose server did not report cached tokens, though these have a price: priced as uncached.
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
    """The calls of one endpoint. Replies from the cache are in ``kept`` and in no other figure.

    Attributes:
        endpoint: Its name, as the replies gave it: not safe to print.
        requests: Requests that it answered.
        failed: Requests that failed there after all attempts; else they count in ``retries`` and ``spent`` only.
        kept: Its replies that came from the cache.
        probes: Requests before the run that found out what the server can do; else only their tokens and cost count.
        draws: Completions in its answers.
        retries: Attempts beyond the first.
        prompt: Prompt tokens, cached ones included.
        cached: Cached ones among them; None where no answer says so.
        silent: Requests with usage that does not say what was cached: their prompts are in ``prompt`` alone.
        generated: Generated tokens.
        estimated: Of these, tokens that are estimated, where usage is that of the first of several completions.
        unreported: Requests without usage; their tokens are in no figure.
        rate: Generated tokens per second, from the begin of its first request to the end of its last.
        queue: Waiting for a slot or a limit; None where nothing was answered, as below.
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


def batches(rows: Iterable[T]) -> Iterator[list[T]]:
    """Yield rows, some at a time."""
    rows = iter(rows)
    while some := [*islice(rows, _TOGETHER)]:
        yield some


class CallStats(msgspec.Struct):
    """Totals of model calls. Whole numbers only, so the order of the calls makes no difference."""

    calls: int = 0  # how many
    draws: int = 0  # completions that they brought
    plural: int = 0  # calls that brought another number of completions than one
    retries: int = 0  # attempts beyond the first
    micros: int = 0  # microseconds that they took, waits and retries included
    reported: int = 0  # calls with usage; the tokens below are theirs
    prompt: int = 0  # prompt tokens, cached ones included
    cached: int = 0  # cached prompt tokens: none of a call that does not say, and no more than its prompt has
    silent: int = 0  # calls with usage that does not say what was cached
    generated: int = 0

    def add(self, *calls: CallRow) -> None:
        """Count calls."""
        self.calls += len(calls)
        for call in calls:
            self.draws += call.draws
            self.plural += call.draws != 1
            self.retries += call.attempts and call.attempts - 1
            self.micros += call.micros
            if call.prompt < 0 or call.generated < 0:
                continue
            self.reported += 1
            self.prompt += call.prompt
            self.generated += call.generated
            if call.cached < 0:
                self.silent += 1
            else:
                self.cached += min(call.cached, call.prompt)

    def __add__(self, other: CallStats) -> CallStats:
        return CallStats(*map(int.__add__, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))

    @property
    def unreported(self) -> int:
        """Calls without usage; their tokens are in no total."""
        return self.calls - self.reported

    @property
    def cached_known(self) -> int | None:
        """Cached prompt tokens; None where no call with usage says what was cached."""
        return None if self.silent and self.silent == self.reported else self.cached


def spending(sent: Mapping[str, CallStats], prices: Mapping[str, Price]) -> Spending:
    """Price calls that were sent, by endpoint."""
    costs = []
    priced = unpriced = silent = 0
    for endpoint, stats in sent.items():
        price = price_at(prices, endpoint)
        if price is None:
            unpriced += stats.calls
            continue
        costs.append(price.of(stats.prompt, stats.cached, stats.generated))
        priced += stats.reported
        unpriced += stats.unreported
        silent += 0 if price.flat else stats.silent
    return Spending(math.fsum(costs), priced, unpriced, silent)


def cost_of(calls: Iterable[CallRow], prices: Mapping[str, Price]) -> Spending:
    """Price those of some calls that were sent."""
    sent: defaultdict[str, CallStats] = defaultdict(CallStats)
    for call in calls:
        if call.attempts:
            sent[call.endpoint].add(call)
    return spending(sent, prices)


def add_up(parts: Iterable[Spending]) -> Spending:
    """Add up what several parts of a run cost."""
    listed = list(parts)
    counts = (sum(getattr(one, count) for one in listed) for count in ("priced", "unpriced", "silent"))
    return Spending(math.fsum(one.money for one in listed), *counts)


def total(endpoints: Sequence[EndpointSummary]) -> Spending | None:
    """What all endpoints cost together; None without a price."""
    priced = [endpoint.spent for endpoint in endpoints if endpoint.spent is not None]
    return add_up(priced) if priced else None


def estimated_usage(meta: Mapping[str, str]) -> dict[str, int]:
    """Read how many generated tokens are estimated, by endpoint; nothing where the entry is damaged."""
    return meta_entry(meta, ESTIMATED_USAGE, dict[str, int], {})


def retry_causes(meta: Mapping[str, str]) -> dict[str, int]:
    """Read attempts beyond the first by cause; nothing where the entry is damaged."""
    return meta_entry(meta, RETRY_CAUSES, dict[str, int], {})


def probes(meta: Mapping[str, str]) -> list[CallRow]:
    """Read the requests that found out what servers can do; none where the entry is damaged."""
    return meta_entry(meta, PROBES, list[CallRow], [])


def by_endpoint(
    calls: Iterable[CallRow],
    prices: Mapping[str, Price],
    estimated: Mapping[str, int] | None = None,
    probes: Iterable[CallRow] = (),
) -> list[EndpointSummary]:
    """Sum calls up by endpoint, in the order of the endpoints' names; without prices nothing is priced."""
    found: defaultdict[str, _EndpointCalls] = defaultdict(_EndpointCalls)
    for some in batches(calls):
        for name, own in groupby(sorted(some, key=_ENDPOINT), _ENDPOINT):
            found[name].add([*own])
    for call in probes:
        found[call.endpoint].probe(call)
    return [calls.summary(name, prices, (estimated or {}).get(name, 0)) for name, calls in sorted(found.items())]


class _EndpointCalls:
    """The calls of one endpoint: totals by outcome, and the times of those that were answered."""

    def __init__(self) -> None:
        self._answered, self._failed, self._kept = CallStats(), CallStats(), CallStats()
        self._probes, self._paid_probes = CallStats(), CallStats()
        self._queue, self._first, self._total = array("q"), array("q"), array("q")
        self._began: float = math.inf
        self._ended: float = -math.inf

    def add(self, calls: Sequence[CallRow]) -> None:
        self._kept.add(*[call for call in calls if not call.attempts])
        self._failed.add(*[call for call in calls if call.attempts and not call.draws])
        answered = [call for call in calls if call.attempts and call.draws]
        if answered:
            self._answered.add(*answered)
            self._queue.extend([call.queue for call in answered])
            self._total.extend([call.micros for call in answered])
            self._first.extend([call.first for call in answered if call.first >= 0])
            self._began = min(self._began, *[call.started for call in answered])
            self._ended = max(self._ended, *[call.started + call.micros for call in answered])

    def probe(self, call: CallRow) -> None:
        self._probes.add(call)
        if call.attempts:
            self._paid_probes.add(call)

    def summary(self, endpoint: str, prices: Mapping[str, Price], estimated: int) -> EndpointSummary:
        answered, failed = self._answered, self._failed
        used = answered + self._probes
        paid = answered + failed + self._paid_probes
        seconds = (self._ended - self._began) / _MICROS if answered.calls else 0.0
        return EndpointSummary(
            endpoint=endpoint,
            requests=answered.calls,
            failed=failed.calls,
            kept=self._kept.calls,
            probes=self._probes.calls,
            draws=answered.draws,
            retries=answered.retries + failed.retries,
            prompt=used.prompt,
            cached=used.cached_known,
            silent=used.silent,
            generated=used.generated,
            estimated=min(estimated, used.generated),
            unreported=answered.unreported,
            rate=used.generated / seconds if seconds > 0 else 0.0,
            queue=times(self._queue),
            first=times(self._first),
            total=times(self._total),
            spent=spending({endpoint: paid}, prices) if prices else None,
        )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the least of ascending values that a share of them, to a thousandth, does not exceed (nearest rank)."""
    # In whole numbers: 0.95 * 20 is a little more than 19.
    return ordered[max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1)]


def times(micros: array[int]) -> Times | None:
    """Return percentiles in seconds of times in microseconds; None without any."""
    if not micros:
        return None
    ordered = sorted(micros)
    return Times(percentile(ordered, 0.5) / _MICROS, percentile(ordered, 0.95) / _MICROS, ordered[-1] / _MICROS)
