"""``native``: tools as chat completions have them, definitions and calls in fields of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from trunkline.llm.dialects.dialect import Parsed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.llm.dialects.dialect import Definition
    from trunkline.llm.protocol import Choice, ToolCall
    from trunkline.llm.request import Sampling
    from trunkline.types import Message

__all__ = ["Native"]


class Native(msgspec.Struct, frozen=True, kw_only=True):
    """The server's own tool calls. A turn without them is the answer, an empty one included."""

    native: ClassVar[bool] = True

    def prompt(self, tools: Sequence[Definition]) -> str:
        """Say nothing: the server's chat template describes the tools."""
        return ""

    def sampling(self, given: Sampling) -> Sampling:
        """Need nothing."""
        return given

    def parse(self, choice: Choice, tools: Sequence[Definition]) -> Parsed:
        """Take the calls as the server parsed them."""
        return Parsed(choice.tool_calls, None if choice.tool_calls else choice.content)

    def observe(self, call: ToolCall, text: str, id: str) -> Message:
        """Answer the call by its id."""
        return {"role": "tool", "tool_call_id": id, "content": text}
