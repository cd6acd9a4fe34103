"""The guide to MCP servers: its example, run as printed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from foreign import serving
from places import ROOT

pytest.importorskip("mcp", reason="mcp is not installed")

from mcp_runs import raw, reply

from trunkline.tools.mcp.servers import read_server, read_servers

GUIDE = (ROOT / "docs/guide/mcp.md").read_text("utf-8")


def test_the_example_runs_and_its_file_can_be_read(tmp_path: Path, monkeypatch, capsys):
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    (file,) = re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL)
    given, _ = read_servers(json.loads(file))
    read = [read_server(name, one, {"effects": "none"})[0] for name, one in given.items()]
    assert [(server.name, server.stateless) for server in read] == [("notes", False), ("search", True)]
    monkeypatch.chdir(tmp_path)
    server = raw()
    server["raw"]["tools"] = ["look"]
    Path("servers.json").write_text(json.dumps({"mcpServers": server}), "utf-8")
    with serving(reply) as model:
        here = example.replace("http://localhost:8000/v1", model.url).replace(
            "llm=", "workers=0, fail_on_error=99, llm="
        )
        exec(compile(here, "mcp.md", "exec", dont_inherit=True), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip().isdigit()
