"""An MCP server written with the official SDK: notes of one process or session, by standard input or HTTP."""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import EmbeddedResource, ImageContent, TextContent, TextResourceContents, ToolAnnotations

server = MCPServer("notes", log_level="ERROR")
NOTES: dict[Any, list[str]] = {}
"""Notes by session; of one process the session is 0."""


def notes_of(context: Context) -> list[str]:
    request = getattr(context.request_context, "request", None)
    session = None if request is None else request.headers.get("mcp-session-id")
    return NOTES.setdefault(session or 0, [])


@server.tool()
def note(text: str, context: Context) -> str:
    """Write a note down."""
    found = notes_of(context)
    found.append(text)
    if (log := os.environ.get("NOTES_LOG")) is not None:
        with Path(log).open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {text}\n")
    return f"{len(found)}: {text}"


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def read(context: Context) -> str:
    """Read all notes."""
    return ", ".join(notes_of(context)) or "no notes"


@server.tool()
def keep(name: str, text: str) -> str:
    """Keep a text in a file of the working folder."""
    path = Path(name).resolve()
    was = path.read_text("utf-8") if path.exists() else ""
    path.write_text(was + text, "utf-8")
    return f"{path}: {was}{text}"


@server.tool()
def show() -> list[Any]:
    """Show a picture and a document."""
    inside = TextResourceContents(uri="notes://one", text="a document")
    return [
        TextContent(type="text", text="a text"),
        ImageContent(type="image", data=base64.b64encode(b"x" * 300).decode(), mime_type="image/png"),
        EmbeddedResource(type="resource", resource=inside),
    ]


@server.tool()
def leave(code: int) -> str:
    """End the server."""
    os._exit(code)


@server.tool()
def tell(name: str) -> str:
    """Tell a variable of the environment."""
    return os.environ.get(name, "unset")


if __name__ == "__main__":
    if sys.argv[1:] == ["spawn"]:
        import subprocess

        subprocess.Popen(["sleep", "1000"])
    server.run("stdio")
