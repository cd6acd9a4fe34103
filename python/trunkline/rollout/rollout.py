"""Rollout: one try."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from trunkline._core import TURN, CoreTree
from trunkline.errors import ContentFiltered, LLMError, RolloutError
from trunkline.llm import messages
from trunkline.llm.batch.activity import UNREAD, RolloutActivity, UnreadActivity
from trunkline.llm.request import Sampling
from trunkline.llm.types import ReplyChoice
from trunkline.rollout.environments import EnvironmentHandle
from trunkline.rollout.sampling.dispatcher import WantedTurn
from trunkline.rollout.sampling.sampler import Sampler
from trunkline.rollout.side_effects import SideEffectLog
from trunkline.rollout.task_budget import TaskBudget
from trunkline.rollout.types import KeptPrefix, TurnSink
from trunkline.tools.calls import Origin
from trunkline.tools.review import ToolReview
from trunkline.tree.records import InfoMark, StepMark
from trunkline.types import Task, Termination

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.agent import CompiledAgent
    from trunkline.errors import EnvironmentFailed
    from trunkline.llm.types import ToolCall
    from trunkline.rollout.task_budget import Reservation
    from trunkline.rollout.types import Turn
    from trunkline.tools.calls import Call


_BROKEN_OFF = frozenset({"error", "abort", "aborted"})
"""Finish reasons of a server that gave up in the middle; what there is of the reply is no answer."""

_UNUSABLE = _BROKEN_OFF | {"content_filter"}


class Rollout(msgspec.Struct, eq=False):
    """One try of one task, with its position on the tree; a program asks, observes and finishes through it."""

    id: int
    sampler: Sampler
    core: CoreTree
    task: Task
    seed: int
    sink: TurnSink
    activity: RolloutActivity | UnreadActivity
    began: float
    leaf: int
    start: int
    turn: int
    _path: tuple[int, ...]
    first_sampling: Sampling | None = None
    between: Callable[[Rollout], Awaitable[None]] | None = None
    _kept: KeptPrefix | None = None
    task_budget: TaskBudget | None = None
    place: str = "program"
    player: asyncio.Task[None] | None = None
    steps: int | None = None
    tool_calls: int = 0
    _last_turn: ReplyChoice | None = None
    side_effects: SideEffectLog | None = None
    environment: EnvironmentHandle | None = None
    facts: InfoMark | None = None
    done: Termination | None = None

    @classmethod
    def of(
        cls,
        sampler: Sampler,
        id: int,
        sampling: Sampling | None = None,
        between: Callable[[Rollout], Awaitable[None]] | None = None,
        kept: KeptPrefix | None = None,
        task_budget: TaskBudget | None = None,
    ) -> Rollout:
        """Return a rollout of the tree at its fork point."""
        facts = sampler.core.rollout(id)
        path = facts.path
        return cls(
            id,
            sampler,
            sampler.core,
            sampler.task,
            sampler.seed,
            sampler.sink,
            sampler.client.activity.open(),
            time.monotonic(),
            facts.point,
            path[-2],
            path[-2],
            path,
            sampling,
            between,
            kept,
            task_budget,
        )

    @property
    def effects(self) -> SideEffectLog:
        """The log of its calls with side effects, made when the first of them is noted."""
        if self.side_effects is None:
            self.side_effects = SideEffectLog(self.core, self.id, self.sink)
        return self.side_effects

    async def _begin(self, calls: Sequence[tuple[str, Call]]) -> None:
        await self.effects.begin(calls)

    async def ask(self, compiled: CompiledAgent) -> ReplyChoice:
        """Append the model's next turn; raises LLMError, EndpointError, or Finished where the budget refuses."""
        if self._last_turn is not None:
            choice, self._last_turn = self._last_turn, None
            self.turn += 1
            return usable(choice)
        if self.first_sampling is not None:
            compiled, self.first_sampling = compiled.sampled(self.first_sampling), None
        if self.between is not None and self.turn > self.start:
            self.activity.leave()
            self.place = "strategy"
            await self.between(self)
        reservation = None if self.task_budget is None else await self._pay(self.task_budget, compiled)
        wanted = WantedTurn(self.sampler, compiled, self.id, self._kept, reservation)
        self._kept = None
        recorder, reserved = self.sampler.recorder, False
        started = 0 if recorder is None else recorder.now()
        try:
            if self.activity is not UNREAD:
                self.activity.ask(compiled.agent.llm)
            if (waits := self.sink.reserve()) is not None:
                self.place = "run file"
                await waits
                del waits  # it is over, and the reply may take long
            reserved, self.place = True, "model"
            turn: Turn | RolloutError = await self.sampler.want(wanted)
            if isinstance(turn, RolloutError):
                raise turn
        except BaseException as error:
            if recorder is not None:
                recorder.turned(self.id, compiled, started, None, error)
            self._give_up(wanted, reserved=reserved)
            raise
        finally:
            if self.activity is not UNREAD:
                self.activity.run()
            self.place = "program"
        self.leaf = turn.node
        self.turn += 1
        if recorder is not None:
            recorder.turned(self.id, compiled, started, turn.node, None)
        self.sink.grew(turn.size, 1)
        return usable(turn.choice) if turn.choice.finish in _UNUSABLE else turn.choice

    def _give_up(self, wanted: WantedTurn, *, reserved: bool) -> None:
        self.sampler.give_up(wanted)
        if reserved:
            self.sink.release()
        if wanted.reservation is not None:
            wanted.reservation.drop()

    def take_up(
        self,
        compiled: CompiledAgent,
        read_turn: Callable[[int], ReplyChoice],
        calls: Callable[[int], Sequence[ToolCall]],
    ) -> None:
        """Move to the position on a tree of an earlier process; a last turn without observations is replayed."""
        facts = self.core.rollout(self.id)
        self.leaf = facts.leaf
        self.tool_calls = calls_before(self.core, facts.leaf, compiled, calls)
        last_turn = self._last_turn = read_turn(facts.leaf) if self.core.node(facts.leaf).kind == TURN else None
        self.turn = facts.turns - (last_turn is not None)

    async def _pay(self, task_budget: TaskBudget, compiled: CompiledAgent) -> Reservation:
        self.activity.leave()
        self.place = "budget"
        return await task_budget.turn(self.id, self.leaf, compiled, 0 if self._kept is None else self._kept.tokens)

    async def use(self, compiled: CompiledAgent, calls: Sequence[ToolCall]) -> None:
        """Run the tool calls of a turn concurrently and append their observations in call order."""
        read = self.activity is not UNREAD
        if read:
            self.activity.leave()
        self.place = "tool"
        if self.task_budget is not None:
            await self.task_budget.tools(self.id, len(calls))
        environment = None if self.environment is None else self.environment.environment
        origin = Origin(self.seed, self.task.id, self.id, self._path, self.turn - 1)
        hook = compiled.agent.before_tool
        review = None if hook is None else ToolReview(hook, self.task)
        gate = self.sampler.client.turn_gate
        if gate.shut:
            await gate.enter()
        began = time.monotonic()
        gate.calls[self] = calls, began
        step: StepMark | EnvironmentFailed | None = None
        try:
            observations = await compiled.toolbox.call_all(calls, environment, origin, self._begin, review)
            if self.environment is not None:
                step = await self.environment.stepped(origin.turn)
        finally:
            del gate.calls[self]
        self.sink.used(self.id, compiled.toolbox.names, calls, observations, int(began * 1e6))
        if read:
            self.activity.run()
        self.place = "program"
        if compiled.dialect.plain_results:
            self.leaf, size = self.core.observe_results(self.id, compiled.agent.name, origin.turn, observations)
        else:
            agent, size = self.core.name(compiled.agent.name), 0
            for index, (call, seen) in enumerate(zip(calls, observations, strict=True)):
                # The ids in the history are made from the position: a server's may be missing, repeated or hostile.
                message = compiled.dialect.observation(call, seen.text, messages.call_id(origin.turn, index))
                self.leaf = self.core.observe(self.id, message, agent, seen.micros, not seen.ok)
                size += len(message)
        self.tool_calls += len(calls)
        if self.side_effects is not None:
            self.side_effects.known(origin.turn, range(len(calls)))
        if review is not None or step is not None:
            self._mark(review, step)
        # Once for all, so that no delta has a part of them.
        self.sink.grew(size)
        if self.environment is not None:
            self.activity.leave()
            await self.environment.passed(step)
            self.activity.run()

    def _mark(self, review: ToolReview | None, step: StepMark | EnvironmentFailed | None) -> None:
        """Put on record what was decided of the calls of a step, and what the environment says of it."""
        if review is not None:
            for mark in review.marks():
                self.core.mark(mark)
        if isinstance(step, StepMark):
            self.core.mark(msgspec.json.encode(step).decode())

    def tell(self, compiled: CompiledAgent, problem: str) -> None:
        """Tell the model what is wrong with its turn, as a user message and a failed tool call."""
        message = messages.encode({"role": "user", "content": problem})
        self.leaf = self.core.observe(self.id, message, self.core.name(compiled.agent.name), 0, True)
        self.sink.grew(len(message))


def is_whole(finish: str) -> bool:
    """Whether a server completed a reply with this finish reason."""
    return finish not in _UNUSABLE


def usable(choice: ReplyChoice) -> ReplyChoice:
    """Return a choice that the server completed; ContentFiltered or LLMError for one that it broke off."""
    if choice.finish == "content_filter":
        raise ContentFiltered("the provider's filter withheld the reply")
    if choice.finish in _BROKEN_OFF:
        raise LLMError(f"the server broke the reply off: finish reason {choice.finish!r}", retryable=True)
    return choice


def calls_before(core: CoreTree, node: int, compiled: CompiledAgent, calls: Callable[[int], Sequence[ToolCall]]) -> int:
    """Return how many tool calls the path to a node made; 0 for an agent without a limit."""
    if compiled.agent.max_tool_calls is None:
        return 0
    return sum(len(calls(turn)) for turn in core.path(node)[:-1] if core.node(turn).kind == TURN)
