"""Processes and folders that tools leave behind in workers go with the call, the worker and the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from atlas import agent, tasks
from foreign import calls_the_tool, serving
from perils import gone_within, leave_daemon, leave_daemon_and_wait, live, peril
from places import python_path

from trunkline._internal.processes import children
from trunkline.llm.config import LLM
from trunkline.runner.run import run
from trunkline.tools.toolbox import Toolbox


@pytest.fixture
def marker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """What the environment of every process of this test carries."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TRUNKLINE_TEST_MARK", f"{tmp_path.name}-{os.getpid()}")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return f"TRUNKLINE_TEST_MARK={tmp_path.name}-{os.getpid()}"


@pytest.mark.breaks_rollouts
def test_daemons_of_tools_end_with_their_worker_whether_it_leaves_or_is_killed(
    marker: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    with serving(calls_the_tool) as server:
        result = run(
            agent(tools=[leave_daemon]),
            tasks(),
            llm=LLM(server.url, max_concurrency=8),
            workers=2,
            out=tmp_path / "r",
        )
    assert [tree.task.id for tree in result if tree.rollouts[0].error] == ["Brazil"]
    assert live(marker) == []
    said = capfd.readouterr().err
    assert "\\x1b]0;France\\x07\n" in said, "a tool's print is shown"
    assert "\x1b" not in said
    assert "\x07" not in said


RUN = """
import sys
import perils
from atlas import agent, tasks
from trunkline.llm.config import LLM
from trunkline.runner.run import run
calm = [task for task in tasks() if task.id != "Brazil"]
run(agent(tools=[getattr(perils, sys.argv[3])]), calm, llm=LLM(sys.argv[1]), workers=1, out=sys.argv[2])
"""


def started(url: str, out: Path, tool: str) -> subprocess.Popen[bytes]:
    env = os.environ | {"PYTHONPATH": python_path()}
    return subprocess.Popen([sys.executable, "-c", RUN, url, str(out), tool], env=env)


def until(condition: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def kill(pids: list[int], by: signal.Signals = signal.SIGKILL) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, by)


def test_daemons_of_tools_end_with_a_controller_that_is_killed(marker: str, tmp_path: Path):
    answered = []

    def hold(body: dict) -> dict:
        if body["messages"][-1]["role"] == "tool":
            answered.append(body)
            time.sleep(0.5)
        return calls_the_tool(body)

    with serving(hold) as server:
        process = started(server.url, tmp_path / "r", "leave_daemon")
        try:
            until(lambda: answered, process)
            assert len(live(marker)) > 2
        finally:
            process.kill()
            process.wait()
        assert gone_within(marker, 30)


@pytest.mark.parametrize("killed", ["controller", "worker and controller"])
def test_folders_of_isolated_tools_go_whoever_is_killed(marker: str, tmp_path: Path, killed: str):
    folders = tmp_path / "tmp"
    with serving(calls_the_tool) as server:
        process = started(server.url, tmp_path / "r", "leave_daemon_and_wait")
        try:
            until(lambda: list(folders.iterdir()), process)
        finally:
            kill([process.pid] if killed == "controller" else [process.pid, *children(process.pid)])
            process.wait()
    assert gone_within(marker, 30)
    assert list(folders.iterdir()) == []


async def test_a_guard_that_its_tool_kills_leaves_neither_process_nor_folder(marker: str, tmp_path: Path):
    box = Toolbox([leave_daemon_and_wait])
    seen = await box.call("lookup", '{"country": "Brazil"}')
    assert seen.text == "Error: lookup ended without a word."
    assert live(marker) == []
    assert list((tmp_path / "tmp").iterdir()) == []
    await box.close()


async def test_the_next_start_removes_the_folder_of_a_guard_that_died_with_its_worker(marker: str, tmp_path: Path):
    folders = tmp_path / "tmp"
    with serving(calls_the_tool) as server:
        process = started(server.url, tmp_path / "r", "leave_daemon_and_wait")
        try:
            until(lambda: list(folders.iterdir()), process)
        finally:
            # All of them at one moment: a guard that sees another end removes its folder.
            for _ in range(2):
                kill([process.pid, *live(marker)], signal.SIGSTOP)
            kill([process.pid, *live(marker)])
            process.wait()
    old = set(folders.iterdir())
    assert old
    assert gone_within(marker, 30)
    box = Toolbox([peril])
    await box.call("peril", '{"deed": "pid"}')
    assert not old & set(folders.iterdir())
    await box.close()
    assert list(folders.iterdir()) == []
