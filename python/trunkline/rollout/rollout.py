"""One try while it grows: what a program may do with it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn, Protocol
from zlib import crc32

import msgspec

from trunkline.bounds import shown
from trunkline.errors import ContentFiltered, LLMError, TrunklineError
from trunkline.llm import messages
from trunkline.llm.protocol import LLM, Choice, Reply, Request, ToolCall
from trunkline.llm.text import scrub
from trunkline.printable import said
from trunkline.rollout.seed import base_seed
from trunkline.store.redact import redact as hide_secrets
from trunkline.types import Task, Termination

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trunkline._core import Tree as Core
    from trunkline.rollout.agent import Kit

__all__ = ["Finished", "Outlet", "Rollout"]


_MOST_TOKENS = 2**31
"""A usage figure from here on is a broken server's, and counts as not reported."""

_MOST_CALLS = 1000
"""Tool calls a turn may make; no model means more."""

_BROKEN_OFF = frozenset({"error", "abort", "aborted"})
"""Finish reasons of a server that gave up in the middle; what there is of the reply is no answer."""


class Outlet(Protocol):
    """Where a rollout says that it grew, and where it waits while too much is in flight."""

    async def reserve(self) -> None:
        """Wait until one more model turn may be in flight, and count it."""
        ...

    def release(self) -> None:
        """Give back a reservation whose turn did not happen."""
        ...

    def called(self, reply: Reply) -> None:
        """Note what a request cost, before the turns that came of it."""
        ...

    def grew(self, size: int = 0, turns: int = 0) -> None:
        """Note that the tree grew by so many bytes and model turns; each of these was reserved."""
        ...


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
        outlet: Where it says that it grew.
        name: Interns a string in the tree.
    """

    def __init__(
        self, core: Core, id: int, task: Task, seed: int, llm: LLM, outlet: Outlet, name: Callable[[str], int]
    ) -> None:
        facts = core.rollout(id)
        *trunk, turn, draw = facts.path
        self.id = id
        self.task = task
        self.turn = turn
        self.leaf = facts.point
        self.tool_calls = 0
        self._core = core
        self._path = facts.path
        self._seed = seed
        self._llm = llm
        self._outlet = outlet
        self._name = name
        # The same for every request of this tree, so that they meet the endpoint that holds its prefix.
        self._key = crc32(task.id.encode("utf-8", "surrogatepass"))
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
        await self._outlet.reserve()
        try:
            reply = await self._complete(Request(body=body, key=self._key))
            choice, size = reply.choices[0], self._append(kit, reply)
        except BaseException:
            self._outlet.release()
            raise
        self.turn += 1
        self._next_seed = base_seed(self._seed, self.task.id, self._path, self.turn)
        self._outlet.called(reply)
        self._outlet.grew(size, 1)
        if choice.finish == "content_filter":
            raise ContentFiltered("the provider's filter withheld the reply")
        if choice.finish in _BROKEN_OFF:
            raise LLMError(f"the server broke the reply off: finish reason {choice.finish!r}", retryable=True)
        return choice

    def _append(self, kit: Kit, reply: Reply) -> int:
        """Append a turn to the tree; return how many bytes it has."""
        choice, name = reply.choices[0], self._name
        message = messages.assistant(choice.content, choice.tool_calls, self.turn)
        if len(message) > messages.LONGEST:
            raise LLMError(f"the reply has {len(message)} bytes; at most {messages.LONGEST} are kept")
        self.leaf = self._core.turn(
            self.id,
            message,
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
        return len(message)

    async def _complete(self, request: Request) -> Reply:
        """Ask the LLM. Whatever somebody's own LLM raises ends this rollout, and no other."""
        try:
            reply = await self._llm.complete(request)
        except TrunklineError:
            raise
        except asyncio.CancelledError:
            if (own := asyncio.current_task()) is not None and own.cancelling():
                raise
            raise LLMError(f"{type(self._llm).__name__} was cancelled from within") from None
        except Exception as error:
            message = hide_secrets(said(error))
            raise LLMError(f"{type(self._llm).__name__} raised {type(error).__name__}: {message}") from error
        return _checked(reply, self._llm)

    async def use(self, kit: Kit, calls: Sequence[ToolCall]) -> None:
        """Run the tool calls of a turn at once and append their observations in call order.

        Args:
            kit: The agent whose tools they are.
            calls: The calls, as :meth:`ask` returned them.
        """
        observations = await kit.toolbox.call_all(list(calls))
        agent = self._name(kit.agent.name)
        for index, seen in enumerate(observations):
            # The ids in the history are ours, made from the position: a server's may be missing, repeated or hostile.
            message = messages.tool(messages.call_id(self.turn - 1, index), seen.text)
            self.leaf = self._core.observe(self.id, message, agent, seen.micros, not seen.ok)
            self.tool_calls += 1
            self._outlet.grew(len(message))

    def finish(self, answer: str | None, termination: Termination = Termination.ANSWER) -> NoReturn:
        """End the rollout here.

        Args:
            answer: Its answer, if it has one.
            termination: Why it ends.

        Raises:
            Finished: Always; the session catches it.
        """
        raise Finished(termination, answer)


def _checked(reply: object, llm: LLM) -> Reply:
    """Return a reply that the tree can take: somebody's own LLM may return anything.

    Raises:
        LLMError: If it is no reply, or asks for more than a turn may hold.
    """
    name = type(llm).__name__
    try:
        found = msgspec.convert(msgspec.to_builtins(reply), Reply) if isinstance(reply, Reply) else None
    except (msgspec.MsgspecError, TypeError) as error:
        raise LLMError(f"{name} returned a reply that is none: {said(error)}") from None
    if found is None or not found.choices:
        raise LLMError(f"{name} returned {shown(reply)}, not a Reply with a choice")
    choice = found.choices[0]
    if len(choice.tool_calls) > _MOST_CALLS:
        raise LLMError(f"the reply asks for {len(choice.tool_calls)} tool calls; a turn may make {_MOST_CALLS}")
    choice.content, choice.finish = scrub(choice.content), scrub(choice.finish)
    found.attempts, found.micros = max(1, found.attempts), max(0, found.micros)
    for field in ("prompt", "cached", "generated"):
        if not -1 <= getattr(found, field) < _MOST_TOKENS:
            setattr(found, field, -1)
    return found
