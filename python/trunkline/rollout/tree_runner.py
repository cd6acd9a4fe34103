"""Grows one tree in rounds; scores."""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from trunkline._internal.aio import raised_by_user_code
from trunkline.errors import ForkRefused, InfrastructureError, UsageError
from trunkline.llm.batch.activity import UNREAD
from trunkline.rollout.checkpoint import CarriedOver, Checkpoint, ForkRecord, JudgedMark, RoundMark, plain_round, write
from trunkline.rollout.drivers import ProgramDriver, agent_loop, wanted_calls
from trunkline.rollout.environments import EnvironmentManager
from trunkline.rollout.growth import NO_ROLLOUTS, RunningRollouts
from trunkline.rollout.moves import BoundStrategy, moves, open_fork, sort_moves, write_prompt
from trunkline.rollout.programs.resources import Program
from trunkline.rollout.rollout import Rollout, calls_before
from trunkline.rollout.round_scorer import RoundScorer
from trunkline.rollout.sampling.sampler import Sampler
from trunkline.rollout.task_budget import OutOfBudget, TaskBudget
from trunkline.rollout.types import Ending, Finished, TurnSink, ending_of
from trunkline.scoring.filters.base import Group, judge
from trunkline.scoring.notes import Verdict, note
from trunkline.scoring.rewards.grading import Grader, cancelled
from trunkline.strategies.base import TOOK, Fork, View
from trunkline.strategies.stopping import Stopping
from trunkline.tree.records import EnvironmentRecords
from trunkline.tree.views import Tree
from trunkline.types import FAILED, UNSCORED, Termination

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from trunkline._core import CoreTree
    from trunkline.agent import CompiledAgent
    from trunkline.rollout.environments import EnvironmentHandle
    from trunkline.rollout.external.driver import ExternalDriver
    from trunkline.rollout.external.resources import ExternalProgram
    from trunkline.rollout.sampling.completions import CompletionClient, CompletionClients
    from trunkline.rollout.sampling.inflight import TraceRecorder
    from trunkline.rollout.task_budget import BudgetSources
    from trunkline.scoring.filters.base import Filter
    from trunkline.scoring.rewards import Reward
    from trunkline.store.schema import TreeEnding
    from trunkline.strategies.base import Drop, Move, Strategy
    from trunkline.tools.environment import Environment
    from trunkline.tree.views import Tree


logger = logging.getLogger(__name__)

_NONE_STOPPED: Mapping[int, str] = {}

_LEAVE_WITHIN = 2.0
"""Seconds that requests which were given up have to end; an LLM that swallows its cancellation is left behind."""


def _raised(_runner: TreeRunner, problem: BaseException | None) -> None:
    if problem is not None:
        raise problem


def _driver_of(program: Program | ExternalProgram, core: CoreTree, seed: int) -> ProgramDriver | ExternalDriver:
    """Return what plays the rollouts of a tree."""
    if isinstance(program, Program):
        return ProgramDriver(program, core, seed)
    from trunkline.rollout.external.driver import ExternalDriver  # noqa: PLC0415 - other runs need none of it

    return ExternalDriver(program, core, seed)


class TreeSettings:
    """How trees are grown, the same for all of a run."""

    def __init__(
        self,
        compiled: CompiledAgent,
        strategy: Strategy | BoundStrategy,
        reward: Reward | Grader | None,
        seed: int,
        client: CompletionClient | CompletionClients,
        *,
        filters: Sequence[Filter] = (),
        stopping: Stopping | None = None,
        sources: BudgetSources | None = None,
        program: Program | ExternalProgram | None = None,
    ) -> None:
        self.compiled = compiled
        self.strategy = strategy if isinstance(strategy, BoundStrategy) else BoundStrategy(strategy)
        self.grader = reward if reward is None or isinstance(reward, Grader) else Grader(reward)
        self.seed = seed
        self.client = client
        self.filters = filters
        self.stopping = Stopping() if stopping is None else stopping
        self.sources = sources
        self.program = program
        self.seconds = None if sources is None or sources.task is None else sources.task.seconds


class TreeRunner:
    """Grows one task's tree in rounds; marks in the tree record decisions, so that any delta can be resumed."""

    # A worker has thousands of these at once.
    __slots__ = (
        "_branches",
        "_checkpoint",
        "_done",
        "_driver",
        "_end",
        "_ended",
        "_environments",
        "_group",
        "_live",
        "_released",
        "_round",
        "_running",
        "_sampler",
        "_scorer",
        "_settings",
        "_single",
        "_spent",
        "_stopped",
        "_taken",
        "_task_budget",
        "sink",
        "task",
        "tree",
    )

    def __init__(
        self,
        tree: Tree,
        settings: TreeSettings,
        sink: TurnSink,
        taken: CarriedOver | None = None,
        recorder: TraceRecorder | None = None,
    ) -> None:
        core, compiled, strategy, sources = tree.core, settings.compiled, settings.strategy, settings.sources
        self.tree = tree
        self.task: asyncio.Task[None] | None = None
        self._settings = settings
        self.sink = sink
        self._taken = taken = CarriedOver.of(core) if taken is None else taken
        self._checkpoint = checkpoint = Checkpoint.of(core, taken)
        self._sampler = Sampler(core, tree.task, settings.client, sink, recorder, settings.seed)
        self._environments = (
            None
            if compiled.agent.environment is None
            else EnvironmentManager(
                tree, compiled, partial(self._sampler.recorded, compiled), settings.seed, forks=strategy.branches
            )
        )
        self._done = 0
        self._live: dict[int, Rollout] = {}
        self._running = RunningRollouts(core=core, live=self._live)
        if checkpoint.before is not None:
            self._running.ending = checkpoint.before
        if checkpoint.endings:
            self._running.restore(checkpoint.endings)
        self._task_budget: TaskBudget | None = None
        if sources is not None:
            started = core.rollouts - taken.rollouts
            self._task_budget = TaskBudget(sources, core, self._running, checkpoint, started)
        program = settings.program
        self._driver = None if program is None else _driver_of(program, core, settings.seed)
        opened = core.rollouts
        self._scorer = RoundScorer(tree, settings.grader, strategy.value, opened)
        # A single rollout that waits for nothing of its tree needs no task of its own, and has no rounds.
        self._single = strategy.single and sources is None and not opened
        if not self._single:
            self._prepare_rounds(checkpoint)

    def _prepare_rounds(self, checkpoint: Checkpoint) -> None:
        self._round, self._released, self._stopped = 0, NO_ROLLOUTS, _NONE_STOPPED
        if checkpoint.last is not None:
            self._round = checkpoint.last.round + 1
            self._released, self._stopped = frozenset(checkpoint.released), checkpoint.stopped
        self._spent = NO_ROLLOUTS
        driver = self._external
        self._branches = NO_ROLLOUTS if driver is None else driver.branches(self._first_own)
        self._ended: list[int] = []
        self._group: asyncio.TaskGroup | None = None

    async def run(self, over: Callable[[TreeRunner, BaseException | None], None] = _raised) -> None:
        """Grow and score all rollouts, then filter them, and tell ``over`` of the error that ended it, or of None.

        The error, such as ConfigError, StrategyError or EndpointError, is raised where ``over`` is not given.
        """
        self.task = self.task or asyncio.current_task()
        problem: BaseException | None = None
        settings = self._settings
        deadline = None if settings.seconds is None else self._deadline(settings.seconds)
        try:
            self._end = write_prompt(self.tree, settings.compiled.agent, settings.compiled.dialect)
            if self._single:
                if not self._is_over():
                    await self._play(self._begin_single())
                self._scorer.write()  # it is told of with the ending
            else:
                async with asyncio.TaskGroup() as self._group:
                    if self.tree.core.rollouts:
                        self._take_over(self._group)
                    await self._grow()
            if self._running.over and self._sampler.sent:
                self.sink.grew()  # the end does not wait for what is on its way
                await asyncio.wait(self._sampler.sent, timeout=_LEAVE_WITHIN)
            if settings.filters and not self._checkpoint.judged:
                self._judge()
        except BaseException as error:  # noqa: BLE001 - it is handed on
            problem = error
        if deadline is not None:
            deadline.cancel()
        self._sampler.close()
        # One that is cancelled ends nothing itself.
        if self._live:
            for rollout in self._live.values():
                rollout.activity.end()
        over(self, problem)

    def _judge(self) -> None:
        """Ask the filters about the tree."""
        core = self.tree.core
        judge(self._settings.filters, Group(self.tree, self._settings.compiled.dialect.read))
        write(core, JudgedMark(core.rollouts))
        self.sink.grew()

    async def _grow(self) -> None:
        """Play the rounds."""
        waiting = await self._rest()
        ended, self._ended = self._ended, []
        # Of a tree for whose first round nothing was paid, that one is asked for again.
        begun = self._round and self.tree.core.rollouts > self._taken.rollouts
        wanted = self._next(ended, waiting) if begun else self._first()
        while wanted or self._live:
            forks, stopped, drops = self._sorted(wanted)
            if self._task_budget is not None:
                forks = await self._task_budget.paid(forks, self._running.refuse)
            self._begin_round(forks, stopped, drops, ended)
            waiting = await self._rest()
            ended, self._ended = self._ended, []
            wanted = self._next(ended, waiting)
        if self._external is not None:
            await self._grow_branches(self._external)

    async def _grow_branches(self, driver: ExternalDriver) -> None:
        """Continue what diverged, now that the strategy is done: no hook is shown more rollouts than it asked for."""
        running, budget = self._running, self._task_budget
        while not (running.over or running.sealed):
            diverged = driver.diverged(self._first_own)
            if diverged and budget is not None:
                paid = await budget.paid([Fork(n=len(diverged))], running.refuse)
                diverged = diverged[: sum(fork.n for fork in paid)]
            if not diverged or running.over:
                break
            self._begin_branches(driver, diverged)
            await self._rest()
            self._ended.clear()

    @property
    def _external(self) -> ExternalDriver | None:
        return None if self._driver is None or isinstance(self._driver, ProgramDriver) else self._driver

    @property
    def _first_own(self) -> int:
        """The first rollout that neither an earlier run nor this one, before it was retried, has grown."""
        return max(self._taken.rollouts, self._checkpoint.reopened)

    @property
    def _planned(self) -> int:
        return self._taken.rollouts + self._settings.strategy.planned + self._checkpoint.retried

    @property
    def ending(self) -> TreeEnding:
        """How growth ended."""
        return self._running.ending

    @property
    def oldest(self) -> Rollout | None:
        """The rollout that has been growing longest; None where none grows."""
        return next(iter(self._live.values()), None)

    def place(self, number: int) -> str:
        """Return what a growing rollout waits for; empty for others."""
        rollout = self._live.get(number)
        return "" if rollout is None else rollout.place

    def cut(self, word: str, why: str) -> None:
        """End all growth now; see ``RunningRollouts.cut``."""
        self._running.cut(word, why)

    def _deadline(self, seconds: float) -> asyncio.TimerHandle:
        """Cut the tree when the task's time is over."""
        why = f"deadline: {seconds:g} s for the task"
        return asyncio.get_running_loop().call_later(seconds, self.cut, "deadline", why)

    async def _rest(self) -> list[int]:
        """Wait until all rollouts are idle, grant budget requests, then write scores; return waiting rollouts."""
        waiting: list[int] = []
        while self._running.growing or self._running.waiting:
            waiting = await self._running.rest()
            if self._task_budget is None or not self._task_budget.admit():
                break
        if self._scorer.write():
            self.sink.grew()
        return waiting

    def _moves(self, hook: str, rollouts: Sequence[int]) -> list[Move]:
        settings = self._settings
        if settings.strategy.hooks[hook] is None or self._checkpoint.retried or self._branches:
            return []  # what is asked again, and branches, grow by themselves: the strategy was done
        calls = partial(self._sampler.calls, settings.compiled)
        closed = NO_ROLLOUTS if self._external is None else self._external.closed()
        view = View(self.tree, rollouts, settings.seed, self._taken.rollouts, calls, closed)
        return moves(settings.strategy, hook, view)

    def _first(self) -> list[Move]:
        return [] if self._is_over() else self._moves("start", ())

    def _next(self, ended: Sequence[int], waiting: Sequence[int]) -> list[Move]:
        if self._running.over:
            return []
        wanted: list[Move] = []
        if ended:
            wanted += self._moves("ended", ended)
        if waiting:
            wanted += self._moves("stepped", waiting)
        if self._running.sealed:
            wanted = [move for move in wanted if not isinstance(move, Fork)]
        return [] if (wanted or waiting) and self._is_over() else wanted

    def _is_over(self) -> bool:
        """Whether growth is over; it is cut if the task is settled."""
        stopping = self._settings.stopping
        if stopping.stop_when is not None and not self._running.over and not self._checkpoint.retried:
            why = stopping.is_settled(self.tree.core, self._planned)
            if why is not None:
                self.cut("settled", why)
        return self._running.over

    def _start(self, rollout: Rollout, group: asyncio.TaskGroup) -> None:
        """Let a rollout grow in a task of its own."""
        self._running.start()
        group.create_task(self._play(rollout))

    def _take_over(self, group: asyncio.TaskGroup) -> None:
        """Continue rollouts that have not ended, and finish the bookkeeping of those that have."""
        core = self.tree.core
        environments = None if self._environments is None else EnvironmentRecords(core)
        for number in core.growing:
            if number < self._checkpoint.reopened:
                continue  # a tail that was cut and kept
            fork, silent = self._checkpoint.fork(number), core.rollout(number).turns == core.rollout(number).path[-2]
            rollout = self._made(number, fork, silent=silent)
            if self._driver is None:
                recorded, calls = self._sampler.recorded, self._sampler.calls
                rollout.take_up(
                    self._settings.compiled,
                    partial(recorded, self._settings.compiled),
                    partial(calls, self._settings.compiled),
                )
            if number in self._checkpoint.unresolved:
                rollout.effects.before = self._checkpoint.unresolved[number]
            rollout.environment = self._environment_of(rollout)
            if environments is not None and self._driver is None:
                step = environments.step(number, rollout.turn - 1)
                rollout.done = Termination(step.ended) if step is not None and step.ended else None
        for rollout in self._live.values():
            self._start(rollout, group)
        for number in set(range(core.rollouts)).difference(core.growing):
            self._take_up(number, group)

    def _take_up(self, number: int, group: asyncio.TaskGroup) -> None:
        """Count a rollout that ended before; score it and tell the strategy where that is still to be done."""
        old = number < self._taken.rollouts
        facts = self.tree.core.rollout(number)
        termination = Termination(facts.termination or "")
        self._done += termination not in UNSCORED and (not old or number in self._taken.growing)
        if number in self._checkpoint.told or (old and self._round):
            return
        if not old:
            self._ended.append(number)
        if math.isnan(facts.reward):
            self._running.start()
            group.create_task(self._rejudge(number, termination))

    async def _rejudge(self, number: int, termination: Termination) -> None:
        spent, grader = self._checkpoint.took(number), self._settings.grader
        if grader is not None and grader.in_environment and not spent and termination not in UNSCORED:
            waits = await self._rejudge_in_environment(number, termination)
        else:
            waits = self._scorer.ask(number, termination, spent=spent)
        if waits is not None:
            await waits
        self._running.end()

    async def _rejudge_in_environment(self, number: int, termination: Termination) -> Awaitable[None] | None:
        """Score a rollout that ended in an earlier process, in an environment with its final state."""
        rollout, facts = Rollout.of(self._sampler, number), self.tree.core.rollout(number)
        rollout.leaf, rollout.turn, rollout.done = facts.leaf, facts.turns, termination
        rollout.activity.end()
        rollout.environment = handle = self._environment_of(rollout)
        assert self._environments is not None
        assert handle is not None
        try:
            async with handle.entered():
                if self._driver is not None:
                    # Over its record, and no further.
                    with suppress(Finished):
                        await self._driver.play(rollout)
                    await handle.ready()
                waits = self._scorer.ask(number, termination, handle.environment, spent=False)
                if waits is not None:
                    await waits
        except ForkRefused:
            pass  # a warning says so
        except (InfrastructureError, UsageError):
            raise
        except Exception as error:  # noqa: BLE001 - a program may raise anything
            self._environments.warn("not scored", error)
        else:
            return None
        return self._scorer.ask(number, termination, spent=False)

    def _environment_of(self, rollout: Rollout) -> EnvironmentHandle | None:
        """Return the environment of a rollout that begins in this round; None without one."""
        if self._environments is None:
            return None
        if isinstance(self._driver, ProgramDriver):
            return self._driver.environment(self._environments, rollout)
        return self._environments.of(rollout)

    def _sorted(self, wanted: Sequence[Move]) -> tuple[list[Fork], dict[int, str], list[Drop]]:
        core, taken, program = self.tree.core, self._taken.rollouts, self._driver is not None
        return sort_moves(self._settings.strategy, wanted, core, taken, self._live, self._sampler, program=program)

    def _begin_single(self) -> Rollout:
        """Begin the only round of a single chain, as ``_begin_round`` does."""
        core = self.tree.core
        number = core.fork(self._end, 1)
        core.mark(plain_round(0))
        rollout = self._live[number] = Rollout.of(self._sampler, number)
        if self._driver is not None:
            self._driver.opened(number)
        if self._environments is not None:
            self._environments.next_round()
            rollout.environment = self._environment_of(rollout)
        self.sink.grew()
        return rollout

    def _begin_round(
        self, forks: Sequence[Fork], stopped: Mapping[int, str], drops: Sequence[Drop], told: Sequence[int]
    ) -> None:
        """Drop, fork, stop and continue rollouts in one step, so that a delta has all of it or nothing."""
        core, live = self.tree.core, self._live
        for drop in drops:
            note(core, drop.rollout, Verdict(self._settings.strategy.name, "drop", drop.reason))
        if self._running.over:
            return  # it was cut meanwhile
        if self._environments is not None:
            self._environments.next_round()
        opened: list[ForkRecord] = []
        said: list[ForkRecord] = []
        for fork in forks:
            record = ForkRecord.by(fork, open_fork(core, fork, self._end))
            opened.append(record)
            if fork.at is not None or fork.steps is not None or fork.sampling is not None:
                said.append(record)  # more than the tree holds
        waiting = sorted(self._running.waiting) if self._running.waiting else []
        going = {number: live[number].turn for number in waiting if number not in stopped} if waiting else {}
        if told or going or stopped or said:
            write(core, RoundMark(self._round, tuple(told), going, {**stopped}, tuple(said)))
        else:
            core.mark(plain_round(self._round))
        self._round += 1
        for record in opened:
            self._open(record)
        for number in waiting:
            reason = stopped.get(number)
            self._running.go(number, None if reason is None else Finished(Termination.CENSORED, None, reason))
        self.sink.grew()

    def _begin_branches(self, driver: ExternalDriver, diverged: Sequence[int]) -> None:
        """Open and start the branches of rollouts that diverged, in one step."""
        assert self._group is not None
        for number in diverged:
            branch = driver.branch(number, self._end)
            self._branches |= {branch}
            self._start(self._made(branch, None), self._group)
        self.sink.grew()

    def _open(self, fork: ForkRecord) -> None:
        made, limited = 0, self._settings.compiled.agent.max_tool_calls is not None
        for number in range(fork.first, fork.first + fork.n):
            rollout = self._made(number, fork)
            if self._driver is not None:
                self._driver.opened(number)
            if limited and number == fork.first:
                calls = partial(self._sampler.calls, self._settings.compiled)
                made = calls_before(self.tree.core, rollout.leaf, self._settings.compiled, calls)
            rollout.tool_calls = made
            rollout.environment = self._environment_of(rollout)
            assert self._group is not None
            self._start(rollout, self._group)

    def _made(self, number: int, fork: ForkRecord | None, *, silent: bool = True) -> Rollout:
        """Make a rollout as its fork says; sampling and prefix count only before its first turn."""
        told = fork if silent else None
        rollout = self._live[number] = Rollout.of(
            self._sampler,
            number,
            None if told is None else told.sampling,
            self._between
            if self._settings.strategy.stepwise or (fork is not None and fork.steps is not None)
            else None,
            None if told is None or told.at is None else told.kept,
            self._task_budget,
        )
        rollout.steps = None if fork is None else fork.steps
        return rollout

    async def _between(self, rollout: Rollout) -> None:
        """Called by a rollout between two steps."""
        if rollout.steps is not None and rollout.turn - rollout.start >= rollout.steps:
            self._spent |= {rollout.id}
            raise Finished(Termination.CENSORED, None, TOOK)
        if rollout.id in self._released:
            self._released -= {rollout.id}
        elif (
            self._settings.strategy.stepwise and rollout.id >= self._taken.rollouts and rollout.id not in self._branches
        ):
            await self._running.wait(rollout.id)

    async def _play(self, rollout: Rollout) -> None:
        """Play a rollout to its end, and score it."""
        own = self.task if self._single else asyncio.current_task()
        try:
            self._running.enter(rollout, own)
            if not self._single:
                self._check_unstopped(rollout)
            if rollout.environment is not None:
                await self._in_environment(rollout, rollout.environment, own)
            elif self._driver is not None:
                await self._driver.play(rollout)
            else:
                # As agent_loop, in this frame: each frame between a task and what it waits for is passed at every turn.
                compiled = self._settings.compiled
                while rollout.turn < compiled.agent.max_turns:
                    wanted = wanted_calls(rollout, compiled, await rollout.ask(compiled))
                    if isinstance(wanted, Finished):
                        end = wanted
                        break
                    if wanted:
                        await rollout.use(compiled, wanted)
                else:
                    end = Finished(Termination.MAX_TURNS)
        except BaseException as error:  # noqa: BLE001 - errors that are not the rollout's are raised again
            waits = self._close(rollout, error, own)
        else:
            waits = None if rollout.environment is not None else self._close(rollout, end, own)
        if waits is not None:
            await waits
        del self._live[rollout.id]
        if not self._single:
            self._ended.append(rollout.id)
            self._running.end()

    def _check_unstopped(self, rollout: Rollout) -> None:
        """Raise why a rollout of an earlier process does not go on, if it does not."""
        if rollout.side_effects is not None:
            rollout.side_effects.check()
        if rollout.id in self._stopped:
            raise Finished(Termination.CENSORED, None, self._stopped[rollout.id])

    async def _in_environment(
        self, rollout: Rollout, environment: EnvironmentHandle, own: asyncio.Task[None] | None
    ) -> None:
        """Play a rollout to its end; where the reward takes the environment, score it before that is closed."""
        grader = self._settings.grader
        async with environment.entered():
            try:
                if rollout.done is not None:
                    raise Finished(rollout.done)
                if self._driver is None:
                    await agent_loop(rollout, self._settings.compiled)
                else:
                    await self._driver.play(rollout)
            except Finished as end:
                await environment.ready()
                self._running.leave(rollout)
                if not self._running.over:
                    await environment.ask_facts()
                if grader is None or not grader.in_environment:
                    raise
                environment.over = True
                waits = self._close(rollout, end, own, environment.environment)
                if waits is not None:
                    await waits
            finally:
                # Before its environment is closed: it has ended, and is not cut any more.
                self._running.leave(rollout)

    def _close(
        self,
        rollout: Rollout,
        error: BaseException,
        own: asyncio.Task[None] | None,
        environment: Environment | None = None,
    ) -> Awaitable[None] | None:
        """Close a rollout that ended by an error, and score it; return what to wait for, if anything."""
        if environment is None and rollout.environment is not None and rollout.environment.over:
            raise error  # the rollout had ended before, in its environment
        end = self._ending(rollout, error, own)
        number, running, recorder = rollout.id, self._running, self._sampler.recorder
        if rollout.activity is not UNREAD:
            rollout.activity.end()
        if running.over and running.kept(number):
            running.leave(rollout)
            return None
        facts = None if end.termination in FAILED else rollout.facts
        if rollout.environment is not None:
            facts = rollout.environment.facts
        if facts is not None:
            self.tree.core.mark(msgspec.json.encode(facts).decode())
        self.tree.core.close(number, end.termination, end.answer, end.failure)
        running.left(rollout)
        if recorder is not None:
            recorder.ended(
                number, self._settings.compiled.agent.name, rollout.began, end.termination.value, end.failure
            )
        if (enough := self._settings.stopping.enough) is not None:
            self._done += end.termination not in UNSCORED
            self._cut_if_enough(enough)
        spent = not self._single and number in self._spent
        waits = self._scorer.ask(number, end.termination, environment, spent=spent)
        if waits is not None or not self._single:
            self.sink.grew()  # else its score is written in this step
        return waits

    def _ending(self, rollout: Rollout, error: BaseException, own: asyncio.Task[None] | None) -> Ending:
        """Return how a rollout ended; a cut or refused budget finishes it. Errors that are not its own are raised."""
        if type(error) is Finished and rollout.side_effects is None and not self._running.over:
            return ending_of(error)
        match error:
            case OutOfBudget():
                self._running.refuse(error.reason)
            case Finished():
                pass
            case InfrastructureError() | UsageError():
                raise error
            case asyncio.CancelledError():
                try:
                    error = self._running.caught(rollout.id)
                except asyncio.CancelledError:
                    if cancelled():
                        raise
            case _ if not raised_by_user_code(error, own):
                raise error
        if self._running.over and own is not None:
            self._running.survived(rollout.id, own)
        effects = rollout.side_effects
        end = ending_of((None if effects is None else effects.unresolved_effect) or error)
        if end.termination is Termination.LOST:
            about = {"task": self.tree.task.id, "rollout": rollout.id}
            logger.error("task %r, rollout %d broke", *about.values(), extra=about, exc_info=error)
        return end

    def _cut_if_enough(self, enough: int) -> None:
        """Cut the other rollouts once there are enough; not those that are asked again."""
        if self._done < enough or self._checkpoint.retried:
            return
        if self._running or self.tree.core.rollouts < self._planned:
            why = f"enough: {enough} of {self._planned - self._taken.rollouts}"
            self._running.cut("enough", why, keep=self._settings.stopping.cut_tail == "keep")
