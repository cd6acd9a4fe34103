"""Role, Template, slots."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from trunkline._internal.text import describe_error
from trunkline._internal.validation import check_float, check_text, short_repr
from trunkline.agent import Agent
from trunkline.errors import ConfigError, ProgramError
from trunkline.llm.dialects import builtin as dialects
from trunkline.llm.messages import piece, system
from trunkline.llm.pricing import MAIN, check_name
from trunkline.llm.request import Sampling
from trunkline.team.projection import Reader, Reading, Whole
from trunkline.tools.mcp.config import MCP
from trunkline.tools.tool import Tool, load_tools

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


_BRACED: Final = re.compile(r"\{([^\W\d]\w*)\}")
_LIKE: Final = 0.75
"""How like a slot's name a braced word must be to be taken for a slip of the pen."""


class Slot(NamedTuple):
    """A named place in a template."""

    name: str


class Template:
    """A text with slots; other braces are plain, and the text of a slot is not searched again."""

    def __init__(self, text: str, slots: Collection[str], where: str) -> None:
        self.parts: list[str | Slot] = []
        end = 0
        for found in _BRACED.finditer(text):
            name = found[1]
            if name not in slots:
                _check_slip(name, slots, where)
                continue
            self._add(text[end : found.start()])
            self.parts.append(Slot(name))
            end = found.end()
        self._add(text[end:])
        self.slots = frozenset(part.name for part in self.parts if isinstance(part, Slot))

    def _add(self, text: str) -> None:
        if text:
            self.parts.append(text)

    def fill(self, values: Mapping[str, str]) -> str:
        """Return the text with its slots filled."""
        return "".join(values[part.name] if isinstance(part, Slot) else part for part in self.parts)


def _check_slip(name: str, slots: Collection[str], where: str) -> None:
    near = difflib.get_close_matches(name, slots, 1, _LIKE)
    if near:
        raise ConfigError(
            f"{where} has {{{name}}}, which is no slot but almost {{{near[0]}}}; its slots are "
            f"{', '.join(f'{{{slot}}}' for slot in sorted(slots))}, and others are named in slots={short_repr([name])}"
        )


_SLOTS: Final = ("question", "context", "step")
_TAKEN: Final = {"active": "which ask takes for something else"} | dict.fromkeys(_SLOTS, "which every prompt has")
"""Names that no further slot can have, and why."""
_RELAY: Final = '\nThe output of "{name}": {text}\n'


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """One agent of a team. Its name is that of the team's attribute which holds it, unless it has one.

    Attributes:
        prompt: The user message that it is sent, with slots: ``{question}``, what the task's last message says;
            ``{context}``, what colleagues said since the last observation; ``{step}``, which step this is, from 1; and
            those of ``slots``. Other braces are braces. None: it is sent the rollout's own path.
        system: Its system prompt; the task's own when empty.
        slots: Further slots of the prompt, which ``ask`` is given texts for.
        sees: Names of the roles that ``{context}`` has the outputs of; those of all when None.
        reads: What of a reply counts, and whether it is a valid action.
        relay: How its output stands in the context of others: ``{name}`` and ``{text}``.
        penalty: Subtracted from the reward of a row whose action is not valid.
        model: The model; the team's when empty.
        llm: The name of the LLM that it asks, where the run has several; that without a name when empty.
        sampling: Sampling parameters.
        dialect: As of an ``Agent``.
        tools: What it may call; see ``use``.
        before_tool: As of an ``Agent``, for calls that ``use`` runs.
        name: What its turns are called in trees and profiles.

    Raises:
        ConfigError: If a field has a value it cannot have.
    """

    prompt: str | None = "{question}\n{context}"
    system: str = ""
    slots: Sequence[str] = ()
    sees: Sequence[str] | None = None
    reads: Any = Whole()
    relay: str = _RELAY
    penalty: float = 0.0
    model: str = ""
    llm: str = MAIN
    sampling: Sampling = Sampling()
    dialect: Any = "native"
    tools: Sequence[Tool[..., Any]] = ()
    name: str = ""
    before_tool: Any = None

    def __post_init__(self) -> None:
        check_text("Role: system", self.system)
        check_text("Role: name", self.name)
        check_name("Role: llm", self.llm)
        _check_slots(self.slots)
        if self.sees is not None:
            _listed("sees", "names of roles", self.sees, str)
        if isinstance(self.tools, list | tuple) and any(isinstance(tool, str | list | tuple) for tool in self.tools):
            msgspec.structs.force_setattr(self, "tools", load_tools(self.tools, "Role: tools"))
        if any(isinstance(one, MCP) for one in (self.tools if isinstance(self.tools, list | tuple) else [self.tools])):
            raise ConfigError(
                "Role: tl.MCP is no tool of a role, since all roles share its servers: give the role "
                "tools=servers.tools, and the team environment=servers"
            )
        _listed("tools", "tools, functions with @tool", self.tools, Tool)
        if not isinstance(self.sampling, Sampling):
            raise ConfigError(f"Role: sampling must be a Sampling, not {short_repr(self.sampling)}")
        if not isinstance(self.reads, Reader):
            raise ConfigError(f"Role: reads must have read(text, reasoning), which {short_repr(self.reads)} lacks")
        check_float("Role: penalty", self.penalty, 0)
        if self.prompt is None and (self.system or self.slots or self.sees is not None):
            raise ConfigError("Role: one without a prompt is sent the rollout's path: leave system, slots and sees out")
        self.template()
        Template(check_text("Role: relay", self.relay), ("name", "text"), "Role: relay")

    def template(self) -> Template | None:
        """Return its prompt, taken apart; None for one that is sent the path."""
        if self.prompt is None:
            return None
        return Template(check_text("Role: prompt", self.prompt), {*_SLOTS, *self.slots}, "Role: prompt")


class Member:
    """A role of one team with its number, agent, template and relay; ConfigError without a model."""

    def __init__(self, number: int, name: str, role: Role, model: str, environment: Any = None) -> None:
        self.number = number
        self.name = name
        self.role = role
        if not (role.model or model):
            raise ConfigError(f"role {short_repr(name)} has no model: give the team one, or the role its own")
        try:
            self.agent = Agent(
                model=role.model or model,
                name=name,
                llm=role.llm,
                sampling=role.sampling,
                dialect=role.dialect,
                tools=tuple(role.tools),
                environment=environment,
                before_tool=role.before_tool,
            )
        except ConfigError as problem:
            raise ConfigError(f"role {short_repr(name)}: {problem}") from None
        self.template = role.template()
        self._relay = Template(role.relay, ("name", "text"), "Role: relay")
        self.relayed = self._ends()
        self.pieces = self.encoded()

    def read(self, text: str, reasoning: str | None) -> Reading:
        """Read a reply by the role's projection; ProgramError if that fails."""
        try:
            found = self.role.reads.read(text, reasoning)
        except Exception as problem:
            raise ProgramError(f"role {short_repr(self.name)}: reads raised {describe_error(problem)}") from problem
        if type(found) is Reading and type(found.text) is str and (found.valid is True or found.valid is False):
            return found
        if not isinstance(found, Reading):
            raise ProgramError(f"role {short_repr(self.name)}: reads must return a Reading, not {short_repr(found)}")
        if not isinstance(found.text, str) or not isinstance(found.valid, bool):
            raise ProgramError(
                f"role {short_repr(self.name)}: reads must return a text and true or false, "
                f"not {short_repr(tuple(found))}"
            )
        return found

    def encoded(self) -> tuple[bytes, list[tuple[bytes, str]]]:
        """Return its system message, empty without one, and the parts of its prompt: a piece, or the name of a slot."""
        parts = () if self.template is None else self.template.parts
        pieces = [(b"", part.name) if isinstance(part, Slot) else (piece(part), "") for part in parts]
        return system(self.role.system) if self.role.system else b"", pieces

    def settings(self) -> dict[str, Any]:
        """Describe the role for the run file."""
        own: dict[str, Any] = msgspec.structs.asdict(self.role) | {
            "name": self.name,
            "model": self.agent.model,
            "reads": described(self.role.reads),
            "tools": [tool.definition for tool in self.role.tools],
            "dialect": dialects.describe(dialects.find(self.role.dialect)),
        }
        if own.pop("before_tool") is not None:  # left out where there is no hook, as in earlier run files
            own["before_tool"] = described(self.agent.before_tool)
        found: dict[str, Any] = msgspec.to_builtins(own)
        return found

    def _ends(self) -> tuple[bytes, bytes] | None:
        parts = [self.name if part == Slot("name") else part for part in self._relay.parts]
        if parts.count(Slot("text")) != 1:
            return None
        place = parts.index(Slot("text"))
        before, after = ("".join(map(str, some)) for some in (parts[:place], parts[place + 1 :]))
        return piece(before)[1:], piece(after)[1:]

    def relay(self, output: str) -> str:
        """Return a member's output as its colleagues see it."""
        return self._relay.fill({"name": self.name, "text": output})


def described(value: object) -> str:
    """Describe an object by its name or repr, equally in every process."""
    called = getattr(value, "__qualname__", None)
    if isinstance(called, str):
        return called
    return type(value).__qualname__ if type(value).__repr__ is object.__repr__ else repr(value)


def _check_slots(slots: Sequence[str]) -> None:
    _listed("slots", "names", slots, str)
    for name in slots:
        if not name.isidentifier():
            raise ConfigError(f"Role: slots must be names such as history, not {short_repr(name)}")
        if name in _TAKEN:
            raise ConfigError(f"Role: slots has {name}, {_TAKEN[name]}")


def _listed(field: str, what: str, values: object, kind: type) -> None:
    if not isinstance(values, list | tuple) or not all(isinstance(value, kind) for value in values):
        raise ConfigError(f"Role: {field} must be a list of {what}, not {short_repr(values)}")
