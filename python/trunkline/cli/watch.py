"""The options that watch a run, and running it to its exit code."""

from __future__ import annotations

import contextlib
import shlex
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import click

from trunkline._internal.text import counted, duration
from trunkline._internal.tool_output import limited_output
from trunkline.cli.output import print_summary, put, tell, telling
from trunkline.cli.tables import agents_table
from trunkline.errors import ConfigError, TrunklineError
from trunkline.observability.live import ProgressLine
from trunkline.observability.logging import LEVELS, log_to, say_to_stderr
from trunkline.observability.observers import Observer
from trunkline.observability.opentelemetry import Tracing
from trunkline.observability.prometheus import PrometheusServer, address_of
from trunkline.observability.server_metrics import ServerMetrics
from trunkline.runner.broken import broken_lines, judge
from trunkline.runner.retry import SPENT
from trunkline.runner.run import run_to_end
from trunkline.store.reader import RunReader
from trunkline.store.stats.profile import profile
from trunkline.team.team import Team, context_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trunkline.agent import Agent
    from trunkline.observability.observers import Progress
    from trunkline.protocol.job import Job
    from trunkline.protocol.messages import Batch, Done
    from trunkline.runner.options import Options
    from trunkline.store.schema import CallRow, TakenRow, ToolRow
    from trunkline.types import Task


F = TypeVar("F", bound="Callable[..., object]")

_OPTIONS = (
    click.option("--verbose", "-v", is_flag=True, help="Show each worker beside the live line, and all figures."),
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
        "--agents-every",
        type=click.IntRange(1),
        metavar="N",
        help="Print calls, rows, times and tokens of each agent after every N finished tasks.",
    ),
    click.option(
        "--server-metrics",
        is_flag=True,
        help="Ask each endpoint how many requests run and wait there (/metrics of vLLM, SGLang, llama.cpp).",
    ),
    click.option(
        "--sink",
        "sinks",
        multiple=True,
        metavar="wandb|mlflow|trackio[:PROJECT]",
        help="Send figures of the run there, and no texts (extra: wandb, mlflow or trackio); repeatable.",
    ),
    click.option(
        "--otel",
        is_flag=True,
        help="Send traces to the collector that the variables OTEL_EXPORTER_OTLP_* name (extra: otel).",
    ),
)


class AgentsEvery(Observer):
    """Prints a line for each agent after every so many finished tasks: of these tasks' rows, and of all calls since."""

    def __init__(self, tasks: int, path: str) -> None:
        self._every, self._path = tasks, path
        self._thread = ThreadPoolExecutor(1)
        self._since = time.monotonic()
        self._done: list[int] = []
        self._calls: list[tuple[int, CallRow]] = []
        self._uses: list[tuple[int, ToolRow]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, problem: object, trace: object) -> None:
        self._thread.shutdown()

    def begin(self, job: Job, tasks: Sequence[Task], taken: Mapping[int, TakenRow]) -> None:
        """See ``Observer``."""
        self._agent, self._since = job.agent.name, time.monotonic()

    def committed(self, worker_id: int, batch: Batch, seconds: float) -> None:
        """See ``Observer``."""
        for delta in batch.deltas:
            self._calls.extend((delta.task, call) for call in delta.calls)
            self._uses.extend((delta.task, use) for use in delta.tools)

    def completed(self, done: Done) -> None:
        """See ``Observer``."""
        self._done.append(done.task)
        if len(self._done) == self._every:
            now = time.monotonic()
            self._thread.submit(self._print, now - self._since, self._done, self._calls, self._uses)
            self._since, self._done, self._calls, self._uses = now, [], [], []

    def _print(
        self, seconds: float, tasks: list[int], calls: list[tuple[int, CallRow]], uses: list[tuple[int, ToolRow]]
    ) -> None:
        try:
            with RunReader.open(self._path, partial=True) as reader:
                rows = reader.role_rows(tasks) if reader.settings.get("team") else None
        except TrunklineError as error:
            tell(f"no figures of the agents: {error}")
            return
        found = profile(self._agent, seconds, calls, uses, (), (), rows)
        tell(f"the last {counted(len(tasks), 'task')}, {duration(seconds)}")
        for line in agents_table(found.agents, notes=False).splitlines():
            tell("  " + line)


def watching_options(command: F) -> F:
    """Add the options of ``watching`` to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@contextlib.contextmanager
def watching(given: dict[str, Any]) -> Iterator[Options]:
    """Yield the options of a run that ``watching_options`` found; meanwhile warnings go to standard error."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(say_to_stderr())
        if given["log"] is not None:
            stack.enter_context(log_to(given["log"], given["log_level"]))
        options: Options = {"observers": [*([ServerMetrics()] if given["server_metrics"] else []), *given["sinks"]]}
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
    verbose = watched["verbose"]
    shown = ProgressLine(verbose=verbose)
    every = watched["agents_every"]
    with (
        watching(watched) as observed,
        shown as progress,
        limited_output("code that runs in this process"),
        AgentsEvery(every, str(options["out"])) if every else contextlib.nullcontext() as agents,
    ):
        lines = [said] if said else []

        def watch(shot: Progress) -> None:
            if lines:
                tell(lines.pop())
            progress.update(shot)

        options["watch"] = watch
        options.update(observed)
        options["observers"] = [*observed.get("observers", []), *([agents] if agents else [])]
        _, result = run_to_end(agent, tasks, options)
    if lines:
        # A run that was over is not run again.
        tell(lines.pop())
    with telling(f"summing up all rows of {result.path}", result.path, quiet=as_json):
        summary = result.summary()
    print_summary(summary, str(options["out"]), as_json=as_json, verbose=verbose)
    team = agent if isinstance(agent, Team) else options.get("program")
    if isinstance(team, Team) and not as_json:
        put("\n" + agents_table(result.profile().agents))
    if as_json:
        tell(f"run file: {options['out']}")
    for line in broken_lines(result, summary):
        tell(line)
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
