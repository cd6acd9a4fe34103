"""The page about MCP servers: both of its files can be read, and say what the page says of them."""

from __future__ import annotations

import json

import doc_pages
from places import ROOT

from trunkline.tools.mcp.servers import read_server, read_servers

PAGE = (ROOT / "docs/how-to/mcp.md").read_text("utf-8")


def test_the_files_can_be_read():
    files = [block.text for block in doc_pages.blocks(PAGE) if block.language == "json"]
    given = [server for file in files for server in read_servers(json.loads(file))[0].items()]
    read = [read_server(name, one, {"effects": "none"})[0] for name, one in given]
    assert [(server.name, server.stateless) for server in read] == [("library", False), ("search", True)]
