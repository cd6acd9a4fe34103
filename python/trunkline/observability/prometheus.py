"""Metrics for Prometheus, counted in the controller (extra: metrics)."""

from __future__ import annotations

import importlib
import itertools
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import msgspec

from trunkline._internal.text import printable, without_secrets
from trunkline._internal.validation import check_int, short_repr
from trunkline.errors import ConfigError
from trunkline.observability.observers import Observer, Progress
from trunkline.store.stats.calls import cost_of
from trunkline.tools.environment_pool import PoolCounts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trunkline.protocol.job import Job
    from trunkline.protocol.messages import Batch, Done
    from trunkline.store.schema import CallRow, TakenRow, ToolRow
    from trunkline.types import Task

_LABELS = 64
"""Different values of a label; further ones are counted together."""

_OTHER = "(other)"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)


def address_of(text: str) -> tuple[str, int]:
    """Read ``[HOST:]PORT``; without a host, the loopback interface. Raises ConfigError for anything else."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"metrics must be [HOST:]PORT, such as 9464, not {short_repr(text)}")
    return host.strip("[]") or "127.0.0.1", int(port)


class PrometheusServer(Observer):
    """Counters, gauges and histograms of runs, served for Prometheus at ``http://HOST:PORT/metrics``.

    One object may serve run after run; its counters continue. They count in the controller: what a worker has not
    sent yet is in none.

    Args:
        port: Where to serve; 0 takes a free port, None serves nothing.
        host: The interface; the loopback interface unless another is named.
        registry: A ``prometheus_client.CollectorRegistry`` to register with; one of its own when None.

    Attributes:
        registry: The registry.
        port: The port it is served at; None where it is not.

    Raises:
        ConfigError: The library is missing, or nothing can be served there.
    """

    def __init__(self, port: int | None = None, host: str = "127.0.0.1", registry: Any = None) -> None:
        try:
            library = importlib.import_module("prometheus_client")
        except ImportError:
            raise ConfigError('metrics need prometheus-client: pip install "trunkline[metrics]"') from None
        self.registry = library.CollectorRegistry() if registry is None else registry
        self.port: int | None = None
        self._make(library)
        self._known: dict[str, dict[str, str]] = {"endpoint": {}, "agent": {}, "tool": {}}
        self._worker_ids: set[int] = set()
        self._before = Progress(0, 0)
        self._taken: Mapping[int, TakenRow] = {}
        self._prices: dict[str, Any] = {}
        self._agent = ""
        self._server: Any = None
        if port is not None:
            check_int("metrics port", port, 0, 65535)
            try:
                self._server, self._thread = library.start_http_server(port, host, registry=self.registry)
            except OSError as error:
                raise ConfigError(f"cannot serve metrics at {host}:{port}: {error.strerror or error}") from None
            self.port = self._server.server_port

    def close(self) -> None:
        """Serve no more; may be called again."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, problem: object, trace: object) -> None:
        self.close()

    def begin(self, job: Job, tasks: Sequence[Task], taken: Mapping[int, TakenRow]) -> None:
        """See ``Observer``."""
        self._taken, self._prices, self._agent = taken, job.prices, job.agent.name
        self._before = Progress(0, 0)

    def committed(self, worker_id: int, batch: Batch, seconds: float) -> None:
        """See ``Observer``."""
        self._commits.inc()
        self._commit.observe(seconds)
        for delta in batch.deltas:
            self._bytes.inc(len(delta.data))
            self._turns.inc(delta.turns)
            for call in delta.calls:
                self._called(call)
            for use in delta.tools:
                self._used(use)
        if self._prices:
            calls = itertools.chain.from_iterable(delta.calls for delta in batch.deltas)
            self._money.inc(max(0.0, cost_of(calls, self._prices).money))

    def completed(self, done: Done) -> None:
        """See ``Observer``."""
        before = self._taken.get(done.task)
        self._tasks.labels(ended=done.tree.ended).inc()
        for row in done.rollouts:
            if before is None or row.rollout >= before.rollouts:
                self._rollouts.labels(termination=row.termination or "none").inc()

    def look(self, progress: Progress) -> None:
        """See ``Observer``."""
        self._deaths.inc(progress.died - self._before.died)
        self._before.died = progress.died
        self._workers.set(progress.workers)
        self._quiet.set(progress.quiet)
        for worker_id in self._worker_ids - progress.engines.keys():
            for gauge in self._gauges.values():
                gauge.remove(str(worker_id))
            for name in PoolCounts._fields:
                with suppress(KeyError):  # it had no pool
                    self._environments.remove(str(worker_id), name)
        self._worker_ids = set(progress.engines)
        for worker_id, state in progress.engines.items():
            for name, gauge in self._gauges.items():
                gauge.labels(worker=str(worker_id)).set(getattr(state, name))
            for name, value in () if state.environments is None else state.environments._asdict().items():
                self._environments.labels(worker=str(worker_id), count=name).set(value)

    def end(self, progress: Progress) -> None:
        """See ``Observer``."""
        self.look(msgspec.structs.replace(progress, engines={}, workers=0))

    def _called(self, call: CallRow) -> None:
        endpoint = self._label("endpoint", call.endpoint)
        outcome = "failed" if call.failed else "answered" if call.attempts else "cached"
        agent = self._label("agent", call.agent or self._agent)
        self._calls.labels(endpoint=endpoint, agent=agent, outcome=outcome).inc()
        if not call.attempts:
            return
        self._retries.labels(endpoint=endpoint).inc(call.attempts - 1)
        self._latency.labels(endpoint=endpoint, agent=agent).observe(call.micros / 1e6)
        self._queue.labels(endpoint=endpoint).observe(call.queue / 1e6)
        if call.first >= 0:
            self._first.labels(endpoint=endpoint).observe(call.first / 1e6)
        if call.reported:
            counts = {"prompt": call.prompt, "cached": max(0, call.cached), "generated": call.generated}
            for kind, tokens in counts.items():
                self._tokens.labels(endpoint=endpoint, agent=agent, kind=kind).inc(tokens)

    def _used(self, use: ToolRow) -> None:
        tool = self._label("tool", use.tool)
        self._tools.labels(tool=tool).observe(use.micros / 1e6)
        if use.failed:
            self._tool_errors.labels(tool=tool).inc()

    def _label(self, kind: str, value: str) -> str:
        """Return a value of a label that is safe to show; one of not too many."""
        known = self._known[kind]
        if value not in known:
            if len(known) >= _LABELS:
                return _OTHER
            known[value] = printable(without_secrets(value), 200)
        return known[value]

    def _make(self, library: Any) -> None:
        """Register all metrics."""

        def counter(name: str, text: str, *labels: str) -> Any:
            return library.Counter(f"trunkline_{name}", text, labels, registry=self.registry)

        def seconds(name: str, text: str, *labels: str) -> Any:
            return library.Histogram(
                f"trunkline_{name}_seconds", text, labels, registry=self.registry, buckets=_SECONDS
            )

        def gauge(name: str, text: str, *labels: str) -> Any:
            return library.Gauge(f"trunkline_{name}", text, labels, registry=self.registry)

        self._tasks = counter("tasks", "Tasks that are over, by how their trees ended.", "ended")
        self._rollouts = counter("rollouts", "Rollouts of tasks that are over, by why they ended.", "termination")
        self._turns = counter("turns", "Model turns in the run file.")
        self._calls = counter("calls", "Model calls that came back.", "endpoint", "agent", "outcome")
        self._retries = counter("call_retries", "Attempts of calls beyond the first.", "endpoint")
        self._tokens = counter(
            "tokens", "Tokens as servers reported them; cached ones are prompt, too.", "endpoint", "agent", "kind"
        )
        self._latency = seconds("call", "Whole calls, waits and retries included.", "endpoint", "agent")
        self._queue = seconds("call_queue", "What calls waited for a slot or a limit.", "endpoint")
        self._first = seconds("call_first_byte", "From the last attempt to its answer's first byte.", "endpoint")
        self._tools = seconds("tool", "Tool calls, waiting for their turn included.", "tool")
        self._tool_errors = counter("tool_errors", "Tool calls that failed.", "tool")
        self._money = counter("spent_money", "What priced calls cost, in the currency of the prices.")
        self._commits = counter("batches", "Batches of workers in the run file.")
        self._bytes = counter("run_file_bytes", "Bytes of deltas in the run file.")
        self._commit = seconds("commit", "Transactions of the run file.")
        self._deaths = counter("worker_deaths", "Workers that died; each is replaced where that makes sense.")
        self._workers = gauge("workers", "Workers that are up.")
        self._quiet = gauge("quiet_seconds", "Since anything got into the run file.")
        self._gauges = {
            "lag": gauge("event_loop_lag_seconds", "How late a worker's event loop was.", "worker"),
            "memory": gauge("worker_memory_bytes", "What a worker's process holds.", "worker"),
            "rollouts": gauge("rollouts_growing", "Rollouts that grow.", "worker"),
            "requests": gauge("requests_in_flight", "Requests that are out.", "worker"),
            "request": gauge("oldest_request_seconds", "How long the oldest request has been out.", "worker"),
            "tools": gauge("tools_running", "Tool calls that run.", "worker"),
        }
        self._environments = gauge("pool_environments", "Counts of a worker's pool of environments.", "worker", "count")
