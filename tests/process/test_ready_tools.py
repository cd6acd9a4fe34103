"""Tools of the library in a sandbox: variables that last, files of a folder, hostile code, forks and deaths."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from foreign import serving
from handy import count_words, decided, decided_or_die, handy

import trunkline as tl
from trunkline._internal.processes import descendants
from trunkline.errors import ConfigError
from trunkline.tools.environments.sandbox import SandboxSettings, SandboxWorkspace

TASK = tl.Task.ask("Say ants.", "yes", id="ants")

try:
    SandboxSettings()
except ConfigError as refused:
    pytest.skip(str(refused), allow_module_level=True)


async def opened(**options: Any) -> SandboxWorkspace:
    workspace = SandboxSettings(**options)()
    await workspace.fresh(TASK)
    return workspace


async def tried(work: Any) -> str:
    """What a call says, or how it failed."""
    try:
        return await work
    except RuntimeError as error:
        return str(error)


TICKING = """
import threading, time
ticks = [time.monotonic()]
def tick():
    while True:
        time.sleep(.001)
        ticks.append(time.monotonic())
def longest():
    return max(later - earlier for earlier, later in zip(ticks, ticks[1:]))
threading.Thread(target=tick, daemon=True).start()
"""


async def test_variables_and_files_last_and_are_seen_by_all_tools():
    workspace = await opened()
    try:
        assert await workspace.run_python("x = 3\nx * 7") == "21\n"
        assert (
            await workspace.run_python("open('a', 'w').write('hi'); x += 1; object()") == "<object object at 0x...>\n"
        )
        assert await workspace.run("cat a; echo new > b") == "hi"
        await workspace.edit_file("b", "new", "edited")
        said = await workspace.run_python("print(open('b').read(), x)\ndef f():\n    return 1 / 0\nf()")
        assert said.startswith(
            'edited\n 4\nTraceback (most recent call last):\n  File "<call 3>", line 4, in <module>\n'
        )
        assert said.endswith("ZeroDivisionError: division by zero\n")
        assert await workspace.list_files() == "a  2 bytes\nb  7 bytes"
        # A file that its owner may not read takes no other one with it.
        await workspace.run("mkdir -p sub/deep; echo 1 > sub/a; echo 2 > sub/b; echo 3 > sub/deep/c; chmod 0 sub/a")
        assert (await workspace.list_files("sub")).splitlines() == ["b  2 bytes", "deep/", "deep/c  2 bytes"]
        assert await workspace.snapshot() is None
        # The folder that code is in stays the same one when another tool changes files.
        await workspace.run_python("import os; os.chdir('sub/deep')")
        await workspace.run("echo 4 > d; rm b")
        said = await workspace.run_python("sorted(os.listdir('.')), sorted(os.listdir('../..')), os.chdir('../..')")
        assert said == "(['c'], ['a', 'd', 'sub'], None)\n"
        # What code leaves running is stopped between calls.
        assert await workspace.run_python(TICKING) == ""
        await asyncio.sleep(0.5)
        assert (
            await workspace.run_python("seen = len(ticks)\nwhile len(ticks) == seen: pass\nlongest() > .4") == "True\n"
        )
        await workspace.reset(TASK)
        assert await workspace.run_python("import random\n'x' in globals(), random.random()") != ""
        assert await workspace.list_files() == "[empty]"
    finally:
        await workspace.close()


HOSTILE = [
    ("import threading\ndef talk():\n  while 1: print('on')\nthreading.Thread(target=talk).start()", ""),
    ("import os; os._exit(3)", "[the interpreter ended with exit code 3; the variables are gone]"),
    ("import os; os.kill(os.getppid(), 9)", "the interpreter is gone, with its variables: the program was killed by"),
    ("import os; os.kill(-1, 9)", "the interpreter is gone, with its variables: the program was killed by"),
    ("import os\nwhile True: os.fork()", "Resource temporarily unavailable"),
    ("x = bytearray(10 ** 10)", "MemoryError"),
    ("print('x' * 10 ** 7)", "[output beyond 1,048,576 bytes is left out]"),
    ("input()", "EOFError"),
    ("import socket; socket.create_connection(('192.0.2.1', 80), 2)", "unreachable"),
    ("open('/usr/x', 'w')", "Read-only file system"),
    ("open('big', 'wb').write(b'x' * 20_000_000 + __import__('os').urandom(20_000_000))", ""),
    ("import os; os.chmod('.', 0)", "the interpreter is gone"),
    ("import os\nfor n in range(3, 99):\n  try: os.write(n, b'.' * 99)\n  except OSError: pass", ""),
    ("import os\nfor n in range(99):\n  try: os.close(n)\n  except OSError: pass", "the variables are gone"),
    ("import os, sys; sys.stdout.close(); sys.stderr = None; os.close(1); os.close(2)", ""),
    ("this is no code", "SyntaxError"),
    ("raise SystemExit(3)", "SystemExit: 3"),
]


async def test_hostile_code_harms_its_own_variables_at_most():
    workspace = await opened(seconds=0.5)
    try:
        said = await workspace.run_python("import time; x = 1; time.sleep(99)")
        assert said == "[stopped after 0.5 s; the variables are gone]"
    finally:
        await workspace.close()
    workspace = await opened(processes=32)
    try:
        await workspace.write_file("kept", "kept")
        for code, words in HOSTILE:
            assert words in await tried(workspace.run_python(code)), code
        for _ in range(2):  # the first may still read what was forged
            said = await tried(workspace.run_python("print(open('kept').read())"))
        assert said.endswith("kept\n")
    finally:
        await workspace.close()
    assert not [pid for pid in descendants(os.getpid()) if "supervisor" in Path(f"/proc/{pid}/cmdline").read_text()]


async def test_files_are_those_below_the_folder(tmp_path: Path):
    (tmp_path / "data" / "sub").mkdir(parents=True)
    (tmp_path / "data" / "sub" / "note").write_text("one two two")
    workspace = await opened(folder=tmp_path / "data")
    try:
        await workspace.run("mkfifo pipe; ln -s /etc etc; ln -s sub below; ln -s sub/note link; mkdir deep")
        for path in ("pipe", "etc/ld.so.cache", "below/note", "link", "../main.py", "/dev/zero", "sub", "sub/note/x"):
            assert (await tried(workspace.read_file(path))).startswith(f"cannot read {path}: "), path
        for path in ("pipe", "below/note", "link", "../main.py", "sub"):
            assert (await tried(workspace.write_file(path, "x"))).startswith(f"cannot write {path}: "), path
        for path in ("etc", ".."):
            assert (await tried(workspace.list_files(path))).startswith(f"cannot list {path}: "), path
        assert "links are not followed" in await tried(workspace.edit_file("link", "one", "1"))
        assert "occurs 2 times" in await tried(workspace.edit_file("sub/note", "two", "2"))
        await workspace.edit_file("/work/files/sub/note", "one ", "1 ")
        assert await workspace.read_file("./sub//note") == "1 two two"
        assert (await workspace.list_files()).endswith("sub/note  9 bytes")
        assert (tmp_path / "data" / "sub" / "note").read_text() == "one two two"
    finally:
        await workspace.close()
    (tmp_path / "data" / "link").symlink_to("/etc/passwd")
    for folder, words in ((tmp_path / "data", "is a link or a device"), (tmp_path / "none", "is no folder")):
        with pytest.raises(ConfigError, match=words):
            SandboxSettings(folder=folder)


def grown(url: str, hook: Any, workers: int) -> tl.Run:
    agent = tl.Agent(
        model="m",
        tools=[tl.tools.python(), tl.tools.shell(), tl.tools.files(), "calculator"],
        before_tool=hook,
    )
    strategy = tl.TreeGRPO(trees=2, forks=2)
    return tl.run(agent, [TASK], llm=url, strategy=strategy, reward=count_words, workers=workers, seed=3)


def test_forks_have_the_variables_of_their_fork_point_also_when_workers_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DIED_ONCE", str(tmp_path / "died"))
    with serving(handy) as server:
        plain = grown(server.url, decided, 0)
        died = grown(server.url, decided_or_die, 2)
    (tree,) = plain
    assert {rollout.termination for rollout in tree.rollouts} == {tl.Termination.ANSWER}
    assert any(len(rollout.path) > 2 for rollout in tree.rollouts)
    for rollout in tree.rollouts:
        refused = {(one.turn, one.index): one for one in rollout.tool_decisions if one.refusal is not None}
        said = [str(message["content"]) for message in rollout.messages if message["role"] == "tool"]
        asked = [
            call["function"]
            for message in rollout.messages
            for call in message.get("tool_calls", ())
            if call["function"]["name"] == "python"
        ]
        # What was refused is no word of the interpreter's, in forks neither.
        assert rollout.reward == len(asked) - sum("no e in task ants" in text for text in said)
        assert len(refused) == sum(text == "no e in task ants" for text in said)
    assert [one.tool_decisions for one in died["ants"].rollouts] == [one.tool_decisions for one in tree.rollouts]
    assert died["ants"].digest() == tree.digest()
    assert any(rollout.tool_decisions for rollout in tree.rollouts)
