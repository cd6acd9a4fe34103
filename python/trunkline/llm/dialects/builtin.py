"""The dialects native, hermes and search-r1.

search-r1 has the form of https://github.com/PeterGriffinJin/Search-R1: the first search or answer of a turn counts, and
a turn with neither costs a step. There, results stand inside the model's turn; here they are a user message.
"""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import msgspec

from trunkline._internal.registry import Registry
from trunkline._internal.validation import check_bool, check_text, check_that, short_repr
from trunkline.errors import ConfigError
from trunkline.llm.dialects.base import MOST_CALLS, Dialect, Parsed, call_of, spoken, unread
from trunkline.llm.types import ToolCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trunkline.llm.dialects.base import Definition
    from trunkline.llm.request import Sampling
    from trunkline.llm.types import ReplyChoice
    from trunkline.types import Message


class Native(msgspec.Struct, frozen=True, kw_only=True):
    """The server's own tool calls. A turn without them is the answer, an empty one included."""

    native: ClassVar[bool] = True

    def prompt(self, tools: Sequence[Definition]) -> str:
        """Say nothing: the server's chat template describes the tools."""
        return ""

    def sampling(self, given: Sampling) -> Sampling:
        """Need nothing."""
        return given

    def parse(self, choice: ReplyChoice, tools: Sequence[Definition]) -> Parsed:
        """Take the calls as the server parsed them."""
        return Parsed(choice.tool_calls, None if choice.tool_calls else choice.content)

    def observe(self, call: ToolCall, text: str, id: str) -> Message:
        """Answer the call by its id."""
        return {"role": "tool", "tool_call_id": id, "content": text}


_PLACE: Final = "{tools}"
_HERMES_INSTRUCTIONS: Final = """# Tools

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
_HERMES_CLOSE: Final = "</tool_response>"
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
    instructions: str = _HERMES_INSTRUCTIONS

    def __post_init__(self) -> None:
        check_that(self.role in {"user", "tool"}, "Hermes: role must be user or tool", self.role)
        if _PLACE not in check_text("Hermes: instructions", self.instructions):
            raise ConfigError(f"Hermes: instructions must hold {_PLACE}, where the definitions of the tools go")

    def prompt(self, tools: Sequence[Definition]) -> str:
        """Describe the tools, one a line; say nothing where there are none."""
        lines = "\n".join(msgspec.json.encode(tool).decode() for tool in tools)
        return self.instructions.replace(_PLACE, lines) if tools else ""

    def sampling(self, given: Sampling) -> Sampling:
        """Need nothing: the model ends its turn after its calls."""
        return given

    def parse(self, choice: ReplyChoice, tools: Sequence[Definition]) -> Parsed:
        """Read the calls outside of thinking; one that cannot be read stays as it is, for the model to hear of."""
        said = spoken(choice.content)
        calls = list(islice(_calls(said), MOST_CALLS + 1))
        return Parsed(calls) if calls else Parsed(answer=said)

    def observe(self, call: ToolCall, text: str, id: str) -> Message:
        """Put a result between its tags, which it cannot close itself."""
        if self.role == "tool":
            return {"role": "tool", "tool_call_id": id, "content": text}
        inside = text.replace(_HERMES_CLOSE, "<\\/tool_response>")
        return {"role": "user", "content": f"<tool_response>\n{inside}\n{_HERMES_CLOSE}"}


def _blocks(said: str) -> Iterator[tuple[str, list[object]]]:
    """Yield the text inside each block and the JSON objects that it holds; none where it is not JSON.

    A block ends with its closing tag, the next block or the text. A tag inside the block's JSON does not count.
    """
    begun = said.find(_BEGIN)
    while begun >= 0:
        start = begun + len(_BEGIN)
        values, read = _values(said, start)
        tag = _TAG.search(said, read)
        end = len(said) if tag is None else tag.start()
        yield said[start:end], [] if said[read:end].strip() else values
        begun = said.find(_BEGIN, end)


def _calls(said: str) -> Iterator[ToolCall]:
    """Yield the calls of a text; a block that is not JSON is one unread call."""
    for inside, values in _blocks(said):
        if values:
            yield from map(call_of, values)
        else:
            yield unread(inside.strip())


def _values(text: str, start: int) -> tuple[list[object], int]:
    """Read consecutive JSON objects, lists included; return them and where they end."""
    found: list[object] = []
    while (begun := _BRACKET.match(text, start)) is not None:
        try:
            value, start = _read(text, begun.end() - 1)
        except (ValueError, RecursionError):
            break
        found += value if isinstance(value, list) else [value]
    return found, start


_SEARCH_R1_INSTRUCTIONS: Final = """\
Answer the question. Reason between <think> and </think> whenever you get something new.
If you lack knowledge, write <search>what to look for</search>; what is found comes back between <information> and \
</information>. You may search as often as you need to.
Once you know enough, write nothing but the answer between <answer> and </answer>, for example <answer>Rome</answer>."""

SEARCH_R1_PROBLEM: Final = (
    "This turn neither searched nor answered. To search, put the query between <search> and </search>; to answer, put "
    "the answer between <answer> and </answer>. Try again."
)

_STOPS: Final = ("</search>", "</answer>")
_KEPT: Final = {"include_stop_str_in_output": True, "no_stop_trim": True}
_ACTION: Final = re.compile(r"<(search|answer)>")
_SEARCH_R1_CLOSE: Final = "</information>"


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
    instructions: str = _SEARCH_R1_INSTRUCTIONS
    keep_stop: bool = True

    def __post_init__(self) -> None:
        check_text("SearchR1: instructions", self.instructions)
        check_bool("SearchR1: keep_stop", self.keep_stop)

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

    def parse(self, choice: ReplyChoice, tools: Sequence[Definition]) -> Parsed:
        """Read the first search or answer outside of thinking."""
        tag, inside = _action(spoken(choice.content))
        if tag == "answer":
            return Parsed(answer=inside)
        return Parsed([_search(inside, tools[0])]) if inside else Parsed(problem=SEARCH_R1_PROBLEM)

    def observe(self, call: ToolCall, text: str, id: str) -> Message:
        """Put what was found between its tags, which it cannot close itself."""
        inside = text.replace(_SEARCH_R1_CLOSE, "<\\/information>")
        return {"role": "user", "content": f"<information>\n{inside}\n{_SEARCH_R1_CLOSE}"}


def _action(said: str) -> tuple[str, str]:
    """The tag of the action in a text and its content; both empty without an action.

    The first closed tag counts, else the first to the end of the text: servers leave a stop string out of the reply.
    """
    ends = {tag: said.rfind(f"</{tag}>") for tag in ("search", "answer")}
    begun = list(_ACTION.finditer(said))
    if not begun:
        return "", ""
    chosen = next((one for one in begun if one.end() <= ends[one[1]]), begun[0])
    end = said.find(f"</{chosen[1]}>", chosen.end())
    return chosen[1], said[chosen.end() : end if end >= 0 else None].strip()


def _search(query: str, tool: Definition) -> ToolCall:
    key, schema = next(iter(_arguments(tool).items()))
    listed = isinstance(schema, dict) and schema.get("type") == "array"
    return ToolCall("", _name(tool), json.dumps({key: [query] if listed else query}, ensure_ascii=False))


def calls_of(text: str) -> str:
    """Return the tool calls of a turn in hermes or search-r1 with their tags, without all else that it says."""
    said = spoken(text)
    blocks = [f"{_BEGIN}{inside}</tool_call>" for inside, _ in islice(_blocks(said), MOST_CALLS)]
    tag, query = ("", "") if blocks else _action(said)
    return f"<search>{query}</search>" if tag == "search" and query else "\n".join(blocks)


def _arguments(tool: Definition) -> dict[str, object]:
    """The schemas of a tool's arguments, first argument first."""
    found: dict[str, object] = tool["function"]["parameters"].get("properties", {})
    return found


def _name(tool: Definition) -> str:
    return str(tool["function"]["name"])


DIALECTS: Final[Registry[Callable[[], Dialect]]] = Registry(
    "dialect", {"native": Native, "hermes": Hermes, "search-r1": SearchR1}
)
"""The dialects that come with the library, by the name an agent gives."""

_NAMES: Final = {kind: name for name, kind in DIALECTS.items()}


def find(given: object) -> Dialect:
    """The dialect of a name, or a user's own object, checked."""
    if isinstance(given, str) and given in DIALECTS:
        return DIALECTS[given]()
    if isinstance(given, type):
        raise ConfigError(f"Agent: dialect is the class {given.__name__}: give an instance of it, {given.__name__}()")
    if not isinstance(given, Dialect):
        raise ConfigError(
            f"Agent: dialect must be {DIALECTS}, or an object with native, prompt(), sampling(), parse() "
            f"and observe(), not {short_repr(given)}"
        )
    return given


def label(dialect: Dialect) -> str:
    """The name of a dialect, on one line."""
    return _NAMES.get(type(dialect), type(dialect).__name__)


def describe(dialect: Dialect) -> dict[str, Any]:
    """A dialect as data for the run file: its name, and its options where they are data."""
    try:
        options = msgspec.to_builtins(dialect)
    except (TypeError, msgspec.MsgspecError):
        options = None
    return {"kind": label(dialect), "options": options}
