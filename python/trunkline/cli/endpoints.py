"""The calls of a run by endpoint, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline.cli.table import cost, duration
from trunkline.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trunkline.store.calls import EndpointSummary, Times

__all__ = ["calls_table"]

_UNNAMED = "(no name)"


def calls_table(endpoints: Sequence[EndpointSummary]) -> str:
    """What each endpoint answered, as plain text: its name, and its figures under it.

    Args:
        endpoints: What :attr:`trunkline.store.summary.Summary.endpoints` holds.
    """
    lines: list[str] = []
    for endpoint in endpoints:
        lines.append(printable(endpoint.endpoint) or _UNNAMED)
        rows = list(_rows(endpoint))
        width = max(len(label) for label, _ in rows)
        lines += [f"  {label:<{width}}  {value}" for label, value in rows]
    return "\n".join(lines) if lines else "no request was made"


def _rows(endpoint: EndpointSummary) -> Iterator[tuple[str, str]]:
    failed = f", and {endpoint.failed:,} that failed for good" if endpoint.failed else ""
    yield "requests", f"{endpoint.requests:,}, {endpoint.retries:,} retries{failed}"
    if endpoint.kept:
        yield "out of a cache", f"{endpoint.kept:,} more, counted in nothing below"
    if endpoint.draws != endpoint.requests:
        yield "completions", f"{endpoint.draws:,}"
    if endpoint.unreported < endpoint.requests:
        share = f"  ({endpoint.cached / endpoint.prompt:.1%})".replace("%", " %") if endpoint.prompt else ""
        yield "prompt tokens by request", f"{endpoint.prompt:,}, {endpoint.cached:,} of them cached{share}"
        yield "generated tokens", f"{endpoint.generated:,}  ({endpoint.rate:,.1f} tokens/s)"
    if endpoint.unreported:
        yield "without usage", f"{endpoint.unreported:,}, counted in no total"
    for label, times in (("queue", endpoint.queue), ("first byte", endpoint.first), ("whole call", endpoint.total)):
        if times is not None:
            yield label, _times(times)
    if endpoint.spent is not None:
        yield "price", cost(endpoint.spent)


def _times(times: Times) -> str:
    return f"p50 {_seconds(times.p50)}, p95 {_seconds(times.p95)}, max {_seconds(times.max)}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds < 10 else duration(seconds)
