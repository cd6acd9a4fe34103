"""A sandbox as an environment: files last, and nothing else does; what is confined, and how it fails."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from commanders import commander, count_notes, run_or_die
from foreign import serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trunkline as tl
from trunkline._internal.processes import descendants
from trunkline.errors import ConfigError
from trunkline.runner.run import run as run_tasks
from trunkline.tools.environments import sandbox as sandbox_module
from trunkline.tools.environments.sandbox import SandboxSettings, SandboxWorkspace
from trunkline.tools.isolation.sandbox import NoWay
from trunkline.types import Task, Termination

TASKS = [Task.ask(f"Write about {name}.", "yes", id=name) for name in ("ants", "bees", "cats")]

try:
    SandboxSettings()
except ConfigError as refused:
    pytest.skip(str(refused), allow_module_level=True)


async def opened(**options: Any) -> SandboxWorkspace:
    workspace = SandboxSettings(**options)()
    await workspace.fresh(TASKS[0])
    return workspace


async def test_files_last_and_processes_do_not():
    workspace = await opened()
    try:
        assert (
            await workspace.run("echo a > one; mkdir two; ln -s ../one two/link; chmod 700 one; exit 3")
            == "[exit code 3]"
        )
        assert await workspace.run("cat two/link; stat -c %a one; echo x >&2") == "a\n700\nx\n"
        assert await workspace.run("(sleep 1; echo late > one) & sleep 0.1; echo now") == "now\n"
        assert await workspace.run("sleep 2; cat one; ls /proc 2>&1 | wc -l") == "a\n1\n"
        await workspace.write_file("deep/-x\n'", "h\u00e9\udc80\0")
        assert await workspace.read_file("deep/-x\n'") == "h\u00e9\ufffd\0"
        for path in ("nothing", "two", "/proc/1/environ"):
            with pytest.raises(RuntimeError, match="cannot read "):
                await workspace.read_file(path)
    finally:
        await workspace.close()


async def test_a_command_that_takes_too_long_is_stopped():
    workspace = await opened(seconds=1)
    try:
        assert await workspace.run("sleep 1000 & exec sleep 1000") == "[stopped after 1 s]"
    finally:
        await workspace.close()


async def test_a_command_sees_nothing_of_this_user_and_no_network(tmp_path: Path):
    (tmp_path / "secret").write_text("s")
    workspace = await opened()
    try:
        assert await workspace.run(f"cat {tmp_path}/secret; env") != ""
        assert "No such file" in await workspace.run(f"cat {tmp_path}/secret")
        assert "TRUNKLINE" not in await workspace.run("env")
        code = "import socket; socket.create_connection(('192.0.2.1', 80), 2)"
        assert "unreachable" in await workspace.run(f'{sys.executable} -c "{code}" 2>&1')
        assert "[exit code" in await workspace.run("echo x > /usr/x")
    finally:
        await workspace.close()


async def test_files_beyond_the_bound_and_output_without_end_are_dropped():
    workspace = await opened(disk="1MB", output=1000)
    try:
        await workspace.run("echo kept > file")
        said = await workspace.run("rm file; head -c 1500000 /dev/urandom > big; echo done")
        assert said == "done\n[exit code 0; its files would be more than 1,000,000 bytes: they are as before it]"
        assert await workspace.run("ls") == "file\n"
        with pytest.raises(RuntimeError, match="cannot write big: more than 1,000,000 bytes of files"):
            await workspace.write_file("big", "x" * 1_100_000)
        assert await workspace.run("yes | head -c 3000000") == "y\n" * 500 + "\n[output beyond 1,000 bytes is left out]"
    finally:
        await workspace.close()


HOSTILE = [
    ":(){ :|:& };:",
    "kill -9 $PPID",
    "kill -9 -1",
    "for i in 1 2 3 4 5 6 7 8 9; do yes flood | head -c 1000000 > /proc/$PPID/fd/1; done",
    "rm -rf ../main.py; rm -rf ../files",
    "mkfifo pipe; ln -s /dev/zero zero; ln -s / root; python3 -c 'import os; os.mknod(\"s\", 0o140644)'",
    "mkdir -p a; chmod 0 a; chmod 0 .",
    "exec 1>&- 2>&-; sleep 1",
    "dd if=/dev/zero of=full bs=1M; rm -f full",
    'printf \'{"output": "", "code": 0, "files": "AAAA"}\' > /proc/$PPID/fd/1; kill -9 $PPID',
]


@pytest.mark.parametrize("command", HOSTILE)
async def test_a_hostile_command_harms_its_own_files_at_most(command: str):
    workspace = await opened(seconds=20, processes=32)
    try:
        await workspace.run("echo kept > file")
        try:
            await workspace.run(command)
        except RuntimeError as error:
            assert str(error).isprintable()  # noqa: PT017
        await workspace.reset(TASKS[0])
        assert await workspace.run("ls; echo works") == "works\n"
    finally:
        await workspace.close()
    assert not supervisors()


def supervisors() -> list[int]:
    """Processes below this one that confine commands."""
    found = []
    for pid in descendants(os.getpid()):
        with suppress(OSError):
            if "sandbox_supervisor" in Path(f"/proc/{pid}/cmdline").read_text():
                found.append(pid)
    return found


@given(st.lists(st.tuples(st.sampled_from("abc"), st.text(max_size=20) | st.none() | st.just("!")), max_size=8))
@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.too_slow])
def test_snapshots_are_the_files_of_their_time(script: list[tuple[str, str | None]]):
    async def play() -> None:
        workspace = await opened()
        files: dict[str, str] = {}
        saved, then = await workspace.snapshot(), dict(files)
        for name, content in script:
            if content is None:
                saved, then = await workspace.snapshot(), dict(files)
            elif content == "!":
                await workspace.restore(saved)
                files = dict(then)
            else:
                await workspace.write_file(name, content)
                files[name] = content.encode("utf-8", "replace").decode()
            assert (await workspace.run("ls")).split() == sorted(files)
        for name, content in files.items():
            assert await workspace.read_file(name) == content
        await workspace.close()

    asyncio.run(play())


def test_a_machine_that_cannot_confine_is_told_before_the_run(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> str:
        raise NoWay("root: this is not root; user: namespaces: not permitted")

    monkeypatch.setattr(sandbox_module, "find_way", refuse)
    with pytest.raises(
        ConfigError, match="commands cannot be confined here with network='none': root: this is not root"
    ):
        SandboxSettings()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seconds": 0}, "seconds must be"),
        ({"memory": "1MB"}, "memory must be a size of at least"),
        ({"disk": "1GB"}, "disk must be at most"),
        ({"network": "bridge"}, "network must be none or all, not 'bridge'"),
        ({"processes": 1}, "processes must be a whole number of at least 16"),
    ],
)
def test_a_mistake_is_named(options: dict[str, Any], words: str):
    with pytest.raises(ConfigError) as refused:
        SandboxSettings(**options)
    assert words in str(refused.value)


def grown(url: str, environment: Any, workers: int, run: Any = None) -> tl.Run:
    tools = [run or tl.environments.run, tl.environments.write_file]
    return run_tasks(
        tl.Agent(model="m", tools=tools, environment=environment),
        TASKS,
        llm=url,
        strategy=tl.TreeGRPO(trees=2, forks=1, rounds=1),
        reward=count_notes,
        workers=workers,
        seed=11,
    )


def test_trees_are_the_same_in_a_pool_and_for_any_number_of_workers():
    box = tl.environments.Sandbox()
    with serving(commander) as server:
        plain = grown(server.url, box, 0)
        digests = {tree.task.id: tree.digest() for tree in plain}
        assert {rollout.termination for tree in plain for rollout in tree.rollouts} == {Termination.ANSWER}
        pooled = grown(server.url, tl.EnvironmentPool(box, size=2, warm=1, reset=True, max_uses=3), 2)
        assert {tree.task.id: tree.digest() for tree in pooled} == digests


def test_a_worker_that_is_killed_leaves_no_process_and_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("DIED_ONCE", str(tmp_path / "died"))
    with serving(commander) as server:
        done = grown(server.url, tl.EnvironmentPool(tl.environments.Sandbox(), size=2), 2, run_or_die)
    assert (tmp_path / "died").exists()
    assert {rollout.termination for tree in done for rollout in tree.rollouts} == {Termination.ANSWER}
    deadline = time.monotonic() + 60
    while (left := list((tmp_path / "tmp").glob("trunkline-code-*"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []
    assert not supervisors()


SCRIPT = """
import asyncio
import trunkline as tl

async def main():
    workspace = tl.environments.Sandbox()()
    await workspace.fresh(None)
    print("ready", flush=True)
    await workspace.run("sleep 1000")

asyncio.run(main())
"""


def test_a_process_that_is_killed_leaves_no_process_and_no_folder(tmp_path: Path):
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, env=os.environ | {"TMPDIR": str(tmp_path)}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        deadline = time.monotonic() + 60
        while len(below := descendants(process.pid)) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    while time.monotonic() < deadline and (
        [pid for pid in below if Path(f"/proc/{pid}").exists()] or list(tmp_path.iterdir())
    ):
        time.sleep(0.05)
    assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]
    assert list(tmp_path.iterdir()) == []
