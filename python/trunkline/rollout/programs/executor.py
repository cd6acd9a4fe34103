"""What is done for a program: requests fly side by side, and nodes are appended in the order of its calls."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from trunkline.llm import messages
from trunkline.rollout.sampling.inflight import Named, TraceRecorder
from trunkline.rollout.sampling.turns import TurnRequest
from trunkline.tools.calls import Origin

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Sequence

    from trunkline._core import RolloutView
    from trunkline.agent import CompiledAgent
    from trunkline.llm.types import ToolCall
    from trunkline.rollout.rollout import Rollout
    from trunkline.rollout.sampling.turns import AppendedTurn, AskRecord, PendingTurn
    from trunkline.rollout.task_budget import Reservation
    from trunkline.tools.tool import Tool
    from trunkline.tools.toolbox import Observation, Toolbox

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
        has_grown: Whether the tree grew since the last :meth:`flush`.
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
        self._path = facts.path
        self._run_seed = rollout.seed
        self._asked = 0
        self._gate = asyncio.Lock()
        # When tool calls began that are not on record yet, by their turn, or their number beyond those of turns.
        self._started: dict[int, int] = {}
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
        *,
        joins: bool,
    ) -> Coroutine[Any, Any, PendingTurn]:
        """Ask for a turn, and keep it off the tree until :meth:`land`.

        Args:
            compiled: The agent that is asked.
            leaf: The node whose path is the conversation.
            context: What is sent instead; None where it is that path.
            step: The step, as of :class:`~trunkline.llm.types.Request`.
            asked: How many turns of the same role were asked for before in it.
            number: How many turns of all roles were asked for before.
            joins: Whether it belongs to the step of a turn that was asked for before it. That is said by the program's
                order and not by what is still on its way, so it is the same whichever reply comes first, and after a
                crash.

        Raises:
            LLMError: If no usable reply came.
            EndpointError: The endpoint refuses to serve the run.
            Finished: The budget, or the strategy, does not allow one more turn.
        """
        rollout = self._rollout
        ask = TurnRequest(compiled, rollout.id, leaf, rollout.start + number, None, context, step, asked)
        limited = self._between is not None or self._task_budget is not None
        return self._send_limited(ask, joins=joins) if limited else self._fly(ask)

    async def _send_limited(self, ask: TurnRequest, *, joins: bool) -> PendingTurn:
        """Ask for a turn once the strategy and the budget allow it."""
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
            return await task_budget.turn(rollout.id, ask.leaf, ask.compiled, context=ask.context)
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

    def drop(self, pending: PendingTurn) -> None:
        """Give up a turn that will not land; what it did cost is counted all the same."""
        pending.drop()
        self._sink.release()

    async def run(self, compiled: CompiledAgent, calls: Sequence[ToolCall], turn: int) -> list[Observation]:
        """Run tool calls of a turn.

        Args:
            compiled: Whose tools they are.
            calls: The calls.
            turn: Model turns before the one that made them.

        Raises:
            Finished: The budget does not allow them.
            InfrastructureError: That one with side effects will begin cannot be written down.
        """
        begin, origin = self._rollout.effects.begin, self._origin(turn)
        work = compiled.toolbox.call_all(list(calls), None, origin, begin)
        self._started[turn] = TraceRecorder.now()
        return await self._away(calls, work)

    async def direct(self, tool: Tool[..., Any], toolbox: Toolbox, number: int, arguments: str) -> Observation:
        """Run a tool that no turn called.

        Args:
            tool: The tool.
            toolbox: What runs it.
            number: Which one of those that the program runs itself.
            arguments: Its arguments.

        Raises:
            Finished: The budget does not allow it.
            InfrastructureError: It has side effects, and that it will begin cannot be written down.
        """
        call = self._origin(0).call(_DIRECT + number)

        async def work() -> Observation:
            if tool.policy.side_effects:
                await self._rollout.effects.begin([(tool.name, call)])
            return await toolbox.call(tool.name, arguments, None, call)

        self._started[_DIRECT + number] = TraceRecorder.now()
        return await self._away([tool], work())

    def known(self, tool: Tool[..., Any], number: int, seen: Observation) -> None:
        """Note that what came of a tool is on record that no turn called.

        Args:
            tool: The tool.
            number: As for :meth:`direct`.
            seen: What came of it.
        """
        self._used((tool.name,), (tool,), (seen,), _DIRECT + number)
        self._rollout.effects.known(0, [_DIRECT + number])

    def _used(self, tools: Collection[str], calls: Sequence[Named], seen: Sequence[Observation], began: int) -> None:
        self._sink.used(self._rollout.id, tools, calls, seen, self._started.pop(began, 0))

    def _origin(self, turn: int) -> Origin:
        rollout = self._rollout
        return Origin(self._run_seed, rollout.task.id, rollout.id, self._path, turn)

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
