"""A run before it starts, and its execution: everything that can be checked without a request is checked first."""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from trunkline._core import __version__
from trunkline.bounds import shown
from trunkline.errors import ConfigError, CrossingError
from trunkline.llm import messages
from trunkline.llm.batch import BatchLLM
from trunkline.llm.cache import Cache, place
from trunkline.llm.client import as_llm
from trunkline.llm.spec import EndpointSpec
from trunkline.rollout.stopping import Stopping
from trunkline.rollout.strategies.chain import Chain
from trunkline.runtime.afford import check_budgets
from trunkline.runtime.controller import Controller
from trunkline.runtime.crossing import importing_script
from trunkline.runtime.earlier import EarlierRun
from trunkline.runtime.handout import Refill
from trunkline.runtime.job import Job, pack_job, settings
from trunkline.runtime.outline import Outline, check_out, outline
from trunkline.runtime.pool import LocalPool, make_pool
from trunkline.runtime.ready import check, ready
from trunkline.runtime.result import Run, Shelf
from trunkline.store.writer import RunWriter
from trunkline.types import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trunkline.llm.protocol import LLM
    from trunkline.rollout.agent import Agent
    from trunkline.rollout.budget import Budget
    from trunkline.rollout.strategy import Strategy
    from trunkline.runtime.snapshot import Snapshot
    from trunkline.score.filters.filter import Filter
    from trunkline.score.rewards import Reward
    from trunkline.store.schema import TakenRow

__all__ = ["Draft", "Options", "Plan", "plan"]

logger = logging.getLogger(__name__)


class Options(TypedDict, total=False):
    """What a run can be told, beside its agent and tasks.

    Attributes:
        llm: Endpoints as :class:`trunkline.LLM` (the default reads ``OPENAI_BASE_URL``), or an ``openai.AsyncOpenAI``
            client, a batch engine as :class:`trunkline.BatchLLM`, or any object with ``async complete(request)``. All
            but endpoints stay in this process.
        strategy: Where rollouts start; one chain a task when None.
        reward: Scores each finished rollout; nothing is scored when None.
        workers: Worker processes; 0 stays in this process; when None, two where the LLM can cross, else 0.
        seed: Seed of the run: every draw's seed derives from it. Drawn at random, and recorded, when None.
        cache: Path of a file of answers: a draw that was answered once, in this run or an earlier one of the same
            seed, is not asked for again. None for none.
        start_from: An earlier run, or the path of its file: its trees are taken over and go on, those that never ended
            too; for strategies that continue, such as :class:`trunkline.Partial`. System prompt, dialect and tools
            must be the same; tasks are the earlier run's, all of them when none are given; the seed is its seed when
            None.
        budget: The most that the run may spend, :class:`trunkline.Budget`. Near its limit what is refused depends on
            timing.
        task_budget: The most that each task may spend. But for ``seconds``, what is refused does not depend on timing;
            for that, the rollouts of a task take their turns together.
        enough: So many rollouts of a task that ended and did not fail: the others are cut at once. Depends on timing.
        tail: What becomes of those that ``enough`` cuts: ``"censor"``, the default, or ``"keep"``.
        settled: ``"answer"`` or a reward: no rollout of a task starts or goes on once its answer can no longer change,
            or one has that reward. Looked at between rounds.
        out: Path of the run file, which must not exist; a temporary file that lives as long as the result when None.
        filters: Who judges each group once it is complete; see :mod:`trunkline.score.filters`.
        groups: Take tasks in their order until so many groups were kept, and leave the others; run all when None.
        max_tasks: The most tasks that ``groups`` may take; all when None.
        labels: Anything JSON holds, kept with the settings.
        watch: Called with a :class:`trunkline.runtime.snapshot.Snapshot` as the run goes on.
    """

    llm: Any
    strategy: Strategy | None
    reward: Reward | None
    workers: int | None
    seed: int | None
    cache: str | Path | None
    start_from: str | Path | Run | None
    budget: Budget | None
    task_budget: Budget | None
    enough: int | None
    tail: str
    settled: str | float | None
    out: str | Path | None
    filters: Sequence[Filter]
    groups: int | None
    max_tasks: int | None
    labels: Mapping[str, Any] | None
    watch: Callable[[Snapshot], None] | None


class Draft:
    """One run as it was described, with everything checked that can be without a request or a file.

    Args:
        agent: Who plays.
        tasks: The problems; their ids must be unique. None for all those of ``start_from``.
        llm: See :class:`Options`, as for the rest.
        strategy: Where rollouts start.
        reward: Scores finished rollouts.
        workers: Worker processes.
        seed: Seed of the run.
        cache: Path of a file of answers.
        start_from: An earlier run to go on from.
        budget: The most that the run may spend.
        task_budget: The most that each task may spend.
        enough: Rollouts of a task that are enough.
        tail: What becomes of the others.
        settled: When a task is settled.
        out: Path of the run file.
        filters: Who judges each group.
        groups: Groups to keep.
        max_tasks: The most tasks that this may take.
        labels: Kept with the settings.
        watch: Called as the run goes on.

    Raises:
        UsageError: If something in it cannot be done.
    """

    def __init__(
        self,
        agent: Agent,
        tasks: Iterable[Task] | None = None,
        *,
        llm: Any = None,
        strategy: Strategy | None = None,
        reward: Reward | None = None,
        workers: int | None = None,
        seed: int | None = None,
        cache: str | Path | None = None,
        start_from: str | Path | Run | None = None,
        budget: Budget | None = None,
        task_budget: Budget | None = None,
        enough: int | None = None,
        tail: str = "censor",
        settled: str | float | None = None,
        out: str | Path | None = None,
        filters: Sequence[Filter] = (),
        groups: int | None = None,
        max_tasks: int | None = None,
        labels: Mapping[str, Any] | None = None,
        watch: Callable[[Snapshot], None] | None = None,
        **unknown: object,
    ) -> None:
        if unknown:
            raise TypeError(f"a run has no option {next(iter(unknown))!r}; it has {', '.join(Options.__annotations__)}")
        if importing_script():
            raise CrossingError(
                f"{sys.modules['__trunkline_main__'].__file__} starts a run while a worker imports it; "
                'put the call under  if __name__ == "__main__":'
            )
        if labels is not None and not isinstance(labels, Mapping):
            raise ConfigError(f"labels must be a mapping, not {labels!r:.60}")
        self._start_from = None if start_from is None else _path_of(start_from)
        with nullcontext() if self._start_from is None else EarlierRun(self._start_from) as earlier:
            self._tasks = _checked(tasks if earlier is None else earlier.tasks(_listed(tasks)))
            self._job = job = Job(
                agent=agent,
                strategy=Chain() if strategy is None else strategy,
                reward=reward,
                llm=_as_llm(llm),
                seed=_seed(earlier) if seed is None else seed,
                cache=None if cache is None else place(cache),
                filters=filters,
                budget=budget,
                task_budget=task_budget,
                stopping=Stopping(enough=enough, tail=tail, settled=settled),
            )
            check_budgets(job, self._tasks)
            self._refill = Refill.of(groups, max_tasks, len(self._tasks))
            wanted = None if self._refill is None else self._refill._asdict()
            self._described = settings(job) | {"trunkline": __version__, "refill": wanted, "labels": dict(labels or {})}
            if earlier is not None:
                earlier.check(job)
                self._described["continues"] = {"run": str(earlier.path), "settings": earlier.settings}
        self._pool = make_pool(job, workers, len(self._tasks))
        self._out = None if out is None else Path(out).absolute()
        self._watch = watch
        self._seed = job.seed if self._start_from else seed

    def outline(self) -> Outline:
        """Return what would be done.

        Raises:
            UsageError: If something cannot cross to a worker, there is a file where the run file should be, or an
                earlier run's trees cannot go on.
            RunFileError: The earlier run's file is damaged.
        """
        check_out(self._out)
        check(self._job)
        taken = None
        if self._start_from is not None:
            with EarlierRun(self._start_from) as earlier:
                taken = earlier.look(self._job, self._tasks)
        workers = self._pool.workers if isinstance(self._pool, LocalPool) else 0
        if workers:
            pack_job(self._job)
        tasks = len(self._tasks) if self._refill is None else self._refill.max_tasks
        return outline(self._job, tasks, self._described | {"seed": self._seed}, workers, self._out, taken)


class Plan(Draft):
    """One run, checked and ready to start: its file is there.

    Args:
        agent: Who plays.
        tasks: The problems; their ids must be unique. None for all those of ``start_from``.
        **options: See :class:`Options`.

    Raises:
        UsageError: If something in it cannot be done; nothing was sent and no file is left.
    """

    def __init__(self, agent: Agent, tasks: Iterable[Task] | None = None, **options: Unpack[Options]) -> None:
        super().__init__(agent, tasks, **options)
        if self._job.cache is not None:
            # Refuses what no worker could open.
            Cache(self._job.cache).close()
        self._shelf = Shelf() if self._out is None else None
        self.path = self._shelf.path / "run" if self._shelf else Path(self._out or "")
        self._state = "running"
        self._writer = RunWriter.create(self.path, self._described, self._tasks)
        taken = None if self._start_from is None else self._take_over(self._start_from)
        self.controller = Controller(self._job, self._tasks, self._writer, self._pool, self._watch, taken, self._refill)

    def _take_over(self, start_from: Path) -> dict[int, TakenRow]:
        """Write what an earlier run made of the tasks into this one's file; no file is left if that cannot be."""
        try:
            self._writer.note("continues", str(start_from))
            with EarlierRun(start_from) as earlier:
                return earlier.take_over(self._job, self._tasks, self._writer)
        except BaseException:
            self._writer.discard()
            raise

    async def execute(self) -> Run:
        """Run to the end, and leave a closed run file, or none if nothing came of it.

        Raises:
            EndpointError: If the endpoint serves nobody.
            InfrastructureError: If workers or the run file fail.
        """
        self._state = "failed"
        try:
            await ready(self._job)
            await self.controller.run()
            self._state = "interrupted" if self.controller.stopped else self.controller.ended or self._ended()
        except asyncio.CancelledError:
            self._state = "interrupted"
            raise
        finally:
            shot = self.controller.snapshot
            if self._state not in {"failed", "interrupted"} or shot.calls or shot.lost:
                self._writer.finish(self._state)
            else:
                self._writer.discard()
        return self.result()

    def _ended(self) -> str:
        """What a run that came to its end is called."""
        handout, shot = self.controller.handout, self.controller.snapshot
        if not handout.short:
            return "done"
        logger.warning("only %d of %s groups were kept of %d tasks", shot.kept, shot.groups, shot.tasks_done)
        return "exhausted"

    def result(self) -> Run:
        """Return what the run came to, once it is over."""
        return Run(self.path, self._state, self._shelf)


def plan(agent: Agent, tasks: Iterable[Task] | None = None, **options: Unpack[Options]) -> Outline:
    """Check a run and work out what it would do at most; nothing is sent, and no file made.

    Args:
        agent: Who would play.
        tasks: The problems; their ids must be unique.
        **options: See :class:`Options`.

    Raises:
        UsageError: If something in it cannot be done.
    """
    return Draft(agent, tasks, **options).outline()


def _path_of(run: object) -> Path:
    """Return where an earlier run is."""
    if isinstance(run, Run):
        return run.path
    if not isinstance(run, str | Path) or not str(run):
        raise ConfigError(f"start_from must be a run or the path of a run file, not {shown(run)}")
    return Path(run).absolute()


def _seed(earlier: EarlierRun | None) -> int:
    """Return the seed of a run that was given none."""
    known = None if earlier is None else earlier.seed
    return secrets.randbits(31) if known is None else known


def _listed(tasks: Iterable[Task] | None) -> list[Task] | None:
    """Return tasks as a checked list, if there are any."""
    return None if tasks is None else _checked(tasks)


def _checked(tasks: Iterable[Task] | None) -> list[Task]:
    """Return the tasks as a list; refuse what could only fail once requests are paid for."""
    if isinstance(tasks, Task | str):
        raise ConfigError(f"tasks must be a list of tasks, not {tasks!r:.60}; load_tasks(path) reads one from a file")
    listed = list(tasks or ())
    if not listed:
        raise ConfigError("there are no tasks to run")
    seen: set[str] = set()
    for task in listed:
        if not isinstance(task, Task):
            raise ConfigError(
                f"{task!r:.60} is not a task; make one with Task.ask(question, answer), or load_tasks(path)"
            )
        if task.id in seen:
            raise ConfigError(f"two tasks have the id {task.id!r}; ids must be unique in a run")
        seen.add(task.id)
        try:
            messages.check(task.messages)
        except ConfigError as error:
            raise ConfigError(f"task {task.id!r}: {error}") from None
    return listed


def _as_llm(llm: Any) -> EndpointSpec | BatchLLM | LLM:
    """Accept what users call an LLM."""
    if llm is None:
        return EndpointSpec()
    if isinstance(llm, str):
        return EndpointSpec(llm)
    return llm if isinstance(llm, EndpointSpec | BatchLLM) else as_llm(llm)
