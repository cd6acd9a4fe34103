"""``tl.MCP``: the servers of a run, their tools among those of an agent, and the environment of each rollout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from trunkline._internal.validation import check_bool, check_choice, check_float, check_that
from trunkline.errors import ConfigError
from trunkline.tools.mcp.connection import sdk
from trunkline.tools.mcp.environment import MCPEnvironment
from trunkline.tools.mcp.listing import list_tools
from trunkline.tools.mcp.servers import EFFECTS, MCPServer, ServerSetup, fill_in, read_server, read_servers
from trunkline.tools.mcp.tools import tool_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trunkline.tools.tool import Tool

__all__ = ["MCP", "merged"]


class _ReadsServers(msgspec.StructMeta):
    """Lets servers be given by a file, an address or a mapping, and asks them for their tools."""

    def __call__(
        cls,  # noqa: N805 - ruff does not see that this is a metaclass
        servers: str | Path | Mapping[str, Any],
        *,
        effects: Literal["none", "folder", "external"] | None = None,
        stateless: bool = False,
        folder: str | None = None,
        timeout: float = 60.0,
    ) -> Any:
        if effects is not None:
            check_choice("MCP: effects", effects, *EFFECTS)
        check_bool("MCP: stateless", stateless)
        check_float("MCP: timeout", timeout, 0, 86_400, above=True, unit="seconds")
        if folder is not None:
            check_that(isinstance(folder, str | Path) and Path(folder).is_dir(), "MCP: folder is no folder", folder)
            folder = str(Path(folder).resolve())
        given, file = read_servers(servers)
        more: dict[str, Any] = {"stateless": stateless, "folder": folder, "timeout": timeout, "file": file}
        read = [read_server(name, one, {"effects": effects, **more}) for name, one in given.items()]
        if folder is not None and all(server.effects != "folder" for server, _ in read):
            raise ConfigError(
                "MCP: folder is copied for effects='folder', which no server has: say so, or leave it out"
            )
        made = super().__call__(tuple(server for server, _ in read))
        made.__dict__["values"] = {server.name: values for server, values in read}
        made.__dict__["setups"] = {server.name: made.setup(server.name) for server, _ in read}
        listed = tuple(list_tools(made.servers, made.__dict__["setups"]))
        msgspec.structs.force_setattr(made, "servers", listed)
        made.check()
        return made


class MCP(msgspec.Struct, frozen=True, dict=True, metaclass=_ReadsServers):
    """Servers of the Model Context Protocol: ``Agent(tools=[tl.MCP("servers.json")])``, with other tools beside it.

    A server by its command is a process for each rollout; one by its address has a session for each, where its version
    of the protocol has sessions. The first call of a rollout starts it. Where a rollout begins in the middle, by a fork
    or after a kill, its calls run again in a new process or session, and their results must be those on record.

    Args:
        servers: The path of a file, ``{"mcpServers": {NAME: {"command": ..., "args": [...], "env": {...}}}}``, with
            ``"url"`` and ``"headers"`` instead for a server by its address; the same as a dict, or the part below
            ``mcpServers``; or one address. ``${NAME}`` stands for a variable of the environment.
        effects: What the tools change: ``"none"`` beyond the server's own process or session; ``"folder"``: its working
            folder, of which each start has a fresh copy; ``"external"``, as without: something else, so that no call
            is made twice, rollouts are chains, and a rollout that was killed after a call ends as ``unknown_effect``.
        stateless: Whether no call depends on an earlier one: then calls are not run again, and forks are free.
        folder: A folder that is copied into each server's own, for ``effects="folder"``.
        timeout: Seconds that a call may take.

    Raises:
        ConfigError: The file cannot be read or has a key that it cannot have, a server does not start, or its tools
            cannot be described to a model; the message names the server.
    """

    servers: tuple[MCPServer, ...]

    if TYPE_CHECKING:

        def __init__(
            self,
            servers: str | Path | Mapping[str, Any],
            *,
            effects: Literal["none", "folder", "external"] | None = None,
            stateless: bool = False,
            folder: str | None = None,
            timeout: float = 60.0,
        ) -> None: ...

    def __call__(self) -> MCPEnvironment:
        """Return the environment of one rollout, which holds nothing yet."""
        sdk()  # here, as an agent is checked before a run, and not while other rollouts wait for the import
        return MCPEnvironment({server.name: server for server in self.servers}, self.setup)

    @property
    def tools(self) -> list[Tool[..., Any]]:
        """The tools of all servers."""
        return [tool_of(server, listed) for server in self.servers for listed in server.tools]

    def check(self) -> None:
        """Refuse servers of one name, and tools of one name."""
        names: dict[str, str] = {}
        seen: set[str] = set()
        for server in self.servers:
            if server.name in seen:
                raise ConfigError(f"MCP: two servers are called {server.name}: rename one")
            seen.add(server.name)
            for listed in server.tools:
                name = msgspec.json.decode(listed.definition)["function"]["name"]
                if name in names:
                    raise ConfigError(
                        f"MCP: {server.name} and {names[name]} both have a tool that is called {name} here: take it "
                        'from one of them, by "tools": [NAME, ...] of the other'
                    )
                names[name] = server.name

    def check_forks(self, strategy: Any) -> None:
        """Refuse a strategy that forks where a server cannot follow.

        Raises:
            ConfigError: Some server's calls must not run again.
        """
        hooks = any(getattr(strategy, hook, None) is not None for hook in ("ended", "stepped"))
        for server in self.servers if getattr(strategy, "branches", hooks) else ():
            if server.forks:
                raise ConfigError(
                    f"{type(strategy).__name__} forks rollouts, and the MCP server {server.name} {server.forks}; or "
                    "take chains"
                )

    @property
    def secret(self) -> str:
        """All that is needed to start the servers, for ``receive``. Never store it."""
        setups = {server.name: self.setup(server.name) for server in self.servers}
        return msgspec.json.encode(setups).decode()

    def receive(self, secret: str) -> None:
        """Take what ``secret`` held, after this object crossed to another process."""
        self.__dict__["setups"] = msgspec.json.decode(secret, type=dict[str, ServerSetup])

    def server(self, name: str) -> MCPServer | None:
        """Return a server by its name; None where there is no such one."""
        return next((server for server in self.servers if server.name == name), None)

    @property
    def stored(self) -> bool:
        """Whether a run file, with the files that it names, has all that is needed to start the servers."""
        return all(server.file or not server.names for server in self.servers)

    def settings(self) -> dict[str, Any]:
        """Describe the servers for the run file."""
        return {server.name: server.settings() for server in self.servers}

    def setup(self, name: str) -> ServerSetup:
        """Return what to start or to ask.

        Raises:
            ConfigError: A variable is not set, or a value was in no file.
        """
        found: dict[str, ServerSetup] = self.__dict__.get("setups", {})
        if name in found:
            return found[name]
        server = self.server(name)
        assert server is not None
        values: dict[str, str] | None = self.__dict__.get("values", {}).get(name)
        if values is None and server.names and server.file:
            values = read_server(name, read_servers(server.file)[0].get(name), {"effects": None})[1]
        return fill_in(server, values or {})


def merged(several: list[MCP]) -> MCP:
    """Return the servers of several as one."""
    if len(several) == 1:
        return several[0]
    made: MCP = msgspec.structs.replace(several[0], servers=tuple(server for one in several for server in one.servers))
    made.__dict__["setups"] = {server.name: one.setup(server.name) for one in several for server in one.servers}
    made.check()
    return made
