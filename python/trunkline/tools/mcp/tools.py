"""Tools of MCP servers: called by a model as any other, on the servers of its rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import msgspec

from trunkline.tools.mcp.environment import MCPEnvironment
from trunkline.tools.openai_definition import DefinedTool, DefinitionSchema
from trunkline.tools.schema import EnvironmentSlot
from trunkline.tools.tool import ToolPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.tools.mcp.servers import ListedTool, MCPServer

_PREFIX: Final = "tool"
_SLOT: Final = "environment"

_LONGEST: Final = 86_400.0
"""Seconds after which a call is stopped for certain; the servers have a limit of their own below."""


class ToolFacts(msgspec.Struct, frozen=True, array_like=True):
    """All that makes a tool: its server, its name there, its definition, and whether its calls may run again."""

    server: str
    name: str
    definition: str
    external: bool
    replayed: bool


class MCPSchema(DefinitionSchema):
    """Arguments as one object, which the server itself checks."""

    __slots__ = ()

    def __init__(self, parameters: dict[str, Any], function: Callable[..., Any]) -> None:
        super().__init__(parameters, function, None, reads=True)
        self.slot = EnvironmentSlot(_SLOT, MCPEnvironment)
        self._signature = None

    def decode(self, arguments: str) -> tuple[list[Any], dict[str, Any]]:
        return [], {"arguments": super().decode(arguments)[1]}


class MCPTool(DefinedTool):
    """A tool of an MCP server."""

    def __init__(self, facts: ToolFacts) -> None:
        async def call(arguments: dict[str, Any], environment: MCPEnvironment) -> str:
            return await environment.call(facts.server, facts.name, arguments)

        call.__module__, call.__name__ = __name__, facts.name
        written = msgspec.json.encode(facts).decode()
        call.__qualname__ = _PREFIX + written.replace("%", "%25").replace(".", "%2E").replace("<", "%3C")
        super().__init__(msgspec.json.decode(facts.definition), call, f"MCP server {facts.server}")
        self.facts = facts
        self.policy = ToolPolicy(timeout=_LONGEST, side_effects=facts.external, replay=not facts.external)
        self.schema = MCPSchema(self._definition["function"].get("parameters") or {"type": "object"}, call)

    @property
    def replayed(self) -> bool:
        return self.facts.replayed

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_of, (self.facts,)


_made: Final[dict[ToolFacts, MCPTool]] = {}


def _made_of(facts: ToolFacts) -> MCPTool:
    if facts not in _made:
        _made[facts] = MCPTool(facts)
    return _made[facts]


def tool_of(server: MCPServer, listed: ListedTool) -> MCPTool:
    """Return a tool of a server, the same one each time."""
    external = server.effects == "external"
    return _made_of(ToolFacts(server.name, listed.name, listed.definition, external, server.replayed))


def __getattr__(name: str) -> Any:
    """Find a tool by its qualified name, in a process that has not made it yet."""
    if not name.startswith(_PREFIX + "["):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _made_of(msgspec.json.decode(unquote(name.removeprefix(_PREFIX)), type=ToolFacts))
