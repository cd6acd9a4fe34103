"""An agent as data, and compiled: its requests encoded once, its dialect bound to its tools."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec

from trunkline._core import ReplyOptions
from trunkline._internal.old_names import warn_renamed
from trunkline._internal.registry import load_named
from trunkline._internal.text import format_error, scrub
from trunkline._internal.text import redact as hide_secrets
from trunkline._internal.validation import check_bool, check_int, check_optional, check_text, check_that, short_repr
from trunkline.errors import ConfigError, LLMError, TrunklineError
from trunkline.llm import messages, request
from trunkline.llm.dialects import builtin as dialects
from trunkline.llm.dialects.base import MOST_CALLS, Parsed
from trunkline.llm.dialects.builtin import Native
from trunkline.llm.pricing import MAIN, asking, check_name
from trunkline.llm.request import Sampling
from trunkline.llm.types import ToolCall
from trunkline.tools.mcp.config import MCP, merged
from trunkline.tools.review import check_before_tool
from trunkline.tools.tool import Tool, check_environment, environment_for, load_tools
from trunkline.tools.toolbox import Toolbox
from trunkline.tree.records import number_of, versioned

if TYPE_CHECKING:
    from trunkline.llm.types import ReplyChoice
    from trunkline.types import Message

T = TypeVar("T")

_TOOL_FIELDS: Final = {"role", "tool_call_id", "content"}


class BoundDialect:
    """A dialect with the tools and the sampling of one agent."""

    def __init__(self, dialect: object, tools: Sequence[Tool], sampling: Sampling) -> None:
        self._dialect = dialects.find(dialect)
        self._name = dialects.label(self._dialect)
        self._tools = [tool.definition for tool in tools]
        self.native = self._dialect.native
        # Results are messages that the core can make itself.
        self.plain_results = type(self._dialect) is Native
        check_bool(f"dialect {self._name}: native", self.native)
        self.prompt = check_text(f"dialect {self._name}: prompt", self._ask(ConfigError, "prompt", str, self._tools))
        self.sampling = self._ask(ConfigError, "sampling", Sampling, sampling)
        digest = hashlib.blake2b(self.prompt.encode(), digest_size=8).hexdigest()
        self.mark = "" if isinstance(self._dialect, Native) else f" dialect:{self._name}:{digest}"
        # The encoded system message of every tree, by the agent's own part of it.
        self._systems: dict[str, list[bytes]] = {}

    def opening(self, system: str, conversation: Sequence[Message]) -> list[bytes]:
        """Encode a tree's first messages; the dialect's prompt ends the system prompt, the agent's or the task's."""
        if self.prompt and not system:
            first, *rest = conversation
            if first.get("role") == "system" and isinstance(first.get("content"), str):
                merged = {**first, "content": _joined(str(first["content"]), self.prompt)}
                return [messages.encode(message) for message in (merged, *rest)]
        if system not in self._systems:
            full = _joined(system, self.prompt)
            self._systems[system] = [messages.system(full)] if full else []
        return [*self._systems[system], *map(messages.encode, conversation)]

    def read(self, choice: ReplyChoice) -> Parsed:
        """Read a reply."""
        if self.plain_results and len(choice.tool_calls) <= MOST_CALLS:  # as Native.parse does
            return Parsed(choice.tool_calls, None if choice.tool_calls else choice.content)
        if choice.tool_calls and not self.native:
            raise LLMError(
                f"the server parsed tool calls itself, although the dialect {self._name} sends no tools: switch its "
                "tool parser off, or use dialect='native'"
            )
        ours = self.plain_results
        found = self._dialect.parse(choice, self._tools) if ours else self._parsed(choice)
        if found.calls and len(found.calls) > MOST_CALLS:
            return Parsed(problem=f"Error: this turn makes more than {MOST_CALLS} tool calls; none was run.")
        # A dialect that reads JSON can make answers that no text can hold.
        return found if ours or found.answer is None else Parsed(found.calls, scrub(found.answer), found.problem)

    def _parsed(self, choice: ReplyChoice) -> Parsed:
        """Read a reply by a dialect that may be user code."""
        found = self._ask(LLMError, "parse", Parsed, choice, self._tools)
        if not _typed(found):
            raise LLMError(f"dialect {self._name}: parse returned wrong types: {short_repr(found)}")
        if not found.calls and found.answer is None and not found.problem:
            raise LLMError(f"dialect {self._name}: parse returned neither calls nor an answer nor a problem")
        return found

    def observation(self, call: ToolCall, result: str, id: str) -> bytes:
        """Encode the message that brings a call's result back."""
        message: Message = self._ask(LLMError, "observe", dict, call, result, id)
        if message.keys() == _TOOL_FIELDS and message["role"] == "tool":
            answers, content = message["tool_call_id"], message["content"]
            if isinstance(answers, str) and isinstance(content, str):
                return messages.tool(answers, content)
        try:
            return messages.encode(message)
        except ConfigError as error:
            raise LLMError(f"dialect {self._name}: observe returned no message: {error}") from None

    def _ask(self, error: type[TrunklineError], method: str, kind: type[T], *given: Any) -> T:
        """Call a method of the dialect, which may be user code."""
        try:
            found = getattr(self._dialect, method)(*given)
        except error:
            raise
        except Exception as problem:
            what = hide_secrets(format_error(problem))
            raise error(f"dialect {self._name}: {method} raised {type(problem).__name__}: {what}") from problem
        if not isinstance(found, kind):
            raise error(f"dialect {self._name}: {method} must return a {kind.__name__}, not {short_repr(found)}")
        return found


def _typed(found: Parsed) -> bool:
    """Whether the fields of a user's own struct have the types that they declare."""
    calls: object = found.calls
    return (
        isinstance(calls, list)
        and all(isinstance(call, ToolCall) for call in calls)
        and all(isinstance(text, str) for call in calls for text in (call.name, call.arguments))
        and isinstance(found.answer, str | None)
        and isinstance(found.problem, str)
    )


def _joined(*parts: str) -> str:
    """Join the parts of a system prompt that say anything."""
    return "\n\n".join(part for part in parts if part)


class _OldNames(msgspec.StructMeta):
    """Takes ``void``, a name of the time before 0.1.0, until 0.2."""

    def __call__(self, *values: Any, **options: Any) -> Any:
        if "void" in options:
            warn_renamed("Agent(void=) is called on_void_turn= now")
            if "on_void_turn" in options:
                raise TypeError("Agent: void is the old name of on_void_turn: give on_void_turn alone")
            options["on_void_turn"] = options.pop("void")
        return super().__call__(*values, **options)


class Agent(msgspec.Struct, frozen=True, kw_only=True, metaclass=_OldNames):
    """A model with a system prompt, tools, sampling and limits.

    Attributes:
        model: The model's name, as the endpoint knows it.
        tools: What a turn may call: functions with ``@tool``, tools of ``trunkline.tools``, lists of them, or texts as
            on the command line: ``"python"``, ``"module"``, ``"module:name"`` or ``"file.py:name"``; and
            ``trunkline.MCP``, for the tools of MCP servers.
        system: System prompt; none is sent when empty.
        sampling: Sampling parameters of every turn.
        max_turns: Model turns a rollout may take before it ends as ``max_turns``.
        max_tool_calls: Tool calls on the path of a rollout, those before a fork included, before it ends as
            ``tool_limit``; unlimited when None.
        name: What its turns are called in trees and profiles.
        llm: The name of the LLM that it asks, where a run has several; that without a name when empty.
        dialect: How tools are spoken about: ``native`` (tool calls of chat completions), ``hermes`` (``<tool_call>`` in
            the text), ``search-r1`` (``<search>`` in the text), or an object with the members of
            ``trunkline.llms.Dialect``.
        malformed: How a tool call whose JSON is broken is treated: ``return`` tells the model what is wrong,
            ``repair`` repairs it where possible (needs the repair extra), and the observation says so.
        on_void_turn: What happens after a turn in which the dialect reads neither a call nor an answer: ``tell`` tells
            the model, which continues; ``stop`` ends the rollout as ``filtered`` (see ``trunkline.filters.VoidTurns``).
        environment: What makes the environment that tools of a rollout work on: a class derived from
            ``Environment``, or a function without arguments that returns one; or its
            name, ``"module:Class"``. In a program all agents share that of the run's agent. None: the sandbox that
            ``tools.python``, ``tools.shell`` and ``tools.files`` bring along, if one of them is among the tools.
        before_tool: A function, ``async`` or not, that is given each call of the model before it runs, as a
            ``trunkline.tools.ToolRequest``, or its name, ``"module:function"``. It returns the call, the call with
            other arguments, or a text that the model reads in place of a result. The calls of a turn come in call
            order, before any of them runs; 60 seconds each. An exception in it ends the rollout as ``tool_error``.

    Raises:
        ConfigError: If a field has a value it cannot have.
    """

    model: str
    tools: Sequence[Any] = ()
    system: str = ""
    sampling: Sampling = Sampling()
    max_turns: int = 30
    max_tool_calls: int | None = None
    name: str = "agent"
    llm: str = MAIN
    dialect: Any = "native"
    malformed: Literal["return", "repair"] = "return"
    on_void_turn: Literal["tell", "stop"] = msgspec.field(default="tell", name="void")
    environment: Any = None
    before_tool: Any = None

    def __post_init__(self) -> None:
        request.head(self.model)
        check_text("Agent: system", self.system)
        check_text("Agent: name", self.name)
        check_name("Agent: llm", self.llm)
        check_that(isinstance(self.sampling, Sampling), "Agent: sampling must be a Sampling", self.sampling)
        check_int("Agent: max_turns", self.max_turns, 1)
        check_optional(check_int, "Agent: max_tool_calls", self.max_tool_calls, 0)
        tools = [self.tools] if isinstance(self.tools, str) else self.tools
        check_that(isinstance(tools, list | tuple), "Agent: tools must be a list of tools", self.tools)
        if any(isinstance(tool, str | list | tuple) for tool in tools):
            msgspec.structs.force_setattr(self, "tools", load_tools(tools, "Agent: tools"))
        if isinstance(self.environment, str):
            msgspec.structs.force_setattr(self, "environment", load_named(self.environment, "Agent: environment"))
        if servers := [tool for tool in self.tools if isinstance(tool, MCP)]:
            self._take_servers(servers)
        msgspec.structs.force_setattr(self, "environment", environment_for(self.environment, self.tools))
        if isinstance(self.before_tool, str):
            msgspec.structs.force_setattr(self, "before_tool", load_named(self.before_tool, "Agent: before_tool"))
        if self.before_tool is not None:
            check_before_tool(self.before_tool)
            if not self.tools:
                raise ConfigError(
                    "Agent: before_tool is asked before a tool is called, and the agent has none: give tools"
                )
        check_that(self.malformed in {"return", "repair"}, "Agent: malformed must be return or repair", self.malformed)
        check_that(self.on_void_turn in {"tell", "stop"}, "Agent: on_void_turn must be tell or stop", self.on_void_turn)
        Toolbox(self.tools, repair=self.malformed == "repair")
        BoundDialect(self.dialect, self.tools, self.sampling)
        check_environment(self.environment, self.tools)

    def _take_servers(self, servers: list[MCP]) -> None:
        """Replace MCP servers among the tools by theirs, and let them be the environment."""
        if self.environment is not None:
            raise ConfigError(
                "Agent: tl.MCP among the tools is the environment of each rollout, which has one: leave "
                f"environment={short_repr(self.environment)} out"
            )
        all_servers = merged(servers)
        own = [tool for tool in self.tools if not isinstance(tool, MCP)]
        msgspec.structs.force_setattr(self, "tools", [*own, *all_servers.tools])
        msgspec.structs.force_setattr(self, "environment", all_servers)


class CompiledAgent:
    """What every turn of one agent shares, made once."""

    def __init__(self, agent: Agent, toolbox: Toolbox | None = None, version: str | None = None) -> None:
        self.agent = agent
        self.version = version
        self.toolbox = Toolbox(agent.tools, repair=agent.malformed == "repair") if toolbox is None else toolbox
        self.dialect = BoundDialect(agent.dialect, agent.tools, agent.sampling)
        self.head = request.head(agent.model)
        definitions = self.toolbox.definitions()
        self.constant = request.constant(self.dialect.sampling, definitions if self.dialect.native else b"")
        said = request.namespace(agent.model, self.dialect.sampling, definitions) + self.dialect.mark
        self.namespace = versioned(asking(said, agent.llm), version)
        sampling = self.dialect.sampling
        ids = request.wants_ids(sampling)
        self.reading = ReplyOptions(version=number_of(version), ids=ids, max_tokens=sampling.max_tokens)
        self.greedy = self.dialect.sampling.temperature == 0
        self._sampled: dict[bytes, CompiledAgent] = {}
        self._under: CompiledAgent | None = None  # of the version that was asked for last

    def under(self, version: str | None) -> CompiledAgent:
        """The same agent under a version of the weights."""
        if version is None or version == self.version:
            return self
        if self._under is None or self._under.version != version:
            self._under = CompiledAgent(self.agent, self.toolbox, version)
        return self._under

    def sampled(self, sampling: Sampling) -> CompiledAgent:
        """The same agent with other sampling parameters."""
        key = msgspec.json.encode(sampling)
        known = self._sampled.get(key)
        if known is None:
            given = {name: value for name, value in msgspec.structs.asdict(sampling).items() if value is not None}
            given["extra"] = self.agent.sampling.extra | sampling.extra
            merged = msgspec.structs.replace(self.agent.sampling, **given)
            agent = msgspec.structs.replace(self.agent, sampling=merged)
            known = self._sampled[key] = CompiledAgent(agent, self.toolbox, self.version)
        return known
