"""What is done for a program: requests fly side by side, and nodes are appended in the order of its calls."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from trunkline.llm import messages
from trunkline.llm.types import ToolCall
from trunkline.rollout.budget import messages_bound
from trunkline.rollout.environments import RecordedCalls, observations
from trunkline.rollout.programs.environment import BEGUN, NO_STEP, ProgramEnvironment, step_on_record
from trunkline.rollout.sampling.inflight import Named, TraceRecorder
from trunkline.rollout.sampling.turns import TurnRequest
from trunkline.tools.calls import Origin
from trunkline.tools.review import ToolReview

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence

    from trunkline._core import RolloutView
    from trunkline.agent import CompiledAgent
    from trunkline.errors import EnvironmentFailed
    from trunkline.rollout.environments import Figures
    from trunkline.rollout.programs.replay import ReplaySlot
    from trunkline.rollout.rollout import Rollout
    from trunkline.rollout.sampling.turns import AppendedTurn, AskRecord, PendingTurn
    from trunkline.rollout.task_budget import Reservation
    from trunkline.tools.environment import Environment
    from trunkline.tools.tool import Tool
    from trunkline.tools.toolbox import Observation, Toolbox
    from trunkline.tree.records import Record

__all__ = ["ProgramExecutor"]

T = TypeVar("T")

_DIRECT: Final = 1 << 20
"""Index of the first call that a program makes itself; those of turns are far below."""


class ProgramExecutor:
    """Does what the program of one rollout asks for.

    Args:
        rollout: The rollout.

    Attributes:
        core: The tree.
        facts: The rollout, as the tree had it at the beginning.
        name: Interns a string in the tree.
        recorded: Returns a turn of the tree.
        environment: The rollout's environment; None without one.
        has_grown: Whether the tree grew since the last ``flush``.
    """

    def __init__(self, rollout: Rollout) -> None:
        self.core = core = rollout.core
        self.facts: RolloutView = core.rollout(rollout.id)
        facts = self.facts
        rollout.leaf, rollout.turn = facts.leaf, facts.turns
        self.name = rollout.core.name
        self.recorded = rollout.sampler.recorded
        self._rollout = rollout
        self._sampler = rollout.sampler
        self._sink = rollout.sink
        self._sampling = rollout.first_sampling
        self._between = rollout.between
        self._task_budget = rollout.task_budget
        self.environment = cast("ProgramEnvironment | None", rollout.environment)
        self._path = facts.path
        self._run_seed = rollout.seed
        self._asked = 0
        self._gate = asyncio.Lock()
        # When tool calls began that are not on record yet, by their turn, or their number beyond those of turns.
        self._started: dict[int, int] = {}
        self._reviews: dict[int, ToolReview] = {}  # by turn, of calls that are not on record yet
        self._out: list[str] = []
        self._end: Exception | None = None
        self.has_grown = False
        self._size = self._turns = 0

    def numbered(self, compiled: CompiledAgent) -> tuple[int, CompiledAgent]:
        """Return the number of the next turn that is asked for, and the agent; the first may be sampled otherwise."""
        number, self._asked = self._asked, self._asked + 1
        return number, compiled if self._sampling is None or number else compiled.sampled(self._sampling)

    def passed(self, number: int) -> None:
        """Note the number of a turn that is on record."""
        self._asked = max(self._asked, number + 1)

    def send(
        self,
        compiled: CompiledAgent,
        leaf: int,
        context: int | None,
        step: int,
        asked: int,
        number: int,
        draft: int | None = None,
        more: Sequence[bytes] = (),
        *,
        joins: bool,
    ) -> Coroutine[Any, Any, PendingTurn]:
        """Ask for a turn, and keep it off the tree until ``land``.

        Args:
            compiled: The agent that is asked.
            leaf: The node whose path is the conversation.
            context: What is sent instead; None where it is that path.
            step: The step, as of ``Request``.
            asked: How many turns of the same role were asked for before in it.
            number: How many turns of all roles were asked for before.
            draft: That path with messages behind it that are sent instead; None where it is the path, or a context.
            more: These messages.
            joins: Whether it belongs to the step of a turn that was asked for before it. That is said by the program's
                order and not by what is still on its way, so it is the same whichever reply comes first, and after a
                crash.

        Raises:
            LLMError: If no usable reply came.
            EndpointError: The endpoint refuses to serve the run.
            Finished: The budget, or the strategy, does not allow one more turn.
        """
        rollout = self._rollout
        ask = TurnRequest(compiled, rollout.id, leaf, rollout.start + number, None, context, step, asked, draft, more)
        limited = self._between is not None or self._task_budget is not None or self.environment is not None
        return self._send_limited(ask, joins=joins) if limited else self._fly(ask)

    async def _send_limited(self, ask: TurnRequest, *, joins: bool) -> PendingTurn:
        """Ask for a turn once its environment is there, and the strategy and the budget allow it."""
        if self.environment is not None:
            await self.environment.ready()
        async with self._gate:
            ask.reservation = await self._allowed(ask, joins=joins)
            if self._task_budget is not None and self._task_budget.orders_turns:
                return await self._fly(ask)
        return await self._fly(ask)

    async def _allowed(self, ask: TurnRequest, *, joins: bool) -> Reservation | None:
        """Wait for the next step and for the budget; once a limit has ended the rollout, nothing more is asked."""
        if self._end is not None:
            raise self._end
        rollout, task_budget = self._rollout, self._task_budget
        try:
            if self._between is not None and rollout.turn > rollout.start and not joins:
                rollout.activity.leave()
                await self._between(rollout)
            if task_budget is None:
                return None
            if not self._out:
                rollout.activity.leave()
            return await task_budget.turn(rollout.id, ask.leaf, ask.compiled, messages_bound(ask.more), ask.context)
        except Exception as end:
            self._end = end
            raise

    async def _fly(self, ask: TurnRequest) -> PendingTurn:
        """Ask for a turn, once one more may be in flight; what was set aside for one that is not sent is given back."""
        activity, out = self._rollout.activity, self._out
        out.append(ask.compiled.agent.llm)
        activity.ask(*out)
        try:
            if (waits := self._sink.reserve()) is not None:
                await waits
            try:
                return await self._sampler.ask_later(ask)
            except BaseException:
                self._sink.release()
                raise
        except BaseException:
            if ask.reservation is not None:
                ask.reservation.drop()
            raise
        finally:
            out.remove(ask.compiled.agent.llm)
            if out:
                activity.ask(*out)
            else:
                activity.run()

    def land(
        self, pending: PendingTurn, sent: int | None, nth: int, asked: AskRecord, note: bytes | None, *, alone: bool
    ) -> AppendedTurn:
        """Put a turn onto the tree with its record."""
        rollout = self._rollout
        appended = pending.land(self.core, rollout.id, sent, nth, asked, note, alone=alone)
        rollout.leaf, rollout.turn = appended.node, appended.turns
        self.has_grown = True
        self._size += appended.size
        self._turns += 1
        return appended

    def flush(self) -> None:
        """Say that the tree grew, on the worker's loop."""
        size, turns = self._size, self._turns
        self.has_grown, self._size, self._turns = False, 0, 0
        self._sink.grew(size, turns)

    def let_others(self) -> None:
        """Hold up no other turn with one that has come, and lands once those beside it have."""
        self._sink.release()

    def count_again(self) -> None:
        """Count such a turn again: it lands, or is dropped."""
        self._sink.retake()

    def drop(self, pending: PendingTurn) -> None:
        """Give up a turn that will not land; what it did cost is counted all the same."""
        pending.drop()
        self._sink.release()

    async def run(
        self, compiled: CompiledAgent, calls: Sequence[ToolCall], turn: int, place: ReplaySlot
    ) -> tuple[list[Observation], Figures | EnvironmentFailed]:
        """Run tool calls of a turn.

        Args:
            compiled: Whose tools they are.
            calls: The calls.
            turn: Model turns before the one that made them.
            place: Their place in line.

        Raises:
            BeforeToolFailed: The agent's ``before_tool`` failed.
            EnvironmentFailed: There is no environment, and they take one.
            Finished: The budget does not allow them.
            ForkRefused: The environment cannot be brought to its state.
            InfrastructureError: That one with side effects will begin cannot be written down.
        """
        begin, origin, review = self._rollout.effects.begin, self._origin(turn), None
        if (hook := compiled.agent.before_tool) is not None:
            review = self._reviews[turn] = ToolReview(hook, self._rollout.task)
        if self.environment is None:
            work = compiled.toolbox.call_all(list(calls), None, origin, begin, review)
            self._started[turn] = TraceRecorder.now()
            return await self._away(calls, work), NO_STEP
        call_all = compiled.toolbox.call_all
        return await self._beside(
            self.environment,
            calls,
            turn,
            lambda environment: call_all(list(calls), environment, origin, begin, review),
            place,
        )

    async def direct(
        self, tool: Tool[..., Any], toolbox: Toolbox, number: int, arguments: str, place: ReplaySlot
    ) -> tuple[Observation, Figures | EnvironmentFailed]:
        """Run a tool that no turn called.

        Args:
            tool: The tool.
            toolbox: What runs it.
            number: Which one of those that the program runs itself.
            arguments: Its arguments.
            place: Its place in line.

        Raises:
            EnvironmentFailed: There is no environment, and it takes one.
            Finished: The budget does not allow it.
            ForkRefused: The environment cannot be brought to its state.
            InfrastructureError: It has side effects, and that it will begin cannot be written down.
        """
        call = self._origin(0).call(_DIRECT + number)

        async def work(environment: Environment | None) -> Observation:
            if tool.policy.side_effects:
                await self._rollout.effects.begin([(tool.name, call)])
            return await toolbox.call(tool.name, arguments, environment, call)

        if self.environment is None or tool.schema.slot is None:
            self._started[_DIRECT + number] = TraceRecorder.now()
            return await self._away([tool], work(None)), NO_STEP
        return await self._beside(self.environment, [tool], _DIRECT + number, work, place)

    async def _beside(
        self,
        environment: ProgramEnvironment,
        calls: Sequence[Named],
        began: int,
        work: Callable[[Environment | None], Coroutine[Any, Any, T]],
        place: ReplaySlot,
    ) -> tuple[T, Figures | EnvironmentFailed]:
        """Make calls where there is an environment; one call at a time changes it, as the place in line says."""
        await environment.ready()

        async def both() -> tuple[T, Figures | EnvironmentFailed]:
            seen = await work(environment.environment)
            return seen, await environment.after(place.kind, place.key, place.nth) if place.ordered else NO_STEP

        self._started[began] = TraceRecorder.now()
        if place.ordered:
            place.data = (BEGUN,)
        return await self._away(calls, both())

    def calls_of(self, compiled: CompiledAgent, calls: Sequence[ToolCall], record: Record, node: int) -> RecordedCalls:
        """Return calls of a turn that are on record.

        Args:
            compiled: Whose tools they are.
            calls: The calls.
            record: What is on record for them.
            node: The turn that made them.
        """
        turn, said = self.core.node(node).turns - 1, [self.core.message(node) for node in record.nodes]
        origin, again = self._origin(turn, record.rollout), observations(compiled, calls, turn)
        step = step_on_record(record.data[2:])
        return RecordedCalls(f"turn {turn}", compiled.toolbox, calls, origin, said, again, step)

    def direct_call(self, toolbox: Toolbox, name: str, number: int, arguments: bytes, record: Record) -> RecordedCalls:
        """Return a call that the program made itself and that is on record.

        Args:
            toolbox: What runs the tool.
            name: The tool's name.
            number: As for ``direct``.
            arguments: Its arguments.
            record: What is on record for it.
        """
        _, _, text, _, _, *told = record.data
        return RecordedCalls(
            "the program",
            toolbox,
            [ToolCall("", name, arguments.decode())],
            self._origin(0, record.rollout),
            [messages.tool("", text)],
            lambda _, now: messages.tool("", now),
            step_on_record(told),
            _DIRECT + number,
        )

    def known(self, tool: Tool[..., Any], number: int, seen: Observation) -> None:
        """Note that what came of a tool is on record that no turn called.

        Args:
            tool: The tool.
            number: As for ``direct``.
            seen: What came of it.
        """
        self._used((tool.name,), (tool,), (seen,), _DIRECT + number)
        self._rollout.effects.known(0, [_DIRECT + number])

    def _used(self, tools: Collection[str], calls: Sequence[Named], seen: Sequence[Observation], began: int) -> None:
        self._sink.used(self._rollout.id, tools, calls, seen, self._started.pop(began, 0))

    def _origin(self, turn: int, rollout: int | None = None) -> Origin:
        """Return the origin of calls that a rollout made; this one when None."""
        own = self._rollout
        if rollout is None or rollout == own.id:
            return Origin(self._run_seed, own.task.id, own.id, self._path, turn)
        return Origin(self._run_seed, own.task.id, rollout, self.core.rollout(rollout).path, turn)

    async def _away(self, calls: Sequence[Named], work: Coroutine[Any, Any, T]) -> T:
        """Pay for some tool calls, and make them."""
        try:
            async with self._gate:
                if not self._out:
                    self._rollout.activity.leave()
                if self._task_budget is not None:
                    await self._task_budget.tools(self._rollout.id, len(calls))
            gate = self._sampler.client.turn_gate
            if gate.shut:
                await gate.enter()
            gate.calls[work] = calls, time.monotonic()
            try:
                return await work
            finally:
                del gate.calls[work]
        finally:
            work.close()
            if not self._out:
                self._rollout.activity.run()

    def observed(
        self, compiled: CompiledAgent, calls: Sequence[ToolCall], seen: Sequence[Observation], turn: int
    ) -> list[int]:
        """Append the observations of a turn and return their nodes.

        Args:
            compiled: Whose tools they are.
            calls: The calls.
            seen: What came of them.
            turn: Model turns before the one that made them.
        """
        agent = self.name(compiled.agent.name)
        self._used(compiled.toolbox.names, calls, seen, turn)
        nodes = []
        for index, (call, one) in enumerate(zip(calls, seen, strict=True)):
            message = compiled.dialect.observation(call, one.text, messages.call_id(turn, index))
            nodes.append(self.core.observe(self._rollout.id, message, agent, one.micros, not one.ok))
            self._rollout.tool_calls += 1
        self._rollout.leaf = nodes[-1]
        if (review := self._reviews.pop(turn, None)) is not None:
            for mark in review.marks():
                self.core.mark(mark)
        self._rollout.effects.known(turn, range(len(calls)))
        return nodes

    def tell(self, message: bytes, by: str, seen: Observation | None) -> int:
        """Append a message that no model said, and return its node.

        Args:
            message: The message.
            by: Who says it.
            seen: What came of the tool that says it; None where it is none.
        """
        rollout = self._rollout
        if seen is None:
            rollout.leaf = self.core.tell(rollout.id, message, self.name(by))
        else:
            rollout.leaf = self.core.observe(rollout.id, message, self.name(by), seen.micros, not seen.ok)
            rollout.tool_calls += 1
        return rollout.leaf
