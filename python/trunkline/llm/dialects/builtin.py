"""``search-r1``: ``<search>``, ``<information>`` and ``<answer>``, as Search-R1 and its relatives write them.

The form is that of https://github.com/PeterGriffinJin/Search-R1: the first search or answer of a turn counts, the
turn ends at its closing tag, and a turn with neither is told so and costs a step. There, results stand inside the
model's own turn; over chat completions they are a message of the user.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec

from trunkline.bounds import shown, text
from trunkline.errors import ConfigError
from trunkline.llm.dialects.dialect import Parsed
from trunkline.llm.dialects.thinking import spoken
from trunkline.llm.protocol import ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.llm.dialects.dialect import Definition
    from trunkline.llm.protocol import Choice
    from trunkline.llm.request import Sampling
    from trunkline.types import Message

__all__ = ["SearchR1"]

_INSTRUCTIONS: Final = """Answer the question. Reason between <think> and </think> whenever you get something new.
If you lack knowledge, write <search>what to look for</search>; what is found comes back between <information> and \
</information>. You may search as often as you need to.
Once you know enough, write nothing but the answer between <answer> and </answer>, for example <answer>Rome</answer>."""

_PROBLEM: Final = (
    "This turn neither searched nor answered. To search, put the query between <search> and </search>; to answer, put "
    "the answer between <answer> and </answer>. Try again."
)

_STOPS: Final = ("</search>", "</answer>")
_KEPT: Final = {"include_stop_str_in_output": True, "no_stop_trim": True}
_ACTION: Final = re.compile(r"<(search|answer)>")
_CLOSE: Final = "</information>"


class SearchR1(msgspec.Struct, frozen=True, kw_only=True):
    """Searches and answers between tags; the agent has one tool, whose first argument gets the query.

    Attributes:
        instructions: What the system prompt says; empty to say nothing, where the tasks' own messages do. A model that
            was trained on other words than these does better with those.
        keep_stop: Ask that the closing tag, at which the turn stops, stays in the reply, and so in the history: by
            ``include_stop_str_in_output`` (vLLM) and ``no_stop_trim`` (SGLang). For servers that refuse fields they do
            not know, False; the tag then is missing in the history.

    Raises:
        ConfigError: If a field has a value it cannot have.
    """

    native: ClassVar[bool] = False
    instructions: str = _INSTRUCTIONS
    keep_stop: bool = True

    def __post_init__(self) -> None:
        text("SearchR1: instructions", self.instructions)
        if not isinstance(self.keep_stop, bool):
            raise ConfigError(f"SearchR1: keep_stop must be true or false, not {shown(self.keep_stop)}")

    def prompt(self, tools: Sequence[Definition]) -> str:
        """Describe the tags.

        Raises:
            ConfigError: There is not one tool with an argument for the query.
        """
        if len(tools) != 1 or not _arguments(tools[0]):
            raise ConfigError(
                "the dialect search-r1 needs exactly one tool, whose first argument takes the query; the agent has "
                + (f"{len(tools)} tools" if len(tools) != 1 else f"{_name(tools[0])!r}, which takes no argument")
            )
        return self.instructions

    def sampling(self, given: Sampling) -> Sampling:
        """Stop where a search or an answer ends."""
        stop = (*(given.stop or ()), *(tag for tag in _STOPS if tag not in (given.stop or ())))
        extra = {**_KEPT, **given.extra} if self.keep_stop else given.extra
        return msgspec.structs.replace(given, stop=stop, extra=extra)

    def parse(self, choice: Choice, tools: Sequence[Definition]) -> Parsed:
        """Read the first search or answer outside of thinking."""
        tag, inside = _action(spoken(choice.content))
        if tag == "answer":
            return Parsed(answer=inside)
        return Parsed([_search(inside, tools[0])]) if inside else Parsed(problem=_PROBLEM)

    def observe(self, call: ToolCall, text: str, id: str) -> Message:
        """Put what was found between its tags, which it cannot close itself."""
        inside = text.replace(_CLOSE, "<\\/information>")
        return {"role": "user", "content": f"<information>\n{inside}\n{_CLOSE}"}


def _action(said: str) -> tuple[str, str]:
    """Return the tag of the action in a text and what is inside it; both are empty where there is none.

    The first that is closed counts: a tag that the model only talks about is not. Where none is, the first counts up to
    the end of the text: servers leave a stop string out of the reply.
    """
    ends = {tag: said.rfind(f"</{tag}>") for tag in ("search", "answer")}
    begun = list(_ACTION.finditer(said))
    if not begun:
        return "", ""
    chosen = next((one for one in begun if one.end() <= ends[one[1]]), begun[0])
    end = said.find(f"</{chosen[1]}>", chosen.end())
    return chosen[1], said[chosen.end() : end if end >= 0 else None].strip()


def _search(query: str, tool: Definition) -> ToolCall:
    """Return the call that a query means."""
    key, schema = next(iter(_arguments(tool).items()))
    listed = isinstance(schema, dict) and schema.get("type") == "array"
    return ToolCall("", _name(tool), json.dumps({key: [query] if listed else query}, ensure_ascii=False))


def _arguments(tool: Definition) -> dict[str, object]:
    """Return the schemas of a tool's arguments, first argument first."""
    found: dict[str, object] = tool["function"]["parameters"].get("properties", {})
    return found


def _name(tool: Definition) -> str:
    """Return what a tool is called."""
    return str(tool["function"]["name"])
