"""MCP servers: files that name them, what they list and answer, hostile ones included, and where keys end up."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="mcp is not installed")

from mcp_http import notes, sums
from mcp_raw import HOSTILE
from mcp_runs import RAW, SUPPORT, raw
from resuming import wait_for

import trunkline as tl
from trunkline._internal.serialization import load, pack
from trunkline.errors import ConfigError
from trunkline.strategies.chain import Chain
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.tools.mcp.config import MCP, merged
from trunkline.tools.toolbox import Toolbox

KEY = "sesame-sesame"


def called(servers: MCP, *rollouts: list[tuple[str, dict[str, Any]]], at_once: bool = False) -> list[list[Any]]:
    """Call tools, in an environment for each rollout."""
    agent = tl.Agent(model="m", tools=[servers])

    async def play(box: Toolbox, calls: list[tuple[str, dict[str, Any]]]) -> list[Any]:
        environment = agent.environment()
        seen = [await box.call(name, json.dumps(given), environment) for name, given in calls]
        await box.manage(environment, "close")
        return seen

    async def play_all() -> list[list[Any]]:
        box = Toolbox(agent.tools)
        playing = [play(box, calls) for calls in rollouts]
        seen = await asyncio.gather(*playing) if at_once else [await one for one in playing]
        await box.close()
        return seen

    return asyncio.run(play_all())


def test_a_hostile_server_ends_its_calls_and_nothing_else(tmp_path: Path):
    log = tmp_path / "log"
    servers = tl.MCP(raw("hostile", RAW_KEY=KEY, RAW_LOG=str(log)), effects="none", timeout=20)
    slow = [name for name in HOSTILE if name != "silent"]
    plays = [[("add", {"number": 3}), (name, {}), ("look", {})] for name in slow]
    ends = dict(zip(slow, called(servers, *plays, at_once=True), strict=True))
    for name, (first, attack, last) in ends.items():
        assert (first.text, first.ok) == ("total 3", True), name
        said, stopped = attack.text, "Error: the MCP server raw was stopped, as it said too much."
        if name in {"flood", "notify", "ask", "line"}:
            assert said == last.text == stopped, name
        elif name == "die":
            assert said == last.text == "Error: the MCP server raw ended with exit code 7."
        elif name == "signal":
            assert said == last.text == "Error: the MCP server raw was killed by SIGKILL."
        else:
            assert last.text == "total 3", name
            assert attack.ok == (name not in {"wrong", "deep", "refuse"}), name
            assert KEY not in said, "what the server was given as a key is not repeated"
            assert "\0" not in said, name
            said.encode()
    assert ends["refuse"][1].text.startswith("Error: the MCP server raw refused the call: no\\n\\x1b[31m<b>no")
    assert len(ends["refuse"][1].text) < 400
    processes = {line.split()[0] for line in log.read_text("utf-8").splitlines()}
    assert len(processes) == len(slow) + 1, "one for each rollout, and what one of them has started"
    wait_for(lambda: not any(Path(f"/proc/{number}").exists() for number in processes))


def test_a_hanging_call_ends_alone():
    servers = tl.MCP(raw("hostile"), effects="none", timeout=1.5)
    ((first, hung),) = called(servers, [("add", {"number": 3}), ("silent", {})])
    assert first.ok or "no result within" in first.text
    assert hung.text == "Error: silent gave no result within 1.5 s, and its call was given up."


def test_a_server_of_the_sdk_has_a_folder_that_is_fresh_and_an_environment_of_little(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("THEIR_TOKEN", KEY)
    monkeypatch.setenv("OF_THE_RUN", "not theirs")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.txt").write_text("old ", "utf-8")
    given = {
        "command": sys.executable,
        "args": [str(SUPPORT / "mcp_notes.py")],
        "env": {"THEIR_TOKEN": "${THEIR_TOKEN}"},
    }
    servers = tl.MCP({"notes": given}, effects="folder", folder=str(tmp_path / "work"))
    keep = ("keep", {"name": "a.txt", "text": "new"})
    told = [("tell", {"name": "THEIR_TOKEN"}), ("tell", {"name": "OF_THE_RUN"}), ("show", {})]
    written = [("note", {"text": "x"}), ("read", {}), ("keep", {"text": "x"})]
    (seen,) = called(servers, [keep, *told, *written])
    assert [each.text for each in seen[:-1]] == [
        "./a.txt: old new",
        "[key]",
        "unset",
        "a text\n[image, image/png, about 300 bytes]\na document",
        "1: x",
        "x",
    ]
    assert not seen[-1].ok, "an argument is missing"
    assert (tmp_path / "work" / "a.txt").read_text("utf-8") == "old "
    assert servers.settings()["notes"]["tools"]["read"] == {"says_read_only": True}
    assert KEY not in repr(servers) + json.dumps(servers.settings())


def test_a_server_by_its_address_has_a_session_for_each_rollout():
    with sums() as served:
        given = {"sums": {"url": served.url, "headers": {"Authorization": f"Bearer {KEY}"}}}
        servers = tl.MCP(given, effects="none")
        add, attacks = ("add", {"number": 3}), ["flood", "gzip", "redirect", "html", "break"]
        first, second, *bad = called(servers, [add, ("echo", {})], [add], *([add, (name, {})] for name in attacks))
        assert first[0].text == second[0].text == "total 3"
        assert "Authorization" in first[1].text
        assert KEY not in first[1].text
        assert served.keys == {f"Bearer {KEY}"}
        for seen in bad:
            assert seen[0].text == "total 3"
            assert seen[1].text.startswith("Error: the MCP server sums ")
        assert {"s0", "s1", "s2"} <= served.ended
        servers.check_forks(TreeGRPO())
        with pytest.raises(ConfigError, match="MCP server sums would be called again for a fork"):
            tl.MCP(given).check_forks(TreeGRPO())
    with notes() as url:
        servers = tl.MCP(url, effects="none")
        with pytest.raises(ConfigError, match="knows no sessions: forks would share what it keeps"):
            servers.check_forks(TreeGRPO())
        servers.check_forks(Chain(2))
        free = tl.MCP(url, stateless=True)
        free.check_forks(TreeGRPO())
        assert not any(tool.replayed for tool in (*servers.tools, *free.tools))
        ((seen,),) = called(free, [("note", {"text": "x"})])
        assert seen.text.endswith(": x")


def test_servers_and_tools_cross_without_their_values(tmp_path: Path):
    path = tmp_path / "servers.json"
    path.write_text(json.dumps({"mcpServers": raw(RAW_KEY=KEY)}), "utf-8")
    servers = tl.MCP(path, effects="none")
    agent = tl.Agent(model="m", tools=[servers])
    crossed = [pack(part, "part", by_value=False) for part in (agent.environment, *agent.tools)]
    assert KEY not in repr(crossed)
    environment, *tools = map(load, crossed)
    assert tools == agent.tools
    assert pickle.loads(pickle.dumps(tools)) == tools
    assert environment.setup("raw") == servers.setup("raw"), "read again from the file"
    path.unlink()
    again = load(crossed[0])
    with pytest.raises(ConfigError, match="cannot be read"):
        again.setup("raw")
    again.receive(servers.secret)
    assert again.setup("raw").env["RAW_KEY"] == KEY
    assert servers.stored
    assert not tl.MCP(raw(RAW_KEY=KEY)).stored
    assert tl.MCP(raw()).stored


def test_servers_of_several_are_one_environment_and_names_must_differ():
    one, other = tl.MCP(raw()), tl.MCP(raw(name="second"))
    with pytest.raises(ConfigError, match=r'raw both have a tool that is called add here: take it from one.*"tools"'):
        merged([one, other])
    with pytest.raises(ConfigError, match="two servers are called raw"):
        merged([one, one])
    part = raw(name="second")
    part["second"]["tools"] = ["look"]
    first = raw()
    first["raw"]["tools"] = ["add"]
    agent = tl.Agent(model="m", tools=[tl.MCP(first), tl.MCP(part)])
    assert [tool.name for tool in agent.tools] == ["add", "look"]
    assert set(agent.environment.settings()) == {"raw", "second"}
    with pytest.raises(ConfigError, match="which has one: leave environment="):
        tl.Agent(model="m", tools=[one], environment=tl.Environment)


COMMAND = {"command": RAW[0], "args": [*RAW[1:], "plain"]}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nowhere.json", "nowhere.json cannot be read: No such file"),
        (7, "takes the path of a file, an address or a dict, not 7"),
        ({}, "at least one server"),
        ({"mcpServers": {}, "more": 1}, "'more' stands beside mcpServers"),
        ({"a b": COMMAND}, "a server's name must be 1 to 64"),
        ({"raw": "python"}, "MCP server raw must be"),
        ({"raw": {}}, "has neither command nor url"),
        ({"raw": COMMAND | {"enviroment": {}}}, "'enviroment' is no key"),
        ({"raw": {"url": "http://x", "args": []}}, "'args' is no key.*with url there are url, headers"),
        ({"raw": COMMAND | {"type": "sse"}}, "type is 'sse', which does not go with command"),
        ({"raw": COMMAND | {"env": {"A": 1}}}, "env, A: give a printable text"),
        ({"raw": COMMAND | {"env": {"A": "${NO_SUCH_VARIABLE}"}}}, "NO_SUCH_VARIABLE} is not set"),
        ({"raw": COMMAND | {"args": ["--api-key", KEY, "${HOME}"]}}, "args hold what looks like a key"),
        ({"raw": {"url": f"http://x/?a=${{HOME}}&key={KEY}"}}, "its url holds what looks like a key"),
        ({"raw": COMMAND | {"effects": "some"}}, "effects must be"),
        ({"raw": COMMAND | {"stateless": 1}}, "stateless must be"),
        ({"raw": COMMAND | {"tools": ["other"]}}, "has no tool 'other', which its tools name; it lists add, look"),
        ({"raw": {"command": "no-such-command"}}, "there is no command 'no-such-command'"),
        ({"raw": {"command": sys.executable, "args": ["-c", "exit(3)"]}}, "did not start: it ended with exit code 3"),
        ({"raw": {"url": "ftp://x"}}, "url must be http"),
        ({"raw": {"url": f"http://u:{KEY}@x/"}}, "looks like a key, which would be stored"),
        ({"raw": {"url": "http://127.0.0.1:9/mcp"}}, "MCP server raw did not start"),
        ({"raw": {"url": "http://x", "effects": "folder"}}, "a server by its address has no folder"),
        (raw("names"), "raw both have a tool that is called a_b"),
        (raw("schema"), "raw answered with what the protocol does not have"),
        (raw("huge"), "its tool 'huge' has a definition of"),
        (raw("none"), "lists no tools"),
    ],
)
def test_what_cannot_be_is_said_before_the_run(given: Any, said: str):
    with pytest.raises(ConfigError, match=said) as caught:
        tl.MCP(given)
    assert KEY not in str(caught.value)


def test_a_folder_that_no_server_has_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="folder is copied for effects='folder', which no server has"):
        tl.MCP(raw(), effects="none", folder=str(tmp_path))


def test_tools_without_their_servers_are_refused():
    with pytest.raises(ConfigError, match=r"set environment=SERVERS, the tl\.MCP that the tool is of"):
        tl.Agent(model="m", tools=tl.MCP(raw()).tools)
    servers = tl.MCP(raw())
    for tools in ([servers], [*servers.tools, servers], servers):
        with pytest.raises(ConfigError, match=r"tools=servers\.tools, and the team environment=servers"):
            tl.Role(tools=tools)


def test_a_server_that_hangs_at_its_start_is_left_by_an_interrupt(tmp_path: Path):
    log = tmp_path / "log"
    hang = f"import os, time; open({str(log)!r}, 'w').write(f'{{os.getpid()}}.'); time.sleep(1000)"

    def interrupt() -> None:
        wait_for(lambda: log.exists() and log.read_text("utf-8").endswith("."))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        tl.MCP({"slow": {"command": sys.executable, "args": ["-c", hang]}})
    thread.join()
    assert not Path("/proc", log.read_text("utf-8").rstrip(".")).exists()
