"""The progress line, the options that watch a run, and running it to its exit code."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Self, TextIO, TypeVar, Unpack

import click

from trunkline._internal.text import counted, duration
from trunkline._internal.tool_output import limited_output
from trunkline.cli.output import tell, telling
from trunkline.cli.show import print_summary
from trunkline.errors import ConfigError
from trunkline.observability.logging import LEVELS, log_to, say_to_stderr
from trunkline.observability.observers import explain, pause_of
from trunkline.observability.opentelemetry import Tracing
from trunkline.observability.prometheus import PrometheusServer, address_of
from trunkline.runner.retry import SPENT
from trunkline.runner.run import run
from trunkline.team.team import Team, context_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console
    from rich.live import Live

    from trunkline.agent import Agent
    from trunkline.observability.observers import Progress
    from trunkline.runner.options import Options
    from trunkline.store.stats.summary import Summary
    from trunkline.types import Task


_EVERY = 5.0  # seconds between plain lines
_REFRESH = 0.1  # seconds between drawings of the live line
_WINDOW = 15.0  # seconds over which rates are measured


def _compact(number: float) -> str:
    for limit, scale, unit in ((1e4, 1, ""), (1e7, 1e3, "k"), (1e10, 1e6, "M")):
        if number < limit:
            return f"{number / scale:,.0f}{unit}"
    return f"{number / 1e9:,.0f}G"


def is_terminal(stream: TextIO) -> bool:
    """Whether a live line can be drawn there: a terminal that is not dumb, and no NO_COLOR."""
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    except ValueError:  # closed
        return False


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    class Lasting(Console):
        def on_broken_pipe(self) -> None:
            # rich ends the process here; the error goes to the caller instead.
            raise  # noqa: PLE0704

    return Lasting(file=stream)


def _done(snapshot: Progress) -> tuple[str, str]:
    if snapshot.groups is not None:
        kept = f"{snapshot.kept:,}/{snapshot.groups:,} groups kept of {snapshot.tasks_done:,} tasks"
        return kept, f"{snapshot.rollouts_done:,} rollouts"
    done = f"{snapshot.tasks_done:,}/{snapshot.tasks:,} tasks"
    return done, f"{snapshot.rollouts_done:,}/{snapshot.rollouts:,} rollouts"


class ProgressLine:
    """Shows how far a run is, on stderr unless told otherwise; losing the stream never stops the run.

    Use it as a context manager and hand :meth:`update` to the run.
    """

    def __init__(self, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream: TextIO | None = sys.stderr if stream is None else stream
        self._clock = clock
        self._began = clock()
        self._shown = -float("inf")
        self._last = ""
        self._recent: deque[tuple[float, int, int]] = deque([(self._began, 0, 0)])
        self._live: Live | None = None
        self._snapshot: Progress | None = None

    def __enter__(self) -> Self:
        if self._stream is not None and is_terminal(self._stream):
            from rich.live import Live

            # stdout has the results, so only stderr is passed through the live line.
            live = Live(
                console=_console(self._stream),
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=self._stream is sys.stderr,
            )
            self._live = live
            self._guard(live.start)
        return self

    def __exit__(self, kind: object, problem: object, trace: object) -> None:
        self.close()

    def update(self, snapshot: Progress) -> None:
        """Show a newer state, unless the last one was shown a moment ago."""
        self._snapshot = snapshot
        now = self._clock()
        self._recent.append((now, snapshot.rollouts_done, snapshot.prompt + snapshot.generated))
        while len(self._recent) > 2 and self._recent[1][0] <= now - _WINDOW:
            self._recent.popleft()
        wait = _REFRESH if self._live is not None else _EVERY
        if now - self._shown >= wait:
            self._shown = now
            self._show(self.line(snapshot, now), explain(snapshot) or self.workers(snapshot))

    def close(self) -> None:
        """Write the last state as a plain line; the stream is not used again."""
        live, self._live = self._live, None
        if live is not None:
            self._guard(live.stop)
        if self._snapshot is not None:
            line = self.line(self._snapshot, self._clock())
            if live is not None or line != self._last:
                self._show(line)
        self._stream = None

    def line(self, snapshot: Progress, now: float) -> str:
        """The state as one line."""
        began, rollouts, tokens = self._recent[0]
        span = max(now - began, 1e-9)
        rate = (snapshot.rollouts_done - rollouts) / span
        spent = (snapshot.prompt + snapshot.generated - tokens) / span
        left = snapshot.rollouts - snapshot.rollouts_done
        passed = now - self._began
        # How many tasks a refill takes is not known before.
        ahead = left > 0 and snapshot.rollouts_done > 0 and snapshot.groups is None
        pause = pause_of(snapshot)
        # What matters most comes first: a narrow terminal cuts the end off.
        parts = [
            *_done(snapshot),
            *([f"next request in {duration(pause)}"] if pause >= 1 else []),
            f"{duration(passed * left / snapshot.rollouts_done)} left" if ahead else duration(passed),
            f"{snapshot.failed:,} errors, {snapshot.retries:,} retries",
            f"{rate:,.1f} rollouts/s",
            f"{_compact(spent)} tokens/s",
        ]
        slow = snapshot.percentile(0.95)
        if slow is not None:
            parts.append(f"p50 {duration(snapshot.percentile(0.5) or 0, 2)}, p95 {duration(slow, 2)}")
        return " | ".join(parts)

    @staticmethod
    def workers(snapshot: Progress) -> str:
        """The state of each worker, as one line; empty before the first report."""
        return " | ".join(
            f"w{worker_id} {state.lag * 1000:.0f} ms lag {state.memory >> 20:,} MiB {state.requests:,} requests"
            + (f" {state.tools:,} tools" if state.tools else "")
            for worker_id, state in sorted(snapshot.engines.items())
        )

    def _show(self, line: str, more: str = "") -> None:
        live = self._live
        if live is not None:
            from rich.text import Text

            text = "\n".join(filter(None, (line, more)))
            self._guard(lambda: live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True))
        else:
            self._last = line
            self._guard(lambda: self._write(line))

    def _write(self, line: str) -> None:
        if self._stream is not None:
            self._stream.write(line + "\n")
            self._stream.flush()

    def _guard(self, action: Callable[[], object]) -> None:
        try:
            action()
        except (OSError, ValueError):
            # The terminal or the pipe is gone. The run continues without it, with sys.stderr as it was.
            live, self._live = self._live, None
            self._stream = None
            if live is not None:
                with contextlib.suppress(OSError, ValueError):
                    live.stop()


F = TypeVar("F", bound="Callable[..., object]")

_OPTIONS = (
    click.option("--log", type=click.Path(), metavar="FILE", help="Add what is logged to FILE, as lines of JSON."),
    click.option(
        "--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="The least that --log writes."
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
    """Add the options of :func:`watching` to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@contextlib.contextmanager
def watching(given: dict[str, Any]) -> Iterator[Options]:
    """Yield the options of a run that :func:`watching_options` found; meanwhile warnings go to standard error."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(say_to_stderr())
        if given["log"] is not None:
            stack.enter_context(log_to(given["log"], given["log_level"]))
        options: Options = {}
        if given["metrics"] is not None:
            host, port = address_of(given["metrics"])
            options["metrics"] = served = stack.enter_context(PrometheusServer(port, host))
            shown = f"[{host}]" if ":" in host else host
            tell(f"metrics at http://{shown}:{served.port}/metrics")
        if given["otel"]:
            options["tracing"] = stack.enter_context(_exported())
        yield options


@contextlib.contextmanager
def _exported() -> Iterator[Tracing]:
    """Traces sent to a collector over HTTP; the rest of them at the end."""
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


def drive(
    agent: Agent | Team,
    tasks: Sequence[Task] | None,
    *,
    threshold: float,
    watched: dict[str, Any],
    as_json: bool = False,
    said: str = "",
    **options: Unpack[Options],
) -> int:
    """Run, print the summary, and return the exit code."""
    # Tools may run in this process, whose standard output is for results.
    with watching(watched) as observed, ProgressLine() as progress, limited_output("code that runs in this process"):
        lines = [said] if said else []

        def watch(shot: Progress) -> None:
            if lines:
                tell(lines.pop())
            progress.update(shot)

        options["watch"] = watch
        options.update(observed)
        result = run(agent, tasks, **options)
    if lines:
        # A run that was over is not run again.
        tell(lines.pop())
    with telling(f"summing up all rows of {result.path}", result.path, quiet=as_json):
        summary = result.summary()
    print_summary(summary, as_json=as_json)
    tell(f"run file: {options['out']}")
    team = agent if isinstance(agent, Team) else options.get("program")
    if isinstance(team, Team) and (limit := context_limit(team.max_context_length, team.tokenizer)):
        tell(f"context: {limit}")
    if summary.groups is not None and summary.groups_kept < summary.groups:
        missing = f"only {summary.groups_kept} of {summary.groups} groups were kept of {summary.finished} tasks"
        more = "give more questions, or loosen a filter" if result.state == "exhausted" else f"ended by {result.state}"
        tell(f"{missing}: {more}")
        return 1
    if result.state in {"budget", "deadline"}:
        left, cut = summary.tasks - summary.finished, sum(summary.ended.get(word, 0) for word in SPENT)
        came_to = [f"left {counted(left, 'task')} that {'was' if left == 1 else 'were'} not begun"] if left else []
        came_to += [f"cut tries of {counted(cut, 'task')}"] if cut else []
        go_on = f"trunkline resume {shlex.quote(str(options['out']))} --budget WHAT=N,..."
        tell(f"the {result.state} of the run {' and '.join(came_to)}; with a larger one: {go_on}")
        return 1
    return judge(summary, threshold)


def judge(summary: Summary, threshold: float) -> int:
    """Return 1 if more rollouts broke than allowed, else 0. ``threshold`` is a share below 1, a count from 1 on.

    Rollouts that broke in an earlier run do not count. A task that broke as a whole does, as when its worker died.
    """
    allowed = threshold * summary.rollouts if threshold < 1 else threshold
    before = 0 if summary.taken is None else summary.taken.failed
    return int(max(summary.failed - before, summary.broken) > allowed)
