"""Containers as environments, by a program that stands for Docker: real processes, and nothing is left of any."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_docker
import pytest
from commanders import commander, count_notes, run_or_die
from foreign import serving

import trunkline as tl
from trunkline.errors import ConfigError
from trunkline.runner.run import run as run_tasks
from trunkline.tools.environments import container as container_module
from trunkline.tools.environments.container import Container, ContainerWorkspace
from trunkline.tools.environments.container_guard import Guard
from trunkline.tools.toolbox import Toolbox
from trunkline.types import Task, Termination

TASKS = [Task.ask(f"Write about {name}.", "yes", id=name) for name in ("ants", "bees", "cats")]


class Engine:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "docker"
        self.program.write_text(f"#!{sys.executable}\n" + Path(fake_docker.__file__).read_text())
        self.program.chmod(0o755)
        for name in ("containers", "images"):
            (folder / name).mkdir()

    @property
    def left(self) -> list[str]:
        return [one.name for kind in ("containers", "images") for one in (self.folder / kind).iterdir()]

    def calls(self, verb: str) -> list[list[str]]:
        lines = (self.folder / "calls").read_text().splitlines()
        return [words for line in lines if (words := json.loads(line))[0] == verb]

    def box(self, image: str = "python:3", **options: Any) -> Container:
        return Container(image=image, engine=str(self.program), **options)


def until(true: Any) -> bool:
    deadline = time.monotonic() + 60
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(true())


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    folder = tmp_path / "engine"
    folder.mkdir()
    monkeypatch.setenv("FAKE_DOCKER", str(folder))
    made = Engine(folder)
    yield made
    for program in [*Guard._known]:
        Guard._known.pop(program).close()
    assert made.left == []


async def opened(box: Container) -> ContainerWorkspace:
    workspace = box()
    await workspace.fresh(TASKS[0])
    return workspace


async def test_commands_and_files(engine: Engine):
    workspace = await opened(engine.box(memory="64MB", cpus=1.5, network="bridge", workdir="/srv", user="1000:1000"))
    assert await workspace.run("echo one; echo two >&2; exit 4") == "one\ntwo\n[exit code 4]"
    assert await workspace.run("printf 'a\\377b'") == "a\ufffdb"
    await workspace.write_file("deep/er/-n", "x\udc80\n$(touch pwned)")
    assert await workspace.read_file("deep/er/-n") == "x?\n$(touch pwned)"
    hostile = "'; touch pwned; echo $(id) `id` \"\n--privileged"
    await workspace.write_file(hostile, "")
    assert await workspace.read_file(hostile) == ""
    assert await workspace.run("test -e pwned || echo safe") == "safe\n"
    with pytest.raises(RuntimeError, match="cannot read nothing"):
        await workspace.read_file("nothing")
    for text in ("", "a\0b", "x" * 200_000):
        with pytest.raises(ValueError, match="1 to 100,000 bytes and no NUL"):
            await workspace.run(text)
    await workspace.close()
    assert engine.left == []
    (made,) = engine.calls("create")
    name = made[1].removeprefix("--name=")
    assert made[1:] == [
        f"--name={name}", "--entrypoint=sleep", "--init", "--label=trunkline", "--network=bridge", "--memory=64000000b",
        "--memory-swap=64000000b", "--pids-limit=256", "--security-opt=no-new-privileges", "--cpus=1.5",
        "python:3", "2147483647",
    ]  # fmt: skip
    assert engine.calls("exec")[0] == [
        "exec", "--workdir=/srv", "--user=1000:1000", name, "/bin/sh", "-c", "echo one; echo two >&2; exit 4"
    ]  # fmt: skip


async def test_output_without_end_is_bounded_and_a_command_that_hangs_is_stopped(engine: Engine):
    workspace = await opened(engine.box(output=1000))
    assert await workspace.run("head -c 5000000 /dev/zero | tr '\\0' x") == (
        "x" * 1000 + "\n[output beyond 1,000 bytes is left out]"
    )
    await workspace.close()
    workspace = await opened(engine.box(seconds=2))
    said = await workspace.run("echo kept > file; sleep 1000; echo never")
    assert said == "[stopped after 2 s; its files are kept]"
    assert await workspace.run("cat file") == "kept\n"
    assert engine.calls("restart")
    await workspace.close()


async def test_a_container_that_ends_is_started_again_and_one_that_is_gone_is_an_error(engine: Engine):
    workspace = await opened(engine.box())
    (name,) = engine.left
    (engine.folder / "containers" / name / "running").unlink()
    assert (await workspace.run("echo x")).endswith("[exit code 1; the container had ended, and was started again]")
    assert await workspace.run("echo x") == "x\n"
    shutil.rmtree(engine.folder / "containers" / name)
    with pytest.raises(RuntimeError, match="docker start failed: Error response from daemon: No such container"):
        await workspace.run("echo x")
    await workspace.close()


@pytest.mark.parametrize("image", ["broken", "frail", "slow"])
async def test_one_that_cannot_be_made_fails_its_rollout_and_is_removed(engine: Engine, image: str, monkeypatch):
    monkeypatch.setattr(container_module, "_PATIENCE", 2.0 if image == "slow" else 60.0)
    toolbox, workspace = Toolbox(), engine.box(image)()
    with pytest.raises(tl.errors.EnvironmentFailed) as failed:
        await toolbox.manage(workspace, "fresh", TASKS[0])
    assert str(failed.value).isprintable()
    await toolbox.manage(workspace, "close")
    assert engine.left == []


async def test_a_saved_state_is_removed_with_the_last_reference(engine: Engine):
    workspace = await opened(engine.box(snapshot=True))
    await workspace.run("echo a > file")
    saved = await workspace.snapshot()
    await workspace.run("echo b > file")
    other = engine.box(snapshot=True)()
    await other.start()  # as a pool does ahead
    await other.restore(saved)
    assert [await one.run("cat file") for one in (workspace, other)] == ["b\n", "a\n"]
    await workspace.close()
    await other.close()
    (image,) = engine.left
    assert image.startswith("localhost@trunkline@")
    del saved
    assert until(lambda: engine.left == [])


def test_a_machine_without_an_engine_is_told_before_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="'docker' and 'podman' are no program here: install Docker or Podman"):
        Container(image="python:3")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"image": "--privileged"}, "image must be a name or path, not '--privileged'"),
        ({"image": ""}, "image must be a name or path, not ''"),
        ({"network": "-x"}, "network must be a name or path"),
        ({"command": []}, "command must be a list of words"),
        ({"memory": 5}, "memory must be a size of at least"),
        ({"seconds": 0}, "seconds must be"),
        ({"engine": "no-such-engine"}, "'no-such-engine' is no program here"),
    ],
)
def test_a_mistake_is_named(engine: Engine, options: dict[str, Any], words: str):
    with pytest.raises(ConfigError) as refused:
        Container(**{"image": "a", "engine": str(engine.program)} | options)
    assert words in str(refused.value)


def grown(url: str, environment: Any, workers: int, tools: Any = None) -> tl.Run:
    return run_tasks(
        tl.Agent(
            model="m",
            tools=[tl.environments.run, tl.environments.write_file] if tools is None else tools,
            environment=environment,
        ),
        TASKS,
        llm=url,
        strategy=tl.TreeGRPO(trees=2, forks=1, rounds=1),
        reward=count_notes,
        workers=workers,
        seed=11,
    )


def test_trees_are_the_same_by_replay_by_commit_in_a_pool_and_for_any_number_of_workers(engine: Engine):
    with serving(commander) as server:
        plain = grown(server.url, engine.box(), 0)
        digests = {tree.task.id: tree.digest() for tree in plain}
        assert {rollout.termination for tree in plain for rollout in tree.rollouts} == {Termination.ANSWER}
        for environment, workers in (
            (engine.box(snapshot=True), 0),
            (tl.EnvironmentPool(engine.box(snapshot=True), size=2, warm=1), 2),
        ):
            found = grown(server.url, environment, workers)
            assert {tree.task.id: tree.digest() for tree in found} == digests
        # An image is removed with its last reference, which may be in a cycle.
        assert until(lambda: gc.collect() >= 0 and engine.left == [])


def test_a_worker_that_is_killed_leaves_no_container(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DIED_ONCE", str(tmp_path / "died"))
    with serving(commander) as server:
        tools = [run_or_die, tl.environments.write_file]
        plain = grown(server.url, engine.box(), 2, tools=tools)
    assert (tmp_path / "died").exists()
    assert {rollout.termination for tree in plain for rollout in tree.rollouts} == {Termination.ANSWER}
    assert until(lambda: engine.left == [])


SCRIPT = """
import asyncio, sys
import trunkline as tl

async def main():
    box = tl.environments.Container(image="a", engine=sys.argv[1], snapshot=True)
    workspace = box()
    await workspace.fresh(None)
    kept = await workspace.snapshot()
    print("ready", flush=True)
    await workspace.run("touch started; sleep 1000")

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_is_killed_leaves_no_container_and_no_image(engine: Engine, number: int):
    words = [sys.executable, "-c", SCRIPT, str(engine.program)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=os.environ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert until(lambda: list(engine.folder.glob("containers/*/files/started")))
        assert len(engine.left) == 2
        process.send_signal(number)
    assert until(lambda: engine.left == [])
