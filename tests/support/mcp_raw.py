"""An MCP server in raw lines of JSON, without the SDK: a sum of its process, and all that a hostile server may do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
EMPTY = {"type": "object", "properties": {}}


def tool(name: str, schema: Any = EMPTY, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": f"The tool {name}.", "inputSchema": schema, **more}


TOOLS = [tool("add", NUMBER), tool("look", annotations={"readOnlyHint": True})]
HOSTILE = [
    *("flood", "notify", "ask", "line", "garbage", "silent", "die", "signal"),
    *("wrong", "deep", "binary", "escape", "fork", "refuse"),
]
LISTS = {
    "plain": TOOLS,
    "hostile": [*TOOLS, *map(tool, HOSTILE)],
    "names": [tool("a.b"), tool("a/b")],
    "schema": [*TOOLS, tool("bad", {"type": "array"})],
    "huge": [tool("huge", {"type": "object", "properties": {f"x{i}": {"type": "string"} for i in range(20_000)}})],
    "none": [],
}


def say(value: Any) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def log(line: str) -> None:
    """Note the number of a process, and what it does."""
    if path := os.environ.get("RAW_LOG"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def attack(name: str, number: Any) -> str:
    """Do something that no server may."""
    match name:
        case "flood":
            while True:
                sys.stdout.write("x" * 65536)
        case "notify":
            while True:
                say(
                    {
                        "jsonrpc": "2.0",
                        "method": "notifications/message",
                        "params": {"level": "info", "data": "\x1b[31m"},
                    }
                )
        case "ask":
            for one in range(10_000):
                say({"jsonrpc": "2.0", "id": f"s{one}", "method": "roots/list"})
        case "line":
            say("x" * (20 << 20))
        case "garbage":
            for text in ("banner", "[]", "null", '{"jsonrpc": "2.0"}', '{"id": null}', "\\ud800", "[" * 100_000):
                say(text)
            say({"jsonrpc": "2.0", "id": 999_999, "result": {}})
        case "silent":
            time.sleep(1000)
        case "die":
            os._exit(7)
        case "signal":
            os.kill(os.getpid(), signal.SIGKILL)
        case "wrong":
            say({"jsonrpc": "2.0", "id": number, "result": {"content": "no list"}})
        case "deep":
            say({"jsonrpc": "2.0", "id": number, "result": {"content": json.loads("[" * 500 + "]" * 500)}})
        case "binary":
            sys.stdout.buffer.write(b"\xff\xfe\x00{}\n")
        case "fork":
            log(f"{subprocess.Popen(['sleep', '1000'], start_new_session=True).pid} sleep")
        case "refuse":
            say({"jsonrpc": "2.0", "id": number, "error": {"code": -32001, "message": "no\n\x1b[31m<b>" * 500}})
    return f"{name} \x1b[31m<script>\0\ud800" + os.environ.get("RAW_KEY", "")


def main() -> None:
    kind, total = sys.argv[1], 0
    for line in sys.stdin:
        request = json.loads(line)
        number, method, params = request.get("id"), request.get("method"), request.get("params", {})
        if method == "initialize":
            result: Any = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            result["serverInfo"] = {"name": "raw", "version": "1"}
        elif method == "tools/list":
            result = {"tools": LISTS[kind]}
        elif method == "tools/call":
            name, given = params["name"], params.get("arguments") or {}
            log(f"{os.getpid()} {name}")
            if name == "add":
                total += given.get("number", 0)
            text = f"total {total}" if name in {"add", "look"} else attack(name, number)
            if os.environ.get("RAW_CLOCK"):
                text += f" at {time.time()}"
            result = {"content": [{"type": "text", "text": text}]}
        elif number is not None:
            say({"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "no such method"}})
            continue
        else:
            continue
        say({"jsonrpc": "2.0", "id": number, "result": result})


if __name__ == "__main__":
    main()
