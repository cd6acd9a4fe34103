"""Options of commands that run: where logs, metrics and traces of a run go."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trunkline.cli.output import tell
from trunkline.errors import ConfigError
from trunkline.runtime.logs import LEVELS, log_to, say_to_stderr
from trunkline.runtime.metrics import Metrics, address_of
from trunkline.runtime.tracing import Tracing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trunkline.runtime.options import Options

__all__ = ["watching", "watching_options"]

F = TypeVar("F", bound="Callable[..., object]")

_OPTIONS = (
    click.option("--log", type=click.Path(), metavar="FILE", help="Add what is logged to FILE, as lines of JSON."),
    click.option(
        "--log-level",
        type=click.Choice(LEVELS),
        default="info",
        show_default=True,
        help="The least that --log writes.",
    ),
    click.option(
        "--metrics",
        metavar="[HOST:]PORT",
        help="Serve metrics for Prometheus there, on this machine alone unless a host is named (extra: metrics).",
    ),
    click.option(
        "--otel",
        is_flag=True,
        help="Send traces to the collector that the variables OTEL_EXPORTER_OTLP_* name (extra: otel).",
    ),
)


def watching_options(command: F) -> F:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@contextlib.contextmanager
def watching(given: dict[str, Any]) -> Iterator[Options]:
    """Watch a run as its options say; warnings go to standard error, from a thread.

    Args:
        given: What :func:`watching_options` found.

    Yields:
        Options of the run that come of it.

    Raises:
        ConfigError: A file cannot be written.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(say_to_stderr())
        if given["log"] is not None:
            stack.enter_context(log_to(given["log"], given["log_level"]))
        options: Options = {}
        if given["metrics"] is not None:
            host, port = address_of(given["metrics"])
            options["metrics"] = served = stack.enter_context(Metrics(port, host))
            shown = f"[{host}]" if ":" in host else host
            tell(f"metrics at http://{shown}:{served.port}/metrics")
        if given["otel"]:
            options["tracing"] = stack.enter_context(_exported())
        yield options


@contextlib.contextmanager
def _exported() -> Iterator[Tracing]:
    """Traces that leave for a collector, over HTTP; those that wait are sent at the end."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError('--otel needs opentelemetry: pip install "trunkline[otel]"') from None
    # A name that the environment gives wins.
    resource = Resource({"service.name": "trunkline"}).merge(Resource.create())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    try:
        yield Tracing(provider=provider)
    finally:
        provider.shutdown()
