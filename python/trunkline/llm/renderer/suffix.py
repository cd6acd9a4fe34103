"""What a template writes after a model's turn, found by rendering a stand-in for the turn.

A short conversation ends with an assistant message whose last word is a sentinel, and is followed by the new messages.
What comes after the sentinel is the closing of the turn and everything new, whatever the turn really said. It is found
without knowing which ids spell the sentinel: two renderings that differ in the sentinel's last character alone have
exactly that at their end in common. TRL and verl build what follows a turn from such stand-ins too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.types import Message

__all__ = ["Render", "Suffix"]

_SENTINELS: Final = ("trunk 1", "trunk 2")


class Render(Protocol):
    """Writes a conversation."""

    async def __call__(self, messages: Sequence[Message], *, opened: bool) -> list[int]:
        """Write ``messages``, with what opens the model's turn if ``opened``.

        Raises:
            ConfigError: The template does not take them.
        """
        ...


class Suffix:
    """Finds the ids that follow a model's turn.

    Args:
        render: Writes a conversation.
    """

    def __init__(self, render: Render) -> None:
        self._render = render
        # By number of tool calls in the stand-in: its ids, and what of them comes after the sentinel.
        self._bases: dict[int, tuple[list[int], list[int]]] = {}

    async def extend(self, previous: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """Find what follows a turn; see :meth:`.protocol.Renderer.extend`.

        Raises:
            ConfigError: The template does not take these messages after an assistant's.
        """
        _, closing = await self._base(0, messages)
        ids = closing + await self._new(closing, messages)
        return ids[_overlap(previous, closing) :]

    async def _new(self, closing: list[int], messages: Sequence[Message]) -> list[int]:
        """What the new messages are, and what opens the next turn."""
        try:
            return await self._after(0, messages)
        except ConfigError:
            calls = sum(message.get("role") == "tool" for message in messages)
            if not calls:
                raise
        # Some templates take a tool's answer only after its call; the call must be closed as any turn is.
        _, tail = await self._base(calls, messages)
        if tail[len(tail) - len(closing) :] != closing:
            raise ConfigError(
                "the chat template closes a turn with tool calls in a way of its own; use drift='realign'"
            )
        return await self._after(calls, messages)

    async def _after(self, calls: int, messages: Sequence[Message]) -> list[int]:
        """What comes after the stand-in and its closing."""
        base, tail = await self._base(calls, messages)
        whole = await self._render([*_stand_in(0, calls, messages), *messages], opened=True)
        if whole[: len(base)] == base:
            return whole[len(base) :]
        # A template may write an assistant's last message in another way than those before.
        other = await self._render([*_stand_in(1, calls, messages), *messages], opened=True)
        shared = _shared_end(whole, other)
        if shared[: len(tail)] != tail:
            raise ConfigError(
                "the chat template writes an assistant's message anew once others follow; use drift='realign'"
            )
        return shared[len(tail) :]

    async def _base(self, calls: int, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
        known = self._bases.get(calls)
        if known is None:
            one, other = [await self._render(_stand_in(which, calls, messages), opened=False) for which in (0, 1)]
            known = self._bases[calls] = one, _shared_end(one, other)
        return known


def _stand_in(which: int, calls: int, messages: Sequence[Message]) -> list[Message]:
    """A question, and an assistant's message that ends with a sentinel."""
    question: Message = {"role": "user", "content": "trunk"}
    sentinel = _SENTINELS[which]
    if not calls:
        return [question, {"role": "assistant", "content": sentinel}]
    answers = [message for message in messages if message.get("role") == "tool"]
    made = [
        {
            "id": answer.get("tool_call_id", ""),
            "type": "function",
            "function": {"name": "trunk", "arguments": f'{{"trunk":"{sentinel}"}}'},
        }
        for answer in answers
    ]
    return [question, {"role": "assistant", "content": "", "tool_calls": made}]


def _shared_end(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """The ids that two lists have in common at their end."""
    size = 0
    while size < min(len(one), len(other)) and one[-1 - size] == other[-1 - size]:
        size += 1
    return list(one[len(one) - size :])


def _overlap(previous: Sequence[int], closing: Sequence[int]) -> int:
    """How much of a closing a turn has already, at its end."""
    sizes = range(min(len(previous), len(closing)), 0, -1)
    return next((size for size in sizes if list(previous[len(previous) - size :]) == list(closing[:size])), 0)
