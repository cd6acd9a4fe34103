"""Grows one tree in rounds; scores."""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

from trunkline._internal.aio import raised_by_user_code
from trunkline.errors import InfrastructureError, UsageError
from trunkline.rollout.checkpoint import CarriedOver, Checkpoint, ForkRecord, JudgedMark, RoundMark, write
from trunkline.rollout.drivers import ProgramDriver, agent_loop
from trunkline.rollout.environments import EnvironmentManager
from trunkline.rollout.growth import Barrier, RunningRollouts
from trunkline.rollout.moves import check_moves, check_size, moves, open_fork, write_prompt
from trunkline.rollout.rollout import Rollout, calls_before
from trunkline.rollout.sampling.sampler import Sampler
from trunkline.rollout.task_budget import OutOfBudget, TaskBudget
from trunkline.rollout.types import Finished, TurnSink, ending_of
from trunkline.scoring.filters.base import Group, judge
from trunkline.scoring.notes import Verdict, as_noted, grade, note
from trunkline.scoring.rewards.base import full_name
from trunkline.scoring.rewards.grading import Grader, cancelled, report, score
from trunkline.strategies.base import TOOK, Drop, Fork, Stop, View, stepwise
from trunkline.strategies.stopping import Stopping
from trunkline.tree.views import Trajectory
from trunkline.types import UNSCORED, Termination

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.agent import CompiledAgent
    from trunkline.rollout.programs.resources import Program
    from trunkline.rollout.sampling.completions import CompletionClient, CompletionClients
    from trunkline.rollout.sampling.inflight import TraceRecorder
    from trunkline.rollout.task_budget import BudgetSources
    from trunkline.scoring.filters.base import Filter
    from trunkline.scoring.rewards import Reward, Scored
    from trunkline.store.schema import TreeEnding
    from trunkline.strategies.base import Move, Strategy
    from trunkline.tree.views import Tree


class RoundScorer:
    """Asks the reward about the rollouts of one tree, and a strategy's value function about those out of steps."""

    def __init__(self, tree: Tree, reward: Reward | Grader | None, value: Reward | None) -> None:
        self._tree = tree
        self._grader = reward if reward is None or isinstance(reward, Grader) else Grader(reward)
        self._value = value
        self._scored: dict[int, tuple[str, Scored]] = {}

    async def ask(self, number: int, termination: Termination, *, spent: bool) -> None:
        """Score an ended rollout; ``spent`` says that it used all the steps it was given."""
        trajectory = Trajectory(self._tree, number)
        if spent and self._value is not None:
            name, said = full_name(self._value), await score(self._value, trajectory, cut=True)
        elif not spent and self._grader is not None and termination not in UNSCORED:
            name, said = self._grader.name, await self._grader.score(trajectory)
        else:
            return
        report(trajectory, said)
        self._scored[number] = name, said

    def write(self) -> None:
        """Write a round's scores in logical order, as sums of rewards decide ties and must not depend on timing."""
        for number in sorted(self._scored):
            name, said = self._scored[number]
            self._tree.core.score(number, said.value)
            grade(self._tree.core, number, *as_noted(name, said))
        self._scored.clear()


logger = logging.getLogger(__name__)

_LEAVE_WITHIN = 2.0
"""Seconds that requests which were given up have to end; an LLM that swallows its cancellation is left behind."""


class TreeRunner:
    """Grows one task's tree in rounds; marks in the tree record decisions, so that any delta can be resumed."""

    def __init__(
        self,
        tree: Tree,
        compiled: CompiledAgent,
        strategy: Strategy,
        reward: Reward | Grader | None,
        seed: int,
        client: CompletionClient | CompletionClients,
        sink: TurnSink,
        *,
        filters: Sequence[Filter] = (),
        stopping: Stopping | None = None,
        sources: BudgetSources | None = None,
        taken: CarriedOver | None = None,
        program: Program | None = None,
        recorder: TraceRecorder | None = None,
    ) -> None:
        self.tree = tree
        self._compiled = compiled
        self._strategy = strategy
        self._stepwise = stepwise(strategy)
        self._seed = seed
        self._sink = sink
        self._filters = filters
        self._taken = CarriedOver.of(tree.core) if taken is None else taken
        self._checkpoint = checkpoint = Checkpoint(tree.core, self._taken)
        self._sampler = Sampler(tree.core, tree.task.id, client, sink, recorder)
        self._calls = partial(self._sampler.calls, compiled)
        self._barrier = Barrier()
        self._environments = EnvironmentManager(
            tree, compiled, strategy, partial(self._sampler.recorded, compiled), seed
        )
        self._stopping = Stopping() if stopping is None else stopping
        self._running = RunningRollouts(tree.core, self._barrier, checkpoint.endings)
        started = tree.core.rollouts - self._taken.rollouts
        self._task_budget = (
            None if sources is None else TaskBudget(sources, tree.core, self._barrier, checkpoint, started)
        )
        self._seconds = None if sources is None or sources.task is None else sources.task.seconds
        self._driver = None if program is None else ProgramDriver(program, tree.core, seed)
        self._done = 0
        self._round = 0 if checkpoint.last is None else checkpoint.last.round + 1
        self._released, self._stopped = checkpoint.released, checkpoint.stopped
        self._steps: dict[int, int] = {}
        self._spent: set[int] = set()
        self._live: dict[int, Rollout] = {}
        self._ended: list[int] = []
        self._scorer = RoundScorer(tree, reward, getattr(strategy, "value", None))
        self._planned = self._taken.rollouts + strategy.rollouts()

    async def run(self) -> None:
        """Grow and score all rollouts, then filter them; raises ConfigError, StrategyError, EndpointError."""
        write_prompt(self.tree, self._compiled.agent)
        deadline = self._deadline()
        try:
            async with asyncio.TaskGroup() as group:
                self._take_over(group)
                waiting = await self._rest()
                ended, self._ended = self._ended, []
                wanted = self._next(ended, waiting) if self._round else self._first()
                while wanted or self._live:
                    await self._move(wanted, ended, group)
                    waiting = await self._rest()
                    ended, self._ended = self._ended, []
                    wanted = self._next(ended, waiting)
            if self._running.over and self._sampler.sent:
                await asyncio.wait(self._sampler.sent, timeout=_LEAVE_WITHIN)
        finally:
            if deadline is not None:
                deadline.cancel()
            self._sampler.close()
            # One that is cancelled ends nothing itself.
            for rollout in self._live.values():
                rollout.activity.end()
        if self._filters and not self._checkpoint.judged:
            judge(self._filters, Group(self.tree, self._compiled.dialect.read))
            write(self.tree.core, JudgedMark(self.tree.core.rollouts))
            self._sink.grew()

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
        """End all growth now; see :meth:`RunningRollouts.cut`."""
        self._running.cut(word, why)

    def _deadline(self) -> asyncio.TimerHandle | None:
        """Cut the tree when the task's time is over."""
        if self._seconds is None:
            return None
        why = f"deadline: {self._seconds:g} s for the task"
        return asyncio.get_running_loop().call_later(self._seconds, self.cut, "deadline", why)

    async def _rest(self) -> list[int]:
        """Wait until all rollouts are idle, grant budget requests, then write scores; return waiting rollouts."""
        while True:
            waiting = await self._barrier.rest()
            if self._task_budget is None or not self._task_budget.admit():
                self._scorer.write()
                self._sink.grew()
                return waiting

    def _first(self) -> list[Move]:
        return [] if self._is_over() else self._ask("start", [])

    def _next(self, ended: Sequence[int], waiting: Sequence[int]) -> list[Move]:
        if self._running.over:
            return []
        wanted = self._ask("ended", ended) + self._ask("stepped", waiting)
        if self._running.sealed:
            wanted = [move for move in wanted if not isinstance(move, Fork)]
        return [] if (wanted or waiting) and self._is_over() else wanted

    def _is_over(self) -> bool:
        """Whether growth is over; it is cut if the task is settled."""
        if not self._running.over and (why := self._stopping.is_settled(self.tree.core, self._planned)) is not None:
            self.cut("settled", why)
        return self._running.over

    def _ask(self, hook: str, numbers: Sequence[int]) -> list[Move]:
        if not numbers and hook != "start":
            return []
        return moves(self._strategy, hook, View(self.tree, numbers, self._seed, self._taken.rollouts, self._calls))

    def _take_over(self, group: asyncio.TaskGroup) -> None:
        """Continue rollouts that have not ended, and finish the bookkeeping of those that have."""
        core = self.tree.core
        for number in core.growing:
            fork, silent = self._checkpoint.fork(number), core.rollout(number).turns == core.rollout(number).path[-2]
            rollout = self._made(number, fork, silent=silent)
            if self._driver is None:
                rollout.take_up(self._compiled, partial(self._sampler.recorded, self._compiled), self._calls)
            rollout.effects.before = self._checkpoint.unresolved.get(number)
            rollout.environment = self._environments.of(rollout)
        for rollout in self._live.values():
            self._barrier.start()
            group.create_task(self._play(rollout))
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
            self._barrier.start()
            group.create_task(self._rejudge(number, termination))

    async def _rejudge(self, number: int, termination: Termination) -> None:
        await self._scorer.ask(number, termination, spent=self._checkpoint.took(number))
        self._barrier.end()

    async def _move(self, wanted: Sequence[Move], told: Sequence[int], group: asyncio.TaskGroup) -> None:
        """Begin a round: drop, fork, stop and continue rollouts in one step, so that no delta has a part of it."""
        core = self.tree.core
        check_size(self._strategy, wanted, core.rollouts - self._taken.rollouts)
        inside, program = self._sampler.inside, self._driver is not None
        check_moves(self._strategy, wanted, core, self._live, inside=inside, program=program)
        forks = [move for move in wanted if isinstance(move, Fork)]
        if self._task_budget is not None:
            forks = await self._task_budget.paid(forks, self._running.refuse)
        # From here on in one step, so that a delta has all of it or nothing.
        for move in wanted:
            if isinstance(move, Drop):
                note(core, move.rollout, Verdict(type(self._strategy).__name__, "drop", move.reason))
        if self._running.over:
            return  # it was cut meanwhile
        self._environments.next_round()
        stopped = {move.rollout: move.reason for move in wanted if isinstance(move, Stop)}
        waiting = [self._live[number] for number in sorted(self._barrier.waiting)]
        opened = [ForkRecord.by(fork, open_fork(core, fork)) for fork in forks]
        going = {rollout.id: rollout.turn for rollout in waiting if rollout.id not in stopped}
        write(core, RoundMark(self._round, tuple(told), going, stopped, tuple(fork for fork in opened if fork.says)))
        self._round += 1
        for fork in opened:
            self._open(fork, group)
        for rollout in waiting:
            reason = stopped.get(rollout.id)
            self._barrier.go(rollout.id, None if reason is None else Finished(Termination.CENSORED, None, reason))
        self._sink.grew()

    def _open(self, fork: ForkRecord, group: asyncio.TaskGroup) -> None:
        core = self.tree.core
        point = core.rollout(fork.first).point
        made = calls_before(core, point, self._compiled, self._calls)
        for number in range(fork.first, fork.first + fork.n):
            rollout = self._made(number, fork)
            if self._driver is not None:
                self._driver.opened(number)
            rollout.tool_calls = made
            rollout.environment = self._environments.of(rollout)
            self._barrier.start()
            group.create_task(self._play(rollout))

    def _made(self, number: int, fork: ForkRecord | None, *, silent: bool = True) -> Rollout:
        """Make a rollout as its fork says; sampling and prefix count only before its first turn."""
        told = fork if silent else None
        rollout = self._live[number] = Rollout(
            self.tree.core,
            number,
            self.tree.task,
            self._seed,
            self._sampler,
            self._sink,
            None if told is None else told.sampling,
            self._between if self._stepwise or (fork is not None and fork.steps is not None) else None,
            None if told is None else told.kept,
            self._task_budget,
        )
        if fork is not None and fork.steps is not None:
            self._steps[number] = fork.steps
        return rollout

    async def _between(self, rollout: Rollout) -> None:
        """Called by a rollout between two steps."""
        if rollout.turn - rollout.start >= self._steps.get(rollout.id, rollout.turn + 1):
            self._spent.add(rollout.id)
            raise Finished(Termination.CENSORED, None, TOOK)
        if rollout.id in self._released:
            self._released.discard(rollout.id)
        elif self._stepwise and rollout.id >= self._taken.rollouts:
            await self._barrier.wait(rollout.id)

    async def _play(self, rollout: Rollout) -> None:
        own = asyncio.current_task()
        try:
            self._running.enter(rollout.id)
            rollout.effects.check()
            if rollout.id in self._stopped:
                raise Finished(Termination.CENSORED, None, self._stopped[rollout.id])
            await self._program(rollout)
        except (InfrastructureError, UsageError):
            raise
        except BaseException as error:
            if cancelled() if isinstance(error, asyncio.CancelledError) else not raised_by_user_code(error, own):
                raise
            end = ending_of(rollout.effects.unresolved_effect or error)
            if end.termination is Termination.LOST:
                about = {"task": self.tree.task.id, "rollout": rollout.id}
                logger.exception("task %r, rollout %d broke", *about.values(), extra=about)
        rollout.activity.end()
        self._running.leave(rollout.id)
        if not self._running.kept(rollout.id):
            self.tree.core.close(rollout.id, end.termination.value, end.answer, end.failure)
            self._running.left(rollout.id)
            if self._sampler.recorder is not None and self._sampler.recorder.traced:
                name = self._compiled.agent.name
                self._sampler.recorder.ended(rollout.id, name, rollout.began, end.termination.value, end.failure)
            self._count(end.termination)
            self._sink.grew()
            await self._scorer.ask(rollout.id, end.termination, spent=rollout.id in self._spent)
        del self._live[rollout.id]
        self._ended.append(rollout.id)
        self._barrier.end()

    async def _program(self, rollout: Rollout) -> None:
        """Play a rollout's program; a cut or refused budget finishes it."""
        try:
            async with nullcontext() if rollout.environment is None else rollout.environment.entered():
                try:
                    await (agent_loop(rollout, self._compiled) if self._driver is None else self._driver.play(rollout))
                finally:
                    # Before its environment is closed: it has ended, and is not cut any more.
                    self._running.leave(rollout.id)
        except asyncio.CancelledError:
            raise self._running.caught(rollout.id) from None
        except OutOfBudget as end:
            self._running.refuse(end.reason)
            raise

    def _count(self, termination: Termination) -> None:
        """Count an ended rollout, and cut the others once there are enough."""
        self._done += termination not in UNSCORED
        enough = self._stopping.enough
        if enough is not None and self._done >= enough and (self._running or self.tree.core.rollouts < self._planned):
            why = f"enough: {enough} of {self._planned - self._taken.rollouts}"
            self._running.cut("enough", why, keep=self._stopping.tail == "keep")
