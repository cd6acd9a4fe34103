"""Tools of servers that speak the Model Context Protocol, by its official SDK (extra: mcp)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline._internal.exports import exports

if TYPE_CHECKING:
    from trunkline.tools.mcp.config import MCP

__all__ = ["MCP"]

__getattr__ = exports(__name__, "tools.mcp.config: MCP")
