"""The MCP servers of one rollout, as an environment: started by the first call, brought to a state by replay."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from trunkline.errors import ToolError
from trunkline.tools.environment import Environment
from trunkline.tools.mcp.connection import ServerConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trunkline.tools.mcp.servers import MCPServer, ServerSetup
    from trunkline.types import Task


class MCPEnvironment(Environment):
    """One process or session of each server that a rollout calls.

    A server that has ended stays so, as its state is gone; one without a state is opened again by the next call.
    """

    snapshots = 0
    timeout = 120.0
    given_as = "SERVERS, the tl.MCP that the tool is of"

    def __init__(self, servers: Mapping[str, MCPServer], setup: Callable[[str], ServerSetup]) -> None:
        self._servers = servers
        self._setup = setup
        self._open: dict[str, ServerConnection] = {}
        self._closed = False

    async def fresh(self, task: Task) -> None:
        """Begin without a server."""

    async def call(self, server: str, tool: str, arguments: dict[str, Any]) -> str:
        """Call a tool of a server, and return its result as text.

        Args:
            server: The server's name.
            tool: The tool's name there.
            arguments: What it is given.

        Raises:
            ToolError: The call failed; the text is for the model.
        """
        return await (await self._connection(server)).call(tool, arguments)

    async def _connection(self, name: str) -> ServerConnection:
        found = self._open.get(name)
        server = self._servers.get(name)
        if server is None or self._closed:
            raise ToolError(f"Error: the rollout has no MCP server {name}.")
        if found is None or (found.ended and not server.replayed):
            if found is not None:
                await found.close()
            relist = not server.sessions and any("x-mcp-header" in tool.definition for tool in server.tools)
            found = ServerConnection(name, self._setup(name), server.version, relist=relist)
            self._open[name] = found
        return found

    async def close(self) -> None:
        """End all servers."""
        self._closed = True
        await asyncio.gather(*(connection.close() for connection in self._open.values()))
