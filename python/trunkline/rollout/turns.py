"""From the answer to one request to the next turns of the rollouts that asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trunkline._core import take
from trunkline.bounds import shown
from trunkline.errors import LLMError, ReplyError, RolloutError
from trunkline.llm import messages
from trunkline.llm.dialects.dialect import MOST_CALLS
from trunkline.llm.protocol import Choice, Reply, ToolCall
from trunkline.llm.text import scrub
from trunkline.printable import said

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trunkline._core import Tree as Core
    from trunkline.rollout.agent import Kit

__all__ = ["Turn", "Turns"]

_MOST_TOKENS = 2**31
"""A usage figure from here on is a broken server's, and counts as not reported."""


class Turn(NamedTuple):
    """A model turn on the tree.

    Attributes:
        choice: What the model said.
        node: Its node.
        size: Bytes of its message.
    """

    choice: Choice
    node: int
    size: int


class Turns:
    """Makes turns of the draws of one state: draw i becomes the next turn of rollout i.

    An LLM that receives bytes calls it with them (it is the request's :class:`~trunkline.llm.protocol.Take`), and the
    reply is read and put on the tree in one step. What another LLM made of its answer comes by :meth:`adopt`.

    Args:
        core: The tree.
        kit: Who speaks.
        rollouts: Ids of the rollouts, in the order of their draws.
        turn: Model turns on the path so far.
        name: Interns a string in the tree.
        called: Told of each reply in the step in which its turns go onto the tree, so that none can be sent without it.
            Who answered, and how long it waited, may be filled in by whoever received it, in the same step.
    """

    def __init__(
        self,
        core: Core,
        kit: Kit,
        rollouts: Sequence[int],
        turn: int,
        name: Callable[[str], int],
        called: Callable[[Reply], None],
    ) -> None:
        self.found: list[Turn | RolloutError | None] = [None] * len(rollouts)
        self._core = core
        self._kit = kit
        self._rollouts = rollouts
        self._turn = turn
        self._name = name
        self._called = called

    def __call__(self, data: bytes, first: int, attempts: int, micros: int) -> Reply:
        """Read an answer's bytes; see :class:`~trunkline.llm.protocol.Take`."""
        taken, prompt, cached, generated, served = self._take(data, first, attempts, micros)
        if not taken:
            raise ReplyError("its choices are empty")
        choices = []
        for place, (content, reasoning, calls, finish, node, size, fault) in enumerate(taken, first):
            choice = self._said(Choice(content, reasoning, [ToolCall(*call) for call in calls], finish))
            choices.append(choice)
            self.found[place] = LLMError(fault) if fault else Turn(choice, node, size)
        reply = Reply(choices, prompt, cached, generated, attempts, micros, served)
        self._called(reply)
        return reply

    def _take(self, data: bytes, first: int, attempts: int, micros: int) -> Any:
        """Read the bytes and put their choices on the tree."""
        kit, name = self._kit, self._name
        return take(
            self._core,
            self._rollouts[first:],
            kit.reading,
            data,
            name(kit.agent.name),
            name(kit.namespace),
            self._turn,
            max(0, attempts - 1),
            micros,
        )

    def _said(self, choice: Choice) -> Choice:
        """A choice for the program, as the tree's reader has it."""
        return choice

    def adopt(self, reply: object, first: int, llm: str) -> Reply:
        """Put a reply on the tree that an LLM made itself; one that came by bytes is there already.

        Args:
            reply: What it returned, which may be anything.
            first: Which draw its first choice is.
            llm: What to call it.

        Raises:
            LLMError: It is no reply.
        """
        if self.found[first] is not None and isinstance(reply, Reply):
            return reply
        checked = _checked(reply, llm)
        for place, choice in enumerate(checked.choices[: len(self._rollouts) - first], first):
            try:
                self.found[place] = self._append(place, choice, checked, place - first)
            except LLMError as error:
                self.found[place] = error
        checked.endpoint = checked.endpoint or llm
        self._called(checked)
        return checked

    def _append(self, place: int, choice: Choice, reply: Reply, sibling: int) -> Turn:
        """Append one turn; a sibling's prompt was computed with the first one's."""
        if len(choice.tool_calls) > MOST_CALLS:
            raise LLMError(f"the reply asks for {len(choice.tool_calls)} tool calls; a turn may make {MOST_CALLS}")
        message = messages.assistant(choice.content, choice.tool_calls, self._turn)
        if len(message) > messages.LONGEST:
            raise LLMError(f"the reply has {len(message)} bytes; at most {messages.LONGEST} are kept")
        kit, name = self._kit, self._name
        node = self._core.turn(
            self._rollouts[place],
            message,
            name(kit.agent.name),
            name(kit.namespace),
            name(choice.finish),
            reply.prompt,
            reply.prompt if sibling else reply.cached,
            _share(reply.generated, sibling, len(reply.choices)),
            0 if sibling else max(0, reply.attempts - 1),
            reply.micros,
            choice.reasoning.encode("utf-8", "replace") if choice.reasoning else None,
        )
        return Turn(choice, node, len(message))


def _share(total: int, place: int, parts: int) -> int:
    """Share a whole number out evenly; -1, not known, stays."""
    return total if total < 0 else total * (place + 1) // parts - total * place // parts


def _checked(reply: object, llm: str) -> Reply:
    """Return a reply that the tree can take: somebody's own LLM may return anything.

    Raises:
        LLMError: If it is no reply.
    """
    try:
        found = msgspec.convert(msgspec.to_builtins(reply), Reply) if isinstance(reply, Reply) else None
    except (msgspec.MsgspecError, TypeError) as error:
        raise LLMError(f"{llm} returned a reply that is none: {said(error)}") from None
    if found is None or not found.choices:
        raise LLMError(f"{llm} returned {shown(reply)}, not a Reply with a choice")
    for choice in found.choices:
        choice.content, choice.finish = scrub(choice.content), scrub(choice.finish)
    found.attempts, found.micros = max(0, found.attempts), max(0, found.micros)
    for field in ("prompt", "cached", "generated"):
        if not -1 <= getattr(found, field) < _MOST_TOKENS:
            setattr(found, field, -1)
    return found
