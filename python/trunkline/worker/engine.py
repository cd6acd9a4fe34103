"""Grows the trees of one run in an event loop."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, cast

from trunkline._core import CoreTree
from trunkline._internal.aio import raised_by_user_code
from trunkline._internal.text import describe_error
from trunkline.agent import CompiledAgent
from trunkline.errors import InfrastructureError, TrunklineError, UsageError
from trunkline.llm.batch.batcher import Batcher, BatchLLM
from trunkline.llm.cache import Cache
from trunkline.llm.config import LLM
from trunkline.llm.http.client import HttpLLM
from trunkline.llm.pricing import MAIN
from trunkline.llm.token_ids.renderers import renderers
from trunkline.protocol import messages
from trunkline.protocol.job import keys_of, slots_for, tokens_of
from trunkline.rollout.checkpoint import CarriedOver
from trunkline.rollout.external.config import External
from trunkline.rollout.programs.resources import Program
from trunkline.rollout.sampling.completions import CompletionClient, CompletionClients
from trunkline.rollout.sampling.dispatcher import turn_engine
from trunkline.rollout.sampling.inflight import TraceRecorder, TurnGate, WeightGate
from trunkline.rollout.sampling.token_prompts import TokenPromptBuilder
from trunkline.rollout.side_effects import lose
from trunkline.rollout.task_budget import BudgetSources
from trunkline.rollout.tree_runner import TreeRunner, TreeSettings
from trunkline.scoring.filters.base import unjudged
from trunkline.scoring.rewards.grading import Grader, cancelled
from trunkline.strategies.base import at_once
from trunkline.tree.records import Failure
from trunkline.tree.views import Tree
from trunkline.worker.health import collect_state
from trunkline.worker.leases import LeaseClient
from trunkline.worker.outbox import IN_FLIGHT, Outbox, TreeSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.llm.types import LLMClient
    from trunkline.protocol.job import AnyLLM, Job
    from trunkline.rollout.external.resources import ExternalProgram
    from trunkline.types import Task


_LIVE_CONCURRENCY = 64
"""Requests in flight at once through a live LLM that has no ``max_concurrency`` of its own."""


def room(job: Job) -> int:
    """Return how many requests a worker may have in flight, at all LLMs, if all workers have equal parts."""
    return sum(_part(llm, job.parties) for llm in job.llms.values())


def unacknowledged(job: Job) -> int:
    """Return how many turns may wait for the run file: as many as a batch engine answers at once."""
    return max(IN_FLIGHT, sum(llm.max_concurrency for llm in job.llms.values() if isinstance(llm, BatchLLM)))


def _part(llm: AnyLLM, parties: int) -> int:
    most: int = getattr(llm, "max_concurrency", _LIVE_CONCURRENCY)
    return -(-most // max(1, parties))


class LLMClients:
    """A worker's LLMs; ``resized`` is called with the requests that may be in flight, whenever that has changed."""

    def __init__(
        self,
        job: Job,
        cache: Cache | None,
        weights: WeightGate,
        leases: LeaseClient,
        resized: Callable[[int], None],
    ) -> None:
        self._job = job
        self._leases = leases
        self._resized = resized
        self._slots = {name: _part(llm, job.parties) for name, llm in job.llms.items()}
        self.llms: dict[str, LLMClient] = {}
        self.retry_causes: Counter[str] = Counter()  # attempts beyond the first, by cause
        try:
            for name, llm in job.llms.items():
                self.llms[name] = opened = self._open(name, llm)
                if isinstance(opened, HttpLLM):
                    opened.retry_causes = self.retry_causes
        except BaseException:
            leases.close()
            raise
        turn_gate, engine = TurnGate(), turn_engine()
        clients = {
            name: CompletionClient(
                llm,
                cache,
                _exact(job.llms[name], llm),
                weights,
                name=name,
                turn_gate=turn_gate,
                engine=engine,
                send_seed=getattr(job.llms[name], "send_seed", True),
            )
            for name, llm in self.llms.items()
        }
        self.completions: CompletionClient | CompletionClients = (
            clients[MAIN] if set(clients) == {MAIN} else CompletionClients(clients, job.agent.llm)
        )

    async def drain(self, grace: float) -> None:
        """Send nothing more, and wait for requests and tool calls in flight, ``grace`` seconds at most."""
        opened = [cast("HttpLLM", self.llms[name]) for name, llm in self._job.llms.items() if isinstance(llm, LLM)]
        for llm in opened:
            llm.hold()
        await self.completions.turn_gate.drained(grace, lambda: sum(llm.waiting for llm in opened))

    async def close(self) -> None:
        ours = [self.llms[name] for name, llm in self._job.llms.items() if isinstance(llm, LLM | BatchLLM)]
        await asyncio.gather(*(llm.close() for llm in ours))

    def _open(self, name: str, llm: AnyLLM) -> LLMClient:
        """Open an LLM; where its limits are shared, its slots and rates are leased."""
        if isinstance(llm, LLM) and self._job.parties:
            return self._leases.open(name, llm, self._job.parties, lambda slots: self._hold(name, slots))
        return llm.open() if isinstance(llm, LLM | BatchLLM) else llm

    def _hold(self, name: str, slots: int) -> None:
        self._slots[name] = slots
        self._resized(sum(self._slots.values()))


def _exact(given: AnyLLM, llm: LLMClient) -> TokenPromptBuilder | None:
    mode = tokens_of(given)
    if mode is None:
        return None
    if isinstance(llm, HttpLLM):
        return TokenPromptBuilder(mode, renderers(mode, llm.call))
    return TokenPromptBuilder(mode, renderers(mode), batch=isinstance(llm, Batcher))


logger = logging.getLogger(__name__)

_LEAVE_WITHIN = 2.0
"""Seconds that cancelled work has to end; a tool that swallows its cancellation is abandoned."""


def slots(job: Job) -> int:
    """Return how many tasks a worker takes at a time, to keep its share of requests in flight."""
    return slots_for(job, room(job))


def reported_together(job: Job) -> int:
    """Return how many finished tasks wait for each other at most: half of those that no request in flight needs."""
    return max(1, (slots(job) - math.ceil(room(job) / at_once(job.strategy))) // 2)


class _BegunTask(NamedTuple):
    """The deltas of a task that was begun; the first ``taken`` are those of an earlier run."""

    deltas: list[bytes]
    taken: int

    def rebuild(self) -> tuple[CoreTree, CarriedOver]:
        """Return the tree, and the part of it that is older than this run."""
        core, taken = CoreTree(), CarriedOver()
        for seq, data in enumerate(self.deltas, 1):
            core.apply(data)
            if seq == self.taken:
                taken = CarriedOver.of(core)
        return core, taken


_NOTHING_TAKEN = CarriedOver()


class Engine:
    """Grows trees for the controller in one event loop; ``lag`` returns the seconds that the loop was late."""

    def __init__(
        self, job: Job, send: Callable[[messages.FromWorker], None], lag: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._job = job
        self._compiled = CompiledAgent(job.agent)
        self._program = _program_of(job, self._compiled)
        self._grader = None if job.reward is None else Grader(job.reward)
        self._cache = None if job.cache is None else Cache(job.cache)
        self._weights = WeightGate(job.weights)
        self._leases = LeaseClient(send)
        self._llms = LLMClients(job, self._cache, self._weights, self._leases, self._resized)
        self._send = send
        self._lag = lag
        self._outbox = Outbox(
            room(job),
            send,
            self._fail,
            unacknowledged(job),
            reported_together(job),
            named=job.profiled,
            retry_causes=self._llms.retry_causes,
        )
        self._earlier: dict[int, _BegunTask] = {}
        limits = {} if job.budget is None else job.budget.limits
        self._run_account = self._leases.budget(limits, self._outbox.flush) if limits else None
        sources = None
        if self._run_account is not None or job.task_budget is not None:
            sources = BudgetSources(job.task_budget, self._run_account, job.prices, job.prices_of_llm)
        self._settings = TreeSettings(
            self._compiled,
            job.strategy,
            self._grader,
            job.seed,
            self._llms.completions,
            filters=job.filters,
            stopping=job.stopping,
            sources=sources,
            program=self._program,
        )
        # Tasks of the engine; those that grow a tree with its runner.
        self._tasks: dict[asyncio.Task[None], TreeRunner | None] = {}
        self._growing = 0
        self._stopping = False

    def receive(self, message: messages.ToWorker) -> None:
        match message:
            case messages.EarlierDeltas(index, deltas, taken):
                self._earlier.setdefault(index, _BegunTask([], taken)).deltas.extend(deltas)
            case messages.AssignTasks(tasks):
                for index, task in tasks:
                    self._start(index, messages.read_task(task))
            case messages.Ack(batch):
                self._outbox.acknowledge(batch)
            case messages.Ping():
                pool = self._compiled.toolbox.pool
                state = collect_state(
                    self._lag(),
                    self._llms.completions,
                    self._llms.llms,
                    self._runners(),
                    time.monotonic(),
                    None if pool is None else pool.counts,
                )
                self._send(messages.Pong(state))
            case messages.StopRun(grace):
                stop = asyncio.get_running_loop().create_task(self._stop(grace))
                self._tasks[stop] = None
                stop.add_done_callback(self._tasks.pop)
            case messages.CutTasks(word, why):
                for runner in self._runners():
                    runner.cut(word, why)
            case messages.HoldTurns(abort):
                self._weights.hold(abort=abort, quiet=lambda: self._send(messages.TurnsHeld()))
            case messages.SetWeights(version):
                self._weights.change(version)
                self._send(messages.WeightsSet(version))
            case messages.LeaseGrant() | messages.LeaseRevoke():
                self._leases.take(message)
            case _:
                raise TypeError(f"a worker does not take {type(message).__name__}")

    def _runners(self) -> list[TreeRunner]:
        return [runner for runner in self._tasks.values() if runner is not None]

    def _resized(self, requests: int) -> None:
        """Let as many turns wait for the run file as requests may be in flight, an equal part at least."""
        self._outbox.allow(max(requests, room(self._job)))

    async def close(self) -> None:
        self._outbox.close()
        self._leases.close()
        await self._cancel(set(self._tasks))
        if self._grader is not None:
            await self._grader.close()
        await self._compiled.toolbox.close()
        if self._program is not None:
            await self._program.close()
        await self._llms.close()
        if self._cache is not None:
            self._cache.close()

    async def _stop(self, grace: float) -> None:
        """Wait for what is in flight, drop what grows, send the rest, and say bye."""
        if self._stopping:
            return
        self._stopping = True
        if grace:
            await self._llms.drain(grace)
        await self._cancel(self._tasks.keys() - {asyncio.current_task()})
        if self._run_account is not None:
            self._run_account.give_back()
        self._outbox.flush()
        self._send(messages.Bye())

    async def _cancel(self, tasks: set[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            ended, left = await asyncio.wait(tasks, timeout=_LEAVE_WITHIN)
            for task in ended:
                self._tasks.pop(task, None)  # it was cancelled before its first step
            if left:
                logger.warning("%d tasks did not end within %.0f s of being cancelled", len(left), _LEAVE_WITHIN)

    def _start(self, index: int, task: Task) -> None:
        begun = self._earlier.pop(index, None)
        if not self._stopping:
            core, taken, known, ended = CoreTree(), _NOTHING_TAKEN, 0, 0
            if begun is not None:
                core, taken = begun.rebuild()
                known, ended = len(begun.deltas), core.rollouts - len(core.growing)
            traced = self._job.traced
            recorder = TraceRecorder(core, content=traced == "content") if traced else None
            tree = Tree(task, core)
            sink = TreeSink(self._outbox, index, tree, known, recorder, ended)
            runner = TreeRunner(tree, self._settings, sink, taken, recorder)
            self._growing += 1
            grow = runner.run(self._over)
            # Named at once, so that thousands of tasks hold no text of a number each.
            runner.task = asyncio.get_running_loop().create_task(grow, name=task.id)
            self._tasks[runner.task] = runner

    def _over(self, runner: TreeRunner, problem: BaseException | None) -> None:
        """Hand a tree over for the run file that has grown, or broke."""
        own, sink = runner.task, runner.sink
        assert own is not None
        assert isinstance(sink, TreeSink)
        del self._tasks[own]  # this is its last step
        self._growing -= 1
        if problem is not None:
            if cancelled() if isinstance(problem, asyncio.CancelledError) else not raised_by_user_code(problem, own):
                raise problem
            error = _first(problem)
            if isinstance(error, InfrastructureError | UsageError):
                self._fail(error)
                return
            name = sink.tree.task.id
            logger.error("task %r broke", name, exc_info=error, extra={"task": name})
            core = sink.tree.core
            sink.broke = describe_error(error)
            lose(core, Failure.of(error))
            unjudged(self._job.filters, core, sink.broke)
        sink.ending = runner.ending
        sink.done = True
        self._outbox.note(sink, last=not self._growing)

    def _fail(self, error: BaseException) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._outbox.flush()
        if isinstance(error, TrunklineError):
            self._send(messages.Fatal(type(error).__name__, str(error)))
        else:
            self._send(messages.Fatal("InfrastructureError", f"a worker failed: {describe_error(error)}"))


def _program_of(job: Job, compiled: CompiledAgent) -> Program | ExternalProgram | None:
    program = job.program
    if isinstance(program, External):
        from trunkline.rollout.external.resources import ExternalProgram  # noqa: PLC0415 - other runs need no server

        return ExternalProgram(program, compiled, keys_of(job.llms), several=job.strategy.rollouts() > 1)
    return None if program is None else Program(program, compiled, job.llms)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
