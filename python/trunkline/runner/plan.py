"""Validate, create or open the run file, execute."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from trunkline._core import __version__
from trunkline._internal.old_names import earlier_names
from trunkline._internal.resources import worker_share
from trunkline._internal.serialization import importing_script
from trunkline._internal.text import redact
from trunkline._internal.validation import check_bool, check_float, check_int, short_repr
from trunkline.backends.local import InlineBackend, LocalBackend
from trunkline.controller.control_socket import ControlSocket
from trunkline.controller.controller import Controller
from trunkline.errors import ConfigError, CrossingError
from trunkline.llm import messages
from trunkline.llm.cache import Cache, place
from trunkline.observability.event_stream import EventListener
from trunkline.observability.live import check_progress
from trunkline.observability.logging import conceal
from trunkline.observability.observers import Observer
from trunkline.observability.opentelemetry import Tracing
from trunkline.observability.prometheus import PrometheusServer
from trunkline.observability.sinks import read_sink
from trunkline.protocol.backend import BorrowedBackend
from trunkline.protocol.job import Job, Refill, as_llms, live, pack_job, settings
from trunkline.rollout.external.config import External
from trunkline.runner.broken import check_fail_on_error
from trunkline.runner.continue_from import SourceRun
from trunkline.runner.options import Options, TaskSource, with_defaults
from trunkline.runner.preflight import Plan, check, check_budgets, check_out, formula_of, ready
from trunkline.runner.result import Run, TemporaryRunDir
from trunkline.runner.resume import Change, ResumableRun, as_stored, fingerprint, gives_meaning
from trunkline.runner.retry import SPENT, Reopened, Retry, opened
from trunkline.runner.stored_job import STORED, store_job
from trunkline.runner.worker_pool import MOST_WORKERS, WorkerPool
from trunkline.store.datasets.loader import load_tasks
from trunkline.store.reader import RunReader
from trunkline.store.stats.calls import PROBES
from trunkline.store.writer import RunWriter
from trunkline.strategies.chain import Chain
from trunkline.strategies.stopping import Stopping
from trunkline.team.team import Team
from trunkline.types import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trunkline.agent import Agent
    from trunkline.protocol.backend import Backend
    from trunkline.store.schema import TakenRow


def make_backend(job: Job, workers: int | None, tasks: int, pool: object = None) -> Backend:
    """Return the pool's backend, processes for endpoints, or inline for a live LLM and ``workers=0``."""
    stays = live(job.llms)
    if pool is not None:
        return _borrowed(workers, pool, stays)
    if workers is not None:
        check_int("workers", workers, 0, MOST_WORKERS)
    if workers is None:
        return InlineBackend() if stays else LocalBackend(min(2, os.cpu_count() or 1, tasks))
    if workers == 0:
        return InlineBackend()
    if stays:
        raise ConfigError(
            f"workers={workers}: a live {stays} stays in its process; leave workers out, or give the endpoint's URL"
        )
    return LocalBackend(min(workers, tasks))


def _borrowed(workers: int | None, pool: object, stays: str | None) -> Backend:
    if not isinstance(pool, WorkerPool):
        raise ConfigError(f"pool must be a trunkline.Pool, not {short_repr(pool)}")
    if workers is not None:
        raise ConfigError(f"workers={workers}: a pool has its own; give workers to trunkline.Pool, or leave pool out")
    if stays and pool.backend.workers:
        raise ConfigError(
            f"a live {stays} stays in its process: run it on trunkline.Pool('inline'), or give the endpoint's URL"
        )
    return BorrowedBackend(pool.backend)


def watchers(metrics: object, tracing: object, others: object, on_event: Any = None) -> tuple[str, list[Observer]]:
    """Return ``Job.traced`` and the observers; raise ConfigError for an object of another type."""
    if metrics is not None and not isinstance(metrics, PrometheusServer):
        raise ConfigError(f"metrics must be a trunkline.observability.PrometheusServer, not {short_repr(metrics)}")
    if not isinstance(tracing, bool | Tracing):
        raise ConfigError(f"tracing must be True or a trunkline.observability.Tracing, not {short_repr(tracing)}")
    if not isinstance(others, list | tuple) or not all(isinstance(one, Observer | str) for one in others):
        raise ConfigError(
            "observers must be a list of trunkline.observability.Observer and texts such as 'wandb:PROJECT', not "
            f"{short_repr(others)}"
        )
    observers: list[Observer] = [] if metrics is None else [metrics]
    observers += [read_sink(one) if isinstance(one, str) else one for one in others]
    if on_event is not None:
        observers.append(on_event if isinstance(on_event, EventListener) else EventListener(on_event))
    if tracing is False:
        return "", observers
    tracing = Tracing() if tracing is True else tracing
    return "content" if tracing.content else "spans", [*observers, tracing]


_LEAST_MEMORY = 64 * 1024 * 1024
"""Bytes that a worker holds before it has done anything, about."""


class RunSpec:
    """One run with everything checked that needs no request and no file; UsageError for what cannot be done."""

    def __init__(self, agent: Agent | Team, tasks: TaskSource | None = None, **options: Unpack[Options]) -> None:
        told = self._told = with_defaults(options)
        self._changed: list[Change] = []
        self._described: dict[str, Any]
        if importing_script():
            raise CrossingError(
                f"{sys.modules['__trunkline_main__'].__file__} starts a run while a worker imports it; "
                'put the call under  if __name__ == "__main__":'
            )
        if told["labels"] is not None and not isinstance(told["labels"], Mapping):
            raise ConfigError(f"labels must be a mapping, not {told['labels']!r:.60}")
        self._continue_from = None if told["continue_from"] is None else _path_of(told["continue_from"])
        self._out = _out(told["out"])
        self._forced = told["resume"] == "force"
        if told["resume"] not in (True, False, "force"):
            raise ConfigError(f"resume must be true, false or 'force', not {short_repr(told['resume'])}")
        if told["resume"] and self._out is None:
            raise ConfigError(f"resume={told['resume']!r} needs out=PATH, the run file to resume")
        check_bool("durable", told["durable"])
        self._retry = Retry.read(told["retry"])
        if self._retry is not None and not told["resume"]:
            raise ConfigError(f"retry={told['retry']!r} is for a run that is resumed: give resume=True and out=PATH")
        self.retried: dict[int, Reopened] = {}
        check_progress(told["progress"])
        self.threshold = check_fail_on_error(told["fail_on_error"])
        self._resumable = ResumableRun.at(self._out, partial=self._forced) if told["resume"] else None
        if self._resumable is None:
            self._begin(agent, tasks)
        else:
            self._go_on(agent, tasks, self._resumable)
        self._job.traced, self._observers = watchers(
            told["metrics"], told["tracing"], told["observers"], told["on_event"]
        )
        conceal(*self._job.llms.values())
        self._backend = make_backend(self._job, told["workers"], len(self._tasks), told["pool"])
        self._grace = check_float("grace", told["grace"], 0, unit="seconds")
        self._memory = _memory(told["worker_memory"], self._backend.workers)

    def _begin(self, agent: Agent | Team, tasks: TaskSource | None) -> None:
        with nullcontext() if self._continue_from is None else SourceRun(self._continue_from) as earlier:
            if earlier is not None:
                tasks = earlier.tasks(None if tasks is None else check_tasks(tasks))
            self._describe(agent, check_tasks(tasks), None if earlier is None else earlier.seed)
            if earlier is not None:
                earlier.check(self._job)
                self._described["continues"] = {"run": str(earlier.path), "settings": earlier.settings}
        self._seed = self._job.seed if self._continue_from else self._told["seed"]

    def _go_on(self, agent: Agent | Team, tasks: TaskSource | None, there: ResumableRun) -> None:
        """Describe a run that is resumed in its file; its ``continue_from`` run is not read again."""
        self._describe(agent, there.tasks() if tasks is None else check_tasks(tasks), there.seed)
        if self._continue_from is not None:
            self._described["continues"] = there.continues(self._continue_from)
        self._described = there.joined(self._described)
        self._changed = there.compare(self._described, self._tasks, forced=self._forced)
        retry = self._retry
        if retry is None and there.state in SPENT and any(change.root == "budget" for change in self._changed):
            retry = Retry(frozenset({"cut"}), ())  # a larger budget pays for what the old one cut
        if retry is not None:
            with RunReader.open(there.path, partial=self._forced) as reader:
                larger = any(change.root == "task_budget" for change in self._changed)
                self.retried = retry.choose(reader, other_task_budget=larger)
        self._seed = self._job.seed

    def _describe(self, agent: Agent | Team, tasks: list[Task], seed: int | None) -> None:
        told, self._tasks = self._told, tasks
        job = self._job = _job(agent, told, seed)
        if isinstance(job.program, Team):
            job.program.check(tasks)
        check_budgets(job, tasks)
        self._refill = Refill.of(told["groups"], told["max_tasks"], len(tasks))
        refill = None if self._refill is None else self._refill._asdict()
        self._described = settings(job) | {"trunkline": __version__, "refill": refill}
        self._described["labels"] = dict(told["labels"] or {})

    @property
    def over(self) -> bool:
        """Whether the resumed run has nothing left to do."""
        return self._resumable is not None and not self.retried and self._resumable.is_over(self._changed)

    @property
    def fingerprints(self) -> list[str]:
        """Eight hexadecimal digits shared by runs of the same job; those of earlier names of the program follow."""
        described = as_stored(self._described) | {"seed": self._seed}
        records = [msgspec.json.encode(task) for task in self._tasks]
        program = described["program"] or ""
        known = [described, *(described | {"program": name} for name in earlier_names(program))]
        return [fingerprint(one, records) for one in known]

    def plan(self) -> Plan:
        """Return what the run would do; UsageError or RunFileError for what only files or serialization show."""
        if self._resumable is None:
            check_out(self._out)
        check(self._job)
        taken = None
        if self._continue_from is not None and self._resumable is None:
            with SourceRun(self._continue_from) as earlier:
                taken = earlier.look(self._job, self._tasks)
        workers = self._backend.workers
        if workers:
            pack_job(self._job)
        tasks = len(self._tasks) if self._refill is None else self._refill.max_tasks
        rollouts = self._job.strategy.rollouts()
        calls = tasks * rollouts * self._job.agent.max_turns
        bounds = [asker.sampling.max_tokens for asker in self._job.askers]
        described = self._described | {"seed": self._seed}
        return Plan(
            tasks=tasks,
            rollouts=rollouts,
            formula=formula_of(self._job.strategy, rollouts),
            calls=calls,
            generated=None if None in bounds else calls * max(bound for bound in bounds if bound is not None),
            workers=workers,
            out=None if self._out is None else str(self._out),
            settings=redact(msgspec.to_builtins(described, enc_hook=str)),
            taken=taken,
            finished=None if self._resumable is None else self._resumable.finished,
        )


def _job(agent: Agent | Team, told: Any, seed: int | None) -> Job:
    """Make the job of a run; ``seed`` is that of an earlier run, for options without one."""
    program, given = told["program"], told["seed"]
    seed = seed if given is None else given
    if isinstance(agent, Team):
        if program is not None:
            raise ConfigError("a team is a program: leave program out")
        agent, program = agent.agent, agent
    return Job(
        agent=agent,
        strategy=Chain() if told["strategy"] is None else told["strategy"],
        reward=told["reward"],
        llm=as_llms(told["llm"]),
        seed=secrets.randbits(31) if seed is None else seed,
        cache=None if told["cache"] is None else place(told["cache"]),
        filters=told["filters"],
        budget=told["budget"],
        task_budget=told["task_budget"],
        program=program,
        stopping=Stopping(enough=told["enough"], cut_tail=told["cut_tail"], stop_when=told["stop_when"]),
        weights=told["policy_version"],
    )


def _path_of(run: object) -> Path:
    if isinstance(run, Run):
        return run.path
    if not isinstance(run, str | Path) or not str(run):
        raise ConfigError(f"continue_from must be a run or the path of a run file, not {short_repr(run)}")
    return Path(run).absolute()


def _out(told: object) -> Path | None:
    """Return the path of the run file; None for a temporary one."""
    if told is None:
        return None
    if not isinstance(told, str | os.PathLike) or not os.fspath(told):
        raise ConfigError(f"out must be the path of a run file, not {short_repr(told)}")
    return Path(told).absolute()


def _memory(told: int | None, workers: int) -> int | None:
    """Return the most bytes of a worker process; None without processes."""
    if told is not None:
        check_int("worker_memory", told, _LEAST_MEMORY)
    return (told or worker_share(workers)) if workers else None


_TOGETHER = 64  # tasks that are encoded at once


def check_tasks(tasks: TaskSource | None) -> list[Task]:
    """Return tasks as a list, a file's by its path; ConfigError for none, duplicate ids, or what cannot be stored."""
    if isinstance(tasks, str | os.PathLike):
        tasks = load_tasks(os.fspath(tasks))
    if isinstance(tasks, Task):
        raise ConfigError(f"tasks must be a list of tasks, not {tasks!r:.60}; put it in a list")
    listed = list(tasks or ())
    if not listed:
        raise ConfigError("there are no tasks to run")
    for start in range(0, len(listed), _TOGETHER):
        _check_some(listed[start : start + _TOGETHER])
    if len({task.id for task in listed}) < len(listed):
        name = next(name for name, times in Counter(task.id for task in listed).items() if times > 1)
        raise ConfigError(f"two tasks have the id {name!r}; ids must be unique in a run")
    return listed


def _check_some(tasks: Sequence[Task]) -> None:
    """Check that objects are tasks that can be sent and stored."""
    for task in tasks:
        if type(task) is not Task and not isinstance(task, Task):
            raise ConfigError(
                f"{task!r:.60} is not a task; make one with Task.ask(question, answer), or load_tasks(path)"
            )
        try:
            messages.check(task.messages)
        except ConfigError as error:
            raise ConfigError(f"task {task.id!r}: {error}") from None
    try:
        _encode(tasks)
    except (TypeError, ValueError, OverflowError, RecursionError):
        for task in tasks:
            for field in Task.__struct_fields__:
                _check_kept(f"task {task.id!r}: {field}", getattr(task, field))
            _check_kept(f"task {task.id!r}", task)


def _encode(value: object) -> None:
    """Encode a value as the run file and the protocol of workers do; raises what msgspec does."""
    msgspec.json.encode(value)
    # On the way to a worker there are no whole numbers beyond 64 bits.
    msgspec.msgpack.encode(value)


def _check_kept(name: str, value: object) -> None:
    """Refuse a value that the run file or the protocol of workers cannot hold."""
    try:
        _encode(value)
    except UnicodeEncodeError as problem:
        held = short_repr(problem.object[problem.start])
        raise ConfigError(f"{name} holds a lone surrogate, {held}, which no file can: remove it") from None
    except (TypeError, ValueError, OverflowError, RecursionError) as problem:
        raise ConfigError(f"{name} cannot be stored as JSON: {problem}") from None


logger = logging.getLogger(__name__)


class PreparedRun(RunSpec):
    """A checked run whose file is created or opened; a UsageError leaves no file and sends nothing."""

    def __init__(self, agent: Agent | Team, tasks: TaskSource | None = None, **options: Unpack[Options]) -> None:
        super().__init__(agent, tasks, **options)
        if self._job.cache is not None:
            # Refuses what no worker could open.
            Cache(self._job.cache).close()
        self._folder = TemporaryRunDir() if self._out is None else None
        self.path = self._folder.path / "run" if self._folder else Path(self._out or "")
        self._state = "running" if self._resumable is None else self._resumable.state
        if self.over:
            return
        self._writer = self._open()
        self._resumed = bool(self._writer.progress.state)
        taken = self._writer.progress.taken if self._resumed else self._take_over()
        self.controller = Controller(
            self._job,
            self._tasks,
            self._writer,
            self._backend,
            self._told["watch"],
            taken,
            self._refill,
            durable=self._told["durable"],
            grace=self._grace,
            memory=self._memory,
            observers=self._observers,
        )
        self.interrupt: Callable[[bool], None] = lambda at_once: self.controller.stop_soon(at_once=at_once)

    def _open(self) -> RunWriter:
        """Create the run's file, or open it to resume it."""
        durable = self._told["durable"]
        facts = {STORED: store_job(self._job, self._backend.workers, durable=durable)}
        if self._resumable is None:
            return RunWriter.create(
                self.path,
                self._described,
                self._tasks,
                durable=durable,
                facts=facts,
                state="running" if self._continue_from is None else "beginning",
                over_stub=bool(self._told["resume"]),
            )
        with RunReader.open(self.path, partial=self._forced) as reader:
            reopened = list(opened(reader, self.retried))
        return RunWriter.open(
            self.path,
            durable=durable,
            settings=self._described,
            facts=facts,
            changed=[str(change) for change in self._changed],
            forced=any(gives_meaning(change.field) for change in self._changed),
            partial=self._forced,
            reopened=reopened,
        )

    def _take_over(self) -> dict[int, TakenRow]:
        """Write the trees of ``continue_from`` into the run file, which is discarded if that fails."""
        if self._continue_from is None:
            return {}
        try:
            self._writer.note("continues", str(self._continue_from))
            with SourceRun(self._continue_from) as earlier:
                taken = earlier.take_over(self._job, self._tasks, self._writer)
            self._writer.begin()
        except BaseException:
            self._writer.discard()
            raise
        return taken

    @property
    def suspect(self) -> bool:
        """Whether rollouts or tasks of the run may have broken, or replays of an agent diverged."""
        external = isinstance(self._job.program, External)  # whose replays may have diverged without that
        return self.over or self._resumed or self.controller.broke or external

    @property
    def finished(self) -> list[str]:
        """Ids of the tasks that were complete before this process began."""
        return [self._tasks[number].id for number in self._writer.progress.finished]

    async def execute(self) -> Run:
        """Run to the end and close the run file, or remove it if it holds nothing of the run."""
        if self.over:
            return self.result()
        self._state = "failed"
        try:
            if self.controller.task_queue.open:
                if sent := await ready(self._job):
                    self._writer.note(PROBES, msgspec.to_builtins([*self._writer.progress.probes, *sent]))
                self.controller.observers.opened(self.path)
                with (
                    nullcontext()
                    if self._folder
                    else ControlSocket(self.path, self.interrupt, self.controller.progress)
                ):
                    await self.controller.run()
            self._state = "interrupted" if self.controller.stopped else self.controller.ended or self._ended()
        except asyncio.CancelledError:
            self._state = "interrupted"
            raise
        finally:
            shot = self.controller.progress
            if self._resumed or self._state not in {"failed", "interrupted"} or shot.calls or shot.lost:
                self._writer.finish(self._state)
                kept = True
            else:
                self._writer.discard()
                kept = False
            # A coroutine that is closed, as its loop is gone, may not wait.
            if not isinstance(sys.exception(), GeneratorExit):
                await self.controller.observers.closed(self.path if kept else None, self._state)
        return self.result()

    def _ended(self) -> str:
        shot = self.controller.progress
        if not self.controller.task_queue.short:
            return "done"
        logger.warning("only %d of %s groups were kept of %d tasks", shot.kept, shot.groups, shot.tasks_done)
        return "exhausted"

    def result(self) -> Run:
        """Return the run's result, once it is over."""
        return Run(self.path, self._state, self._folder)


def plan(agent: Agent | Team, tasks: TaskSource | None = None, **options: Unpack[Options]) -> Plan:
    """Check a run and compute the most that it would do; no request is sent and no file is made.

    Args:
        agent: The agent or team that would play.
        tasks: The problems; their ids must be unique.
        **options: See ``Options``.

    Raises:
        UsageError: If something in it cannot be done.
    """
    return RunSpec(agent, tasks, **options).plan()
