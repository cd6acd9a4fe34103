"""What a batch engine is given: one prompt for each completion, or for several."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

if TYPE_CHECKING:
    from trunkline.llm.protocol import Request
    from trunkline.types import JSON, Message

__all__ = ["Prompt", "prompts"]

_APART: Final = frozenset({"messages", "model", "n", "prompt", "seed", "tools"})


class Prompt(msgspec.Struct, frozen=True, dict=True):
    """What a batch engine is to complete. It is read from the request's body when a part of it is first asked for.

    Attributes:
        body: The whole request as a server would get it: JSON in UTF-8. Where ``n`` or ``seed`` differ, those of this
            object count.
        key: Prompts of one tree share it.
        n: Completions wanted; above 1 only for an engine that supports it.
        seed: Seed of the first completion, that of completion i being ``seed + i``; None where draws have none.
    """

    body: bytes
    key: int = 0
    n: int = 1
    seed: int | None = None

    @property
    def model(self) -> str:
        """The model's name, as the agent has it."""
        return str(self._fields.get("model", ""))

    @property
    def messages(self) -> list[Message]:
        """The conversation in the OpenAI form."""
        return cast("list[Message]", self._fields.get("messages", []))

    @property
    def tools(self) -> list[dict[str, JSON]]:
        """Definitions of the tools, in the OpenAI form."""
        return cast("list[dict[str, JSON]]", self._fields.get("tools", []))

    @property
    def sampling(self) -> dict[str, JSON]:
        """Everything else in the request: temperature, max_tokens and whatever the agent's sampling holds."""
        return {name: value for name, value in self._fields.items() if name not in _APART}

    @property
    def token_ids(self) -> list[int] | None:
        """The prompt as token ids, where the request has them instead of messages."""
        given = self._fields.get("prompt")
        return given if isinstance(given, list) else None

    @cached_property
    def _fields(self) -> dict[str, Any]:
        return msgspec.json.decode(self.body, type=dict[str, Any])


class _Seeded(msgspec.Struct):
    seed: int | None = None


def prompts(request: Request, largest: int) -> list[Prompt]:
    """Turn a request into prompts of at most ``largest`` completions each, in order of draws.

    Draw i has seed ``seed + i``, whatever prompt it is part of.
    """
    seed = request.seed
    if seed is None:
        seed = msgspec.json.decode(request.body, type=_Seeded).seed
    return [
        Prompt(request.body, request.key, min(largest, request.n - first), None if seed is None else (seed + first))
        for first in range(0, request.n, largest)
    ]
