"""``hermes``: calls as JSON inside ``<tool_call>`` tags, as Hermes and Qwen models write them in plain text."""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final, Literal

import msgspec

from trunkline.bounds import shown, text
from trunkline.errors import ConfigError
from trunkline.llm.dialects.calls import call_of, unread
from trunkline.llm.dialects.dialect import MOST_CALLS, Parsed
from trunkline.llm.dialects.thinking import spoken

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trunkline.llm.dialects.dialect import Definition
    from trunkline.llm.protocol import Choice, ToolCall
    from trunkline.llm.request import Sampling
    from trunkline.types import Message

__all__ = ["Hermes"]

_PLACE: Final = "{tools}"
_INSTRUCTIONS: Final = """# Tools

You can call functions that help with the task. Each line inside <tools></tools> describes one:
<tools>
{tools}
</tools>

To call a function, write one JSON object with its name and arguments inside <tool_call></tool_call>:
<tool_call>
{"name": <function name>, "arguments": <object with the arguments>}
</tool_call>
Write one such block for each call. What the functions return comes back inside <tool_response></tool_response>."""

_BEGIN: Final = "<tool_call>"
_TAG: Final = re.compile(r"</?tool_call>")
_BRACKET: Final = re.compile(r"\s*[{\[]")
_CLOSE: Final = "</tool_response>"
_read = json.JSONDecoder().raw_decode


class Hermes(msgspec.Struct, frozen=True, kw_only=True):
    """Tools in the system prompt, calls in the text. A turn without calls is the answer, an empty one included.

    Attributes:
        role: Role of the message that brings a result back: ``user``, or ``tool`` for servers whose chat template puts
            the ``<tool_response>`` tags around it itself.
        instructions: What the system prompt says about tools; ``{tools}`` stands for their definitions, one JSON object
            a line. A model that was trained on other words than these does better with those.

    Raises:
        ConfigError: If a field has a value it cannot have.
    """

    native: ClassVar[bool] = False
    role: Literal["user", "tool"] = "user"
    instructions: str = _INSTRUCTIONS

    def __post_init__(self) -> None:
        if self.role not in {"user", "tool"}:
            raise ConfigError(f"Hermes: role must be user or tool, not {shown(self.role)}")
        if _PLACE not in text("Hermes: instructions", self.instructions):
            raise ConfigError(f"Hermes: instructions must hold {_PLACE}, where the definitions of the tools go")

    def prompt(self, tools: Sequence[Definition]) -> str:
        """Describe the tools, one a line; say nothing where there are none."""
        lines = "\n".join(msgspec.json.encode(tool).decode() for tool in tools)
        return self.instructions.replace(_PLACE, lines) if tools else ""

    def sampling(self, given: Sampling) -> Sampling:
        """Need nothing: the model ends its turn after its calls."""
        return given

    def parse(self, choice: Choice, tools: Sequence[Definition]) -> Parsed:
        """Read the calls outside of thinking; one that cannot be read stays as it is, for the model to hear of."""
        said = spoken(choice.content)
        calls = list(islice(_calls(said), MOST_CALLS + 1))
        return Parsed(calls) if calls else Parsed(answer=said)

    def observe(self, call: ToolCall, text: str, id: str) -> Message:
        """Put a result between its tags, which it cannot close itself."""
        if self.role == "tool":
            return {"role": "tool", "tool_call_id": id, "content": text}
        inside = text.replace(_CLOSE, "<\\/tool_response>")
        return {"role": "user", "content": f"<tool_response>\n{inside}\n{_CLOSE}"}


def _calls(said: str) -> Iterator[ToolCall]:
    """Yield the calls of a text; a block that is not JSON is one call that could not be read.

    A block begins with its tag and ends with the closing tag, the next block or the text, since models forget to close.
    A tag inside the block's JSON is no tag.
    """
    begun = said.find(_BEGIN)
    while begun >= 0:
        start = begun + len(_BEGIN)
        values, read = _values(said, start)
        tag = _TAG.search(said, read)
        end = len(said) if tag is None else tag.start()
        if values and not said[read:end].strip():
            yield from map(call_of, values)
        else:
            yield unread(said[start:end].strip())
        begun = said.find(_BEGIN, end)


def _values(text: str, start: int) -> tuple[list[object], int]:
    """Read JSON objects one after the other, lists of them included, and say where they end."""
    found: list[object] = []
    while (begun := _BRACKET.match(text, start)) is not None:
        try:
            value, start = _read(text, begun.end() - 1)
        except (ValueError, RecursionError):
            break
        found += value if isinstance(value, list) else [value]
    return found, start
