"""The session: drives one task's tree from its prompt to its last reward, in rounds."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from trunkline.errors import (
    InfrastructureError,
    LLMError,
    StrategyError,
    UsageError,
)
from trunkline.rollout.barrier import Barrier
from trunkline.rollout.desk import Desk, Outlet
from trunkline.rollout.exact import Kept
from trunkline.rollout.loop import agent_loop
from trunkline.rollout.opening import check_size, moves, open_fork, plant
from trunkline.rollout.outcome import outcome
from trunkline.rollout.players import Players
from trunkline.rollout.purse import OutOfBudget, Purse
from trunkline.rollout.resume import Taken, calls_before, go_on
from trunkline.rollout.rollout import Finished, Rollout
from trunkline.rollout.scores import Scores
from trunkline.rollout.siblings import Siblings
from trunkline.rollout.state import States
from trunkline.rollout.stopping import Stopping
from trunkline.rollout.strategy import INSIDE, Drop, Fork, Stop, stepwise
from trunkline.rollout.view import View
from trunkline.score.filters.filter import judge
from trunkline.score.filters.group import Group
from trunkline.score.rewards import Reward, cancelled
from trunkline.score.verdicts import Verdict, note
from trunkline.types import UNSCORED, Termination

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trunkline.llm.protocol import ToolCall
    from trunkline.rollout.agent import Kit
    from trunkline.rollout.draws import Draws
    from trunkline.rollout.purse import Allowance
    from trunkline.rollout.strategy import Move, Strategy
    from trunkline.score.filters.filter import Filter
    from trunkline.store.schema import Ending
    from trunkline.tree.tree import Tree

__all__ = ["Session"]

logger = logging.getLogger(__name__)

_LEAVE_WITHIN = 2.0
"""Seconds that requests which were given up have to end; an LLM that swallows its cancellation is left behind."""


class Session:
    """One task's tree while it grows. It has one owner and lives in one event loop.

    Args:
        tree: The task's tree: with nothing in it yet, or as an earlier run left it.
        kit: The agent that plays it.
        strategy: Where rollouts start.
        reward: Scores each finished rollout; None leaves them unscored.
        seed: The run's seed.
        draws: Who answers.
        outlet: Where rollouts say that they grew.
        filters: Who judges the tree once it is complete, in this order.
        stopping: When the tree ends before its strategy is done.
        allowance: What pays; None where nothing is limited.
        taken: How much of the tree an earlier run left; all of it when None.
    """

    def __init__(
        self,
        tree: Tree,
        kit: Kit,
        strategy: Strategy,
        reward: Reward | None,
        seed: int,
        draws: Draws,
        outlet: Outlet,
        *,
        filters: Sequence[Filter] = (),
        stopping: Stopping | None = None,
        allowance: Allowance | None = None,
        taken: Taken | None = None,
    ) -> None:
        self.tree = tree
        self._kit = kit
        self._strategy = strategy
        self._stepwise = stepwise(strategy)
        self._seed = seed
        self._outlet = outlet
        self._filters = filters
        self._desk = Desk(tree.core, tree.task.id, draws, outlet)
        self._barrier = Barrier()
        self._states = States(tree, kit, strategy, partial(self._desk.heard, kit))
        self._stopping = Stopping() if stopping is None else stopping
        self._players = Players(self._barrier)
        self._purse = None if allowance is None else Purse(allowance, tree.core, self._barrier)
        self._seconds = None if allowance is None or allowance.task is None else allowance.task.seconds
        self._done = 0
        self._steps: dict[int, int] = {}
        self._spent: set[int] = set()
        self._live: dict[int, Rollout] = {}
        self._ended: list[int] = []
        self._scores = Scores(tree, reward, getattr(strategy, "value", None))
        self._taken = tree.core.rollouts if taken is None else taken.rollouts
        self._planned = self._taken + strategy.rollouts()

    async def run(self) -> None:
        """Grow every rollout the strategy asks for, score it, and let filters judge the tree.

        A failed rollout is recorded and the others go on. What an earlier run left is brought to its end first: who had
        not ended goes on, and who had no reward yet is scored.

        Raises:
            ConfigError: If the strategy breaks at the start.
            StrategyError: If it breaks later.
            EndpointError: If the endpoint serves nobody: there is no point in going on.
        """
        plant(self.tree, self._kit.agent)
        deadline = self._deadline()
        try:
            async with asyncio.TaskGroup() as group:
                self._take_over(group)
                await self._rest()
                self._ended.clear()
                wanted = [] if self._is_over() else self._ask("start", [])
                while wanted or self._live:
                    await self._move(wanted, group)
                    waiting = await self._rest()
                    ended, self._ended = self._ended, []
                    wanted = self._next(ended, waiting)
            if self._players.over and self._desk.sent:
                await asyncio.wait(self._desk.sent, timeout=_LEAVE_WITHIN)
        finally:
            if deadline is not None:
                deadline.cancel()
            # One that is cancelled ends nothing itself.
            for rollout in self._live.values():
                rollout.lane.end()
        if self._filters:
            judge(self._filters, Group(self.tree, self._kit.speech.read))
            self._outlet.grew()

    @property
    def ending(self) -> Ending:
        """How growth ended, once it has."""
        return self._players.ending

    def cut(self, word: str, why: str) -> None:
        """End all growth now; see :meth:`Players.cut`."""
        self._players.cut(word, why)

    def _deadline(self) -> asyncio.TimerHandle | None:
        """Cut the tree when the task's time is over."""
        if self._seconds is None:
            return None
        why = f"deadline: {self._seconds:g} s for the task"
        return asyncio.get_running_loop().call_later(self._seconds, self.cut, "deadline", why)

    async def _rest(self) -> list[int]:
        """Wait until nobody moves, letting those who wait to spend go on, and score who has ended.

        Returns:
            Who waits between two steps.
        """
        while True:
            waiting = await self._barrier.rest()
            if self._purse is None or not self._purse.admit():
                self._scores.write()
                self._outlet.grew()
                return waiting

    def _next(self, ended: Sequence[int], waiting: Sequence[int]) -> list[Move]:
        """Decide what the next round is."""
        if self._players.over:
            return []
        wanted = self._ask("ended", ended) + self._ask("stepped", waiting)
        if self._players.sealed:
            wanted = [move for move in wanted if not isinstance(move, Fork)]
        return [] if (wanted or waiting) and self._is_over() else wanted

    def _is_over(self) -> bool:
        """Whether growth is over; it is cut if the task is settled."""
        if not self._players.over and (why := self._stopping.is_settled(self.tree.core, self._planned)) is not None:
            self.cut("settled", why)
        return self._players.over

    def _ask(self, hook: str, numbers: Sequence[int]) -> list[Move]:
        """Ask a hook of the strategy, if there is anything to ask it about."""
        if not numbers and hook != "start":
            return []
        return moves(self._strategy, hook, View(self.tree, numbers, self._seed, self._taken, self._calls))

    def _calls(self, turn: int) -> Sequence[ToolCall]:
        """The tool calls of a turn; a dialect that cannot read it finds none."""
        try:
            return self._kit.speech.read(self._desk.heard(self._kit, turn)).calls
        except LLMError:
            return ()

    def _take_over(self, group: asyncio.TaskGroup) -> None:
        """Let the rollouts of an earlier run go on that have not ended, and score those that lack it."""
        core = self.tree.core
        for number in core.growing:
            rollout = Rollout(core, number, self.tree.task, self._seed, self._desk, self._outlet, purse=self._purse)
            go_on(rollout, core, self._kit, partial(self._desk.heard, self._kit), self._calls)
            rollout.state = self._states.of(rollout)
            self._live[number] = rollout
        together = self._together(rollout.leaf for rollout in self._live.values())
        for rollout in self._live.values():
            rollout.join(together.get(rollout.leaf))
            self._barrier.start()
            group.create_task(self._play(rollout))
        for number in range(self._taken):
            facts = core.rollout(number)
            if facts.termination is not None and math.isnan(facts.reward):
                self._barrier.start()
                group.create_task(self._rejudge(number, Termination(facts.termination)))

    def _together(self, points: Iterable[int]) -> dict[int, Siblings]:
        """Where more than one draw is taken: these are asked for together, whoever takes them."""
        return {point: Siblings(self._desk) for point, draws in Counter(points).items() if draws > 1}

    async def _rejudge(self, number: int, termination: Termination) -> None:
        """Score a rollout that ended before its run could."""
        await self._scores.ask(number, termination, spent=False)
        self._barrier.end()

    async def _move(self, wanted: Sequence[Move], group: asyncio.TaskGroup) -> None:
        """Begin a round: note who is dropped, open forks, end who is stopped, let the others go on."""
        check_size(self._strategy, wanted, self.tree.core.rollouts - self._taken)
        for move in wanted:
            if isinstance(move, Drop):
                self._drop(move)
        stopped = {move.rollout: move.reason for move in wanted if isinstance(move, Stop)}
        for number in stopped.keys() - self._live.keys():
            raise StrategyError(f"rollout {number} does not wait between two steps, so it cannot be stopped")
        forks = [move for move in wanted if isinstance(move, Fork)]
        if not self._desk.inside and any(fork.at is not None for fork in forks):
            raise StrategyError(f"{type(self._strategy).__name__} forks inside a turn, which needs {INSIDE}")
        if self._purse is not None:
            forks = await self._paid(self._purse, forks)
            if self._players.over:
                return  # it was cut meanwhile
        self._states.next_round()
        waiting = [self._live[number] for number in sorted(self._barrier.waiting)]
        opened = [(fork, open_fork(self.tree.core, fork)) for fork in forks]
        going = [rollout.leaf for rollout in waiting if rollout.id not in stopped]
        starting = [self.tree.core.rollout(number).point for _, numbers in opened for number in numbers]
        siblings = self._together([*going, *starting])
        for fork, numbers in opened:
            made = calls_before(self.tree.core, self.tree.core.rollout(numbers[0]).point, self._kit, self._calls)
            for number in numbers:
                self._open(number, fork, made, siblings, group)
        for rollout in waiting:
            reason = stopped.get(rollout.id)
            rollout.join(siblings.get(rollout.leaf))
            self._barrier.go(rollout.id, None if reason is None else Finished(Termination.CENSORED, None, reason))

    def _drop(self, move: Drop) -> None:
        """Note that a rollout is left out of what is made of the tree."""
        core = self.tree.core
        if move.rollout >= core.rollouts:
            raise StrategyError(f"there is no rollout {move.rollout}, so it cannot be dropped")
        note(core, move.rollout, Verdict(type(self._strategy).__name__, "drop", move.reason))

    async def _paid(self, purse: Purse, forks: Sequence[Fork]) -> list[Fork]:
        """Return the forks that are paid for, with as many draws as are; after the first refusal there are none."""
        paid: list[Fork] = []
        for place, fork in enumerate(forks):
            n, why = await purse.open(fork.n)
            if n:
                paid.append(msgspec.structs.replace(fork, n=n))
            if n < fork.n:
                self._players.refuse(why, sum(fork.n for fork in forks[place:]) - n)
                break
        return paid

    def _open(
        self, number: int, fork: Fork, made: int, siblings: dict[int, Siblings], group: asyncio.TaskGroup
    ) -> None:
        """Let a rollout of a fork grow, whose path has made some tool calls before."""
        core = self.tree.core
        rollout = self._live[number] = Rollout(
            core,
            number,
            self.tree.task,
            self._seed,
            self._desk,
            self._outlet,
            siblings.get(core.rollout(number).point),
            fork.sampling,
            self._between if self._stepwise or fork.steps is not None else None,
            None if fork.at is None or fork.point is None else Kept(fork.point, fork.at),
            self._purse,
        )
        if fork.steps is not None:
            self._steps[number] = fork.steps
        rollout.tool_calls = made
        rollout.state = self._states.of(rollout)
        self._barrier.start()
        group.create_task(self._play(rollout))

    async def _between(self, rollout: Rollout) -> None:
        """Called by a rollout between two steps."""
        if rollout.turn - rollout.start >= self._steps.get(rollout.id, rollout.turn + 1):
            self._spent.add(rollout.id)
            raise Finished(Termination.CENSORED, None, "it took the steps it was given")
        if self._stepwise:
            await self._barrier.wait(rollout.id)

    async def _play(self, rollout: Rollout) -> None:
        """Play one rollout to its end, close it and find out what it is worth."""
        try:
            self._players.enter(rollout.id)
            await self._program(rollout)
        except (InfrastructureError, UsageError):
            raise
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and cancelled():
                raise
            end = outcome(error)
            if end.termination is Termination.LOST:
                logger.exception("task %r, rollout %d broke", self.tree.task.id, rollout.id)
        rollout.lane.end()
        self._players.leave(rollout.id)
        if not self._players.kept(rollout.id):
            self.tree.core.close(rollout.id, end.termination.value, end.answer, end.failure)
            self._outlet.grew()
            self._count(end.termination)
            await self._scores.ask(rollout.id, end.termination, spent=rollout.id in self._spent)
        del self._live[rollout.id]
        self._ended.append(rollout.id)
        self._barrier.end()

    async def _program(self, rollout: Rollout) -> None:
        """Play a rollout's program; one that is cut, or that nobody pays for any more, is finished."""
        try:
            async with nullcontext() if rollout.state is None else rollout.state.entered():
                try:
                    await agent_loop(rollout, self._kit)
                finally:
                    # Before its environment is closed: it has ended, and is not cut any more.
                    self._players.leave(rollout.id)
        except asyncio.CancelledError:
            end = self._players.caught(rollout.id)
            # What a tool with side effects did that was stopped, nobody knows.
            raise rollout.effects.doubt or end from None
        except OutOfBudget as end:
            self._players.refuse(end.reason)
            raise

    def _count(self, termination: Termination) -> None:
        """Count a rollout that has ended, and cut the others once there are enough."""
        self._done += termination not in UNSCORED
        enough, more = self._stopping.enough, len(self._players) or self.tree.core.rollouts < self._planned
        if enough is not None and self._done >= enough and more:
            why = f"enough: {enough} of {self._planned - self._taken}"
            self._players.cut("enough", why, keep=self._stopping.tail == "keep")
