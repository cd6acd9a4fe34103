"""Sinks: figures of a run for Weights & Biases, MLflow and Trackio (extras: wandb, mlflow, trackio)."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import itertools
import logging
import math
import os
import re
import threading
import time
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline._internal.registry import Registry
from trunkline._internal.text import counted, describe_error, redact
from trunkline._internal.validation import check_optional, check_text
from trunkline.errors import ConfigError
from trunkline.observability.logging import safe
from trunkline.observability.observers import Observer
from trunkline.store.reader import RunReader
from trunkline.store.stats.calls import Spending, add_up, cost_of
from trunkline.store.stats.tasks import tried, usage_of_task
from trunkline.types import FAILED, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trunkline.protocol.job import Job
    from trunkline.protocol.messages import Batch, Done
    from trunkline.store.schema import TakenRow
    from trunkline.types import Task

logger = logging.getLogger(__name__)

WAITING: Final = 1000
"""Finished tasks whose figures may wait to be sent; those of further ones are dropped."""

_WELL: Final = frozenset({"done", "exhausted", "budget", "deadline"})
"""States of runs that no error and no signal ended."""


class Sink(Observer):
    """Base of sinks, which send a run's figures elsewhere: never a question, an answer or a transcript.

    A subclass overrides the three methods below. They are called one after the other in a thread of the run's own, so
    they may wait. One that raises is reported once, and the run goes on. Figures of at most 1,000 tasks wait; those of
    further ones are dropped, and how many is said at the end. The call of the run returns once ``on_run_end`` has, and
    after 30 seconds at the latest.

    One object may be given to run after run, but to one at a time.
    """

    _sender: _Sender | None = None

    def on_run_begin(self, name: str, config: dict[str, Any]) -> None:
        """A run begins, or is continued in another process.

        Args:
            name: Name of the run file, without what is behind its last dot.
            config: The settings of the run, as in the run file, without keys.
        """

    def on_task(self, finished: int, figures: dict[str, float]) -> None:
        """A task is finished.

        Args:
            finished: How many tasks this process has finished; one more each time, unless figures were dropped.
            figures: Of these tasks: ``accuracy``, the mean over tasks of the mean reward of their scored tries, absent
                while nothing is scored; ``tries``; ``errors``, tries that broke; ``prompt_tokens`` (cached too) and
                ``generated_tokens``, as servers reported them; and ``cost`` of all calls so far, in the currency of the
                prices, absent until there is a call whose price is known.
        """

    def on_run_end(self, state: str, figures: dict[str, float]) -> None:
        """The run is over, and its file closed.

        Args:
            state: How it ended: ``done``, ``exhausted``, ``budget``, ``deadline``, ``interrupted`` by a signal or a
                cancellation, or ``failed`` by an error.
            figures: The figures of its summary, those of earlier processes included, such as
                ``summary/accuracy/value`` and ``summary/usage/prompt``; nothing where the run has left no file.
        """

    def opened(self, path: Path) -> None:
        """See ``Observer``."""
        self._sender = _Sender(self, path)

    def begin(self, job: Job, tasks: Sequence[Task], taken: Mapping[int, TakenRow]) -> None:
        """See ``Observer``."""
        self._figures = _Figures(job, taken)

    def committed(self, worker_id: int, batch: Batch, seconds: float) -> None:
        """See ``Observer``."""
        self._figures.called(batch)

    def completed(self, done: Done) -> None:
        """See ``Observer``."""
        figures = self._figures.after(done)
        if self._sender is not None:
            self._sender.put(self._figures.finished, figures)

    async def closed(self, path: Path | None, state: str) -> None:
        """See ``Observer``."""
        sender, self._sender = self._sender, None
        if sender is not None:
            await sender.close(path, state)


class _Figures:
    """The figures of the tasks that a process has finished."""

    def __init__(self, job: Job, taken: Mapping[int, TakenRow]) -> None:
        self._prices, self._taken = job.prices, taken
        self.finished = self._scored = self._tries = self._errors = 0
        self._accuracy = 0.0
        self._usage, self._spent = Usage(), Spending(0.0, 0, 0)

    def called(self, batch: Batch) -> None:
        if self._prices:
            calls = itertools.chain.from_iterable(delta.calls for delta in batch.deltas)
            self._spent = add_up((self._spent, cost_of(calls, self._prices)))

    def after(self, done: Done) -> dict[str, float]:
        """Count a task and return the figures."""
        self.finished += 1
        self._tries += len(done.rollouts)
        self._errors += sum([row.termination in FAILED for row in done.rollouts])
        self._usage += usage_of_task(done.rollouts, self._taken.get(done.task))
        rewards = [reward for row in done.rollouts if not math.isnan(reward := tried(row).reward)]
        if rewards:
            self._scored += 1
            self._accuracy += (math.fsum(rewards) / len(rewards) - self._accuracy) / self._scored
        figures: dict[str, float] = {"accuracy": self._accuracy} if self._scored else {}
        figures |= {"tries": self._tries, "errors": self._errors}
        figures |= {"prompt_tokens": self._usage.prompt, "generated_tokens": self._usage.generated}
        return figures | {"cost": self._spent.money} if self._spent.priced else figures


class _Sender:
    """Calls the methods of a sink in a thread, for one run."""

    def __init__(self, sink: Sink, path: Path) -> None:
        self._sink, self._path = sink, path
        self._queue: SimpleQueue[tuple[int, dict[str, float]] | None] = SimpleQueue()
        self._dropped = 0
        self._failed = self._ending = False
        self._left: Path | None = None
        self._state = ""
        self._over: Future[None] = Future()
        self._over.set_running_or_notify_cancel()
        threading.Thread(target=self._run, name=f"trunkline-{type(sink).__name__}", daemon=True).start()

    def put(self, finished: int, figures: dict[str, float]) -> None:
        if self._queue.qsize() < WAITING:
            self._queue.put((finished, figures))
        else:
            self._dropped += 1

    async def close(self, path: Path | None, state: str) -> None:
        self._left, self._state, self._ending = path, state, True
        self._queue.put(None)
        await asyncio.wrap_future(self._over)

    def _run(self) -> None:
        try:
            self._send()
        finally:
            self._over.set_result(None)

    def _send(self) -> None:
        begun, lost = self._done(self._begin), 0
        while (item := self._queue.get()) is not None:
            # A service that does not answer is not asked for each waiting task again once the run is over.
            given_up = not begun or (self._failed and self._ending)
            if given_up or not self._done(self._sink.on_task, *item):
                lost += 1
        if begun:
            self._done(self._end)
        if lost := lost + self._dropped:
            logger.warning(
                "%s was not sent the figures of %s", type(self._sink).__name__, counted(lost, "finished task")
            )

    def _begin(self) -> None:
        with RunReader.open(self._path, partial=True) as reader:
            config = redact(reader.settings)
        self._sink.on_run_begin(self._path.stem, config)

    def _end(self) -> None:
        figures: dict[str, float] = {}
        if self._left is not None:
            with RunReader.open(self._left, partial=True) as reader:
                figures = dict(_numbers("summary", reader.summary()))
        self._sink.on_run_end(self._state, figures)

    def _done(self, method: Callable[..., None], *arguments: object) -> bool:
        """Call a method; report its first error, and return whether there was none."""
        try:
            method(*arguments)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # a sink ends no run
            if not self._failed:
                self._failed = True
                logger.warning(
                    "%s failed, and the run goes on: %s", type(self._sink).__name__, safe(describe_error(error), 500)
                )
            return False
        return True


def _numbers(name: str, value: object) -> Iterator[tuple[str, float]]:
    """The finite numbers in a summary, and in the structs in it; names of tables in it may be a model's words."""
    if isinstance(value, Spending) and not value.priced:
        return  # no price is known, which is not 0
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from _numbers(f"{name}/{field}", getattr(value, field))
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        yield name, value


def _library(name: str, **switches: str) -> Any:
    """Import the library of a sink, with its telemetry off unless the environment says otherwise."""
    for switch, value in switches.items():
        os.environ.setdefault(switch, value)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f'the sink {name} cannot be imported ({error}): pip install "trunkline[{name}]"') from None


def _check_options(name: str, function: Callable[..., object], options: Mapping[str, object]) -> None:
    if own := sorted({"config", "reinit"}.intersection(options)):
        raise ConfigError(f"the sink {name} sets {own[0]} itself: the settings of the run, in a run of its own")
    try:
        inspect.signature(function).bind_partial(**options)
    except TypeError as error:
        raise ConfigError(f"the sink {name}: {error}; it takes the options of {name}.init") from None


class Wandb(Sink):
    """Sends figures to Weights & Biases, as a run of its own beside any that the program has (extra: wandb).

    Output of the terminal, code, the command line, and what wandb would find out about the machine are not sent.

    Args:
        project: The project; that of ``WANDB_PROJECT``, or wandb's own default, when None.
        **options: As ``wandb.init`` takes them, such as ``entity``, ``name``, ``group``, ``tags`` and ``mode``.

    Raises:
        ConfigError: wandb is missing, or has no such option.
    """

    def __init__(self, project: str | None = None, **options: Any) -> None:
        self._library = _library("wandb", WANDB_ERROR_REPORTING="false")
        check_optional(check_text, "project", project)
        _check_options("wandb", self._library.init, options)
        self._options = {"project": project, **options}

    def on_run_begin(self, name: str, config: dict[str, Any]) -> None:
        """See ``Sink``."""
        library, mode = self._library, self._options.get("mode") or self._library.setup().settings.mode
        # wandb.init would ask for a key in the terminal.
        if mode in {"online", "shared"} and library.run is None and not library.login(prompt=False, verify=False):
            raise ConfigError("there is no API key: run wandb login, or set WANDB_API_KEY, or WANDB_MODE=offline")
        settings = library.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
            quiet=True,
        )
        given = {"name": name, "settings": settings} | self._options
        self._run = library.init(config=config, reinit="create_new", **given)

    def on_task(self, finished: int, figures: dict[str, float]) -> None:
        """See ``Sink``."""
        self._run.log(figures, step=finished)

    def on_run_end(self, state: str, figures: dict[str, float]) -> None:
        """See ``Sink``."""
        self._run.summary.update({"state": state, **figures})
        self._run.finish(exit_code=0 if state in _WELL else 1)


_FOREIGN: Final = re.compile(r"[^\w.\- ]")
"""What names of parameters may not hold in MLflow."""


class MLflow(Sink):
    """Sends figures to MLflow, as a run beside any that the program has active (extra: mlflow).

    Args:
        experiment: The experiment, which is created where there is none; that of ``MLFLOW_EXPERIMENT_NAME``, else
            ``Default``, when None.
        tracking_uri: Where to, such as ``http://host:5000`` or ``sqlite:///mlflow.db``; where MLflow is set to send to
            when None.
        name: Name of the run; that of the run file when None.

    Raises:
        ConfigError: mlflow is missing.
    """

    def __init__(
        self, experiment: str | None = None, *, tracking_uri: str | None = None, name: str | None = None
    ) -> None:
        self._library = _library("mlflow", MLFLOW_DISABLE_TELEMETRY="true")
        for what, value in (("experiment", experiment), ("tracking_uri", tracking_uri), ("name", name)):
            check_optional(check_text, what, value)
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        self._tracking_uri, self._name = tracking_uri, name

    def on_run_begin(self, name: str, config: dict[str, Any]) -> None:
        """See ``Sink``."""
        self._client = self._library.MlflowClient(self._tracking_uri)
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = self._client.create_experiment(self._experiment) if found is None else found.experiment_id
        self._run = self._client.create_run(experiment, run_name=self._name or name).info.run_id
        values = {_FOREIGN.sub("_", key)[:250]: value for key, value in _leaves("", config)}
        parameters = [self._library.entities.Param(*item) for item in values.items()]
        for first in range(0, len(parameters), 100):  # the most that one request may have
            self._client.log_batch(self._run, params=parameters[first : first + 100])

    def on_task(self, finished: int, figures: dict[str, float]) -> None:
        """See ``Sink``."""
        self._log(finished, figures)

    def on_run_end(self, state: str, figures: dict[str, float]) -> None:
        """See ``Sink``."""
        self._log(0, figures)
        self._client.set_tag(self._run, "state", state)
        status = "FINISHED" if state in _WELL else "KILLED" if state == "interrupted" else "FAILED"
        self._client.set_terminated(self._run, status)

    def _log(self, step: int, figures: dict[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._library.entities.Metric(name, value, now, step) for name, value in figures.items()]
        self._client.log_batch(self._run, metrics=metrics)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Settings as names with dots and texts of at most 500 characters; those that are None are left out."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(f"{name}.{key}" if name else key, item)
    elif value is not None:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        yield name, text[:500]


class Trackio(Sink):
    """Sends figures to Trackio: its folder on this machine, or where its options say (extra: trackio).

    Args:
        project: The project; ``trunkline`` when None.
        **options: As ``trackio.init`` takes them, such as ``name``, ``group``, ``space_id`` and ``server_url``.

    Raises:
        ConfigError: trackio is missing, or has no such option.
    """

    def __init__(self, project: str | None = None, **options: Any) -> None:
        self._library = _library("trackio", GRADIO_ANALYTICS_ENABLED="False", HF_HUB_DISABLE_TELEMETRY="1")
        check_optional(check_text, "project", project)
        _check_options("trackio", self._library.init, options)
        self._options = {"project": project or "trunkline", **options}

    def on_run_begin(self, name: str, config: dict[str, Any]) -> None:
        """See ``Sink``."""
        given = {"name": name, "auto_log_gpu": False, "auto_log_cpu": False, "embed": False} | self._options
        self._run = self._library.init(config=config, **given)

    def on_task(self, finished: int, figures: dict[str, float]) -> None:
        """See ``Sink``."""
        self._run.log(figures, step=finished)

    def on_run_end(self, state: str, figures: dict[str, float]) -> None:
        """See ``Sink``."""
        self._run.log({"state": state, **figures})
        self._run.finish()


SINKS: Final[Registry[type[Sink]]] = Registry("sink", {"wandb": Wandb, "mlflow": MLflow, "trackio": Trackio})
"""Sinks by the names of their libraries."""


def read_sink(given: str) -> Sink:
    """Make a sink of ``NAME[:PROJECT]``; raises ConfigError."""
    name, _, project = given.partition(":")
    sink: Sink = SINKS.find(name)(project or None)
    return sink
