"""What servers say of their tools, asked for once before a run, and made fit for a model or refused."""

from __future__ import annotations

import asyncio
import re
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline._internal.aio import LoopThread
from trunkline._internal.text import printable, scrub
from trunkline._internal.validation import short_repr
from trunkline.errors import ConfigError, ToolError
from trunkline.tools.mcp.connection import MOST_TOOLS, ServerConnection, modern_versions, sdk
from trunkline.tools.mcp.servers import ListedTool
from trunkline.tools.openai_definition import definition_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trunkline.tools.mcp.servers import MCPServer, ServerSetup

_MOST_TOOL: Final = 128 << 10
"""Bytes of the definition of one tool."""

_MOST_ALL: Final = 4 << 20

_ODD: Final = re.compile(r"[^a-zA-Z0-9_-]")


def list_tools(servers: Sequence[MCPServer], setups: Mapping[str, ServerSetup]) -> list[MCPServer]:
    """Start servers, or ask them, and return them with their tools; blocks meanwhile.

    Raises:
        ConfigError: One does not start, or its tools cannot be described to a model.
    """
    sdk()

    async def ask() -> list[MCPServer]:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(_listed(server, setups[server.name])) for server in servers]
        return [task.result() for task in asked]

    with closing(LoopThread("trunkline-mcp")) as own:  # this thread may have an event loop already
        try:
            return own.send(ask()).wait()
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None


async def _listed(server: MCPServer, setup: ServerSetup) -> MCPServer:
    connection = ServerConnection(server.name, setup)
    try:
        async with asyncio.timeout(setup.timeout + 60):
            version, tools = await connection.tools()
    except ToolError as problem:
        raise ConfigError(str(problem).removeprefix("Error: ")) from None
    except TimeoutError:
        raise ConfigError(f"MCP server {server.name} does not list its tools in time") from None
    finally:
        await connection.close()
    version = printable(version, 40)
    listed = _fit(server, tools)
    sessions = not (server.url and version in modern_versions())
    return msgspec.structs.replace(server, version=version, sessions=sessions, tools=tuple(listed))


def _fit(server: MCPServer, tools: Sequence[Any]) -> list[ListedTool]:
    """Return the tools that are wanted, by names that a model may say; ConfigError for what does not fit."""
    place = f"MCP server {server.name}"
    names = [tool.name for tool in tools]
    for name in server.wanted or ():
        if name not in names:
            there = printable(", ".join(names), 300) or "no tools"
            raise ConfigError(f"{place} has no tool {short_repr(name)}, which its tools name; it lists {there}")
    wanted = [tool for tool in tools if server.wanted is None or tool.name in server.wanted]
    if not wanted:
        raise ConfigError(f"{place} lists no tools")
    if len(wanted) > MOST_TOOLS:
        raise ConfigError(f'{place} lists more than {MOST_TOOLS} tools: say which are taken, by "tools": [NAME, ...]')
    found = [_tool(place, tool) for tool in wanted]
    if sum(len(one.definition) for one in found) > _MOST_ALL:
        raise ConfigError(
            f'{place}: its tools have more than {_MOST_ALL:,} bytes: say which are taken, by "tools": [...]'
        )
    return found


def _tool(place: str, tool: Any) -> ListedTool:
    what = f"{place}: its tool {short_repr(tool.name)}"
    advice = 'leave it out, by "tools": [NAME, ...] with those that are wanted'
    name = _ODD.sub("_", tool.name)[:64]
    schema = scrub(tool.input_schema)
    function = {"name": name, "description": scrub(tool.description or tool.title or ""), "parameters": schema}
    try:
        made = definition_of({"function": function}, what)
        written = msgspec.json.encode(made).decode().replace(r"\u0000", r"\ufffd")  # NUL, which model servers refuse
    except ConfigError as problem:
        raise ConfigError(f"{printable(str(problem), 500)}; {advice}") from None
    except RecursionError:
        raise ConfigError(f"{what} has a schema that is nested too deeply: {advice}") from None
    if (size := len(tool.name) + len(written)) > _MOST_TOOL:
        raise ConfigError(f"{what} has a definition of {size:,} bytes, above {_MOST_TOOL:,}: {advice}")
    hints = tool.annotations
    return ListedTool(tool.name, written, read_only=hints is not None and hints.read_only_hint is True)
