"""What a renderer is: something that knows how a model's template and tokenizer write a conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.types import JSON, Message

__all__ = ["Renderer"]


@runtime_checkable
class Renderer(Protocol):
    """Writes conversations as token ids. The same conversation is always the same ids."""

    async def render(self, messages: Sequence[Message], tools: Sequence[JSON] = ()) -> list[int]:
        """Write a whole conversation, with what opens the model's turn.

        Args:
            messages: What was said, oldest first, in the OpenAI form.
            tools: Tool definitions in the OpenAI form.

        Raises:
            ConfigError: The template does not take these messages or tools.
            LLMError: A server that renders gave no answer.
        """
        ...

    async def extend(self, previous: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """Write what follows a model's turn: what closes it, further messages, and what opens the next turn.

        Args:
            previous: The last ids of the model's turn as they were sampled; what of the closing they have is left out.
            messages: What was said since, at least one message.

        Returns:
            The ids to put behind ``previous``.

        Raises:
            ConfigError: The template does not take these messages.
            LLMError: A server that renders gave no answer.
        """
        ...

    async def decode(self, ids: Sequence[int]) -> str:
        """Say what token ids spell, special tokens included; what is no character is U+FFFD.

        Raises:
            ConfigError: An id is none of the tokenizer's.
            LLMError: A server that decodes gave no answer.
        """
        ...
