"""One try while it grows: what a program may do with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from trunkline.errors import ContentFiltered, LLMError
from trunkline.llm import messages
from trunkline.llm.protocol import LLM, Choice, Reply, Request, ToolCall
from trunkline.rollout.seed import base_seed
from trunkline.types import Task, Termination

if TYPE_CHECKING:
    from trunkline._core import Tree as Core
    from trunkline.rollout.agent import Kit

__all__ = ["Finished", "Rollout"]

Grown = Callable[[Reply | None], Awaitable[None]]
"""Awaited after every event, with the reply of a model turn: a worker waits here while too much is in flight."""


class Finished(Exception):
    """Raised by :meth:`Rollout.finish` to end the program where it stands."""

    def __init__(self, termination: Termination, answer: str | None) -> None:
        super().__init__(termination.value)
        self.termination = termination
        self.answer = answer


class Rollout:
    """One try of one task. A program is a coroutine over it: ask, observe, finish.

    Args:
        core: The task's tree.
        id: The rollout's id in it; it has just been opened.
        task: The task.
        seed: The run's seed.
        llm: Who answers.
        grown: Awaited after every event.
    """

    def __init__(self, core: Core, id: int, task: Task, seed: int, llm: LLM, grown: Grown) -> None:
        point, _leaf, path, *_rest = core.rollout(id)
        *trunk, turn, draw = path
        self.id = id
        self.task = task
        self.turn = turn
        self.leaf = point
        self.tool_calls = 0
        self._core = core
        self._path = path
        self._seed = seed
        self._llm = llm
        self._grown = grown
        # The first turn is the draw itself: base of the fork point + draw. Later ones are draw 0 of their own states.
        self._next_seed = base_seed(seed, task.id, trunk, turn) + draw

    async def ask(self, kit: Kit) -> Choice:
        """Let the model move: send the conversation, append the turn to the tree.

        Args:
            kit: The agent that moves.

        Returns:
            What the model said.

        Raises:
            LLMError: If no usable reply came.
            EndpointError: If the endpoint serves nobody.
        """
        body = self._core.request(self.leaf, kit.head, kit.tail(self._next_seed))
        reply = await self._llm.complete(Request(body=body, key=self._affinity))
        if not reply.choices:
            raise LLMError("the reply holds no choices", attempts=reply.attempts)
        choice = reply.choices[0]
        name = self._core.name
        self.leaf = self._core.turn(
            self.id,
            messages.assistant(choice.content, choice.tool_calls, self.turn),
            name(kit.agent.name),
            name(kit.namespace),
            name(choice.finish),
            reply.prompt,
            reply.cached,
            reply.generated,
            reply.attempts - 1,
            reply.micros,
            choice.reasoning.encode("utf-8", "replace") if choice.reasoning else None,
        )
        self.turn += 1
        self._next_seed = base_seed(self._seed, self.task.id, self._path, self.turn)
        await self._grown(reply)
        if choice.finish == "content_filter":
            raise ContentFiltered("the provider's filter withheld the reply")
        return choice

    async def use(self, kit: Kit, calls: Sequence[ToolCall]) -> None:
        """Run the tool calls of a turn at once and append their observations in call order.

        Args:
            kit: The agent whose tools they are.
            calls: The calls, as :meth:`ask` returned them.
        """
        observations = await kit.toolbox.call_all(list(calls))
        agent = self._core.name(kit.agent.name)
        for index, seen in enumerate(observations):
            # The ids in the history are ours, made from the position: a server's may be missing, repeated or hostile.
            answered = messages.call_id(self.turn - 1, index)
            self.leaf = self._core.observe(self.id, messages.tool(answered, seen.text), agent, seen.micros)
            self.tool_calls += 1
        await self._grown(None)

    def finish(self, answer: str | None, termination: Termination = Termination.ANSWER) -> None:
        """End the rollout here.

        Args:
            answer: Its answer, if it has one.
            termination: Why it ends.

        Raises:
            Finished: Always; the session catches it.
        """
        raise Finished(termination, answer)

    @property
    def _affinity(self) -> int:
        """A number that is the same for every request of this tree."""
        return base_seed(0, self.task.id, (), 0)
