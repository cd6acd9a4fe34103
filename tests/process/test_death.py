"""Workers and controllers that are killed."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from atlas import CAPITALS, agent, suicide, tasks
from click.testing import CliRunner
from foreign import calls_the_tool, capital_cities, serving
from places import python_path

from trunkline.cli.app import app
from trunkline.llm.config import LLM
from trunkline.runner.run import run
from trunkline.scoring.rewards import exact_match
from trunkline.store.reader import RunReader
from trunkline.types import Termination

CONTROLLER = """
import sys
import atlas
from trunkline.llm.config import LLM
from trunkline.runner.run import run
who = atlas.agent(tools=[getattr(atlas, sys.argv[3])])
run(who, atlas.tasks(), llm=LLM(sys.argv[1], max_concurrency=8), workers=2, out=sys.argv[2])
"""


@pytest.mark.breaks_rollouts
def test_a_task_that_kills_two_workers_is_given_to_no_third_and_no_other_is_lost(tmp_path: Path):
    with serving(calls_the_tool) as server:
        result = run(
            agent(tools=[suicide]),
            tasks(),
            llm=LLM(server.url, max_concurrency=8),
            reward=exact_match,
            workers=2,
            out=tmp_path / "r",
        )
    lost = result["Brazil"].rollouts
    assert [r.termination for r in lost] == [Termination.LOST]
    assert lost[0].error.message.count("SIGKILL") == 2
    assert (lost[0].error.kind, lost[0].error.retryable) == ("WorkerError", True)
    assert math.isnan(lost[0].reward)
    assert {t.task.id: t.answer for t in result if t.task.id != "Brazil"} == {
        name: capital for name, capital in CAPITALS.items() if name != "Brazil"
    }
    with RunReader.open(result.path) as reader:
        assert reader.check() == []
        events = list(reader.events())
        assert [event.task for event in events if event.kind == "quarantined"] == [1]
        assert 2 <= sum(event.kind == "died" for event in events) <= 6
    shown = CliRunner().invoke(app, ["show", str(result.path), "-v"]).output
    assert re.search(r"workers +[2-6] died, 1 task quarantined\n", shown)


def processes(marker: str) -> list[int]:
    """Live processes whose environment carries a marker."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (folder / "environ").read_bytes():
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                found += [int(folder.name)] if state != "Z" else []
        except OSError:
            continue
    return found


def started(marker: str, url: str, out: Path, tool: str) -> subprocess.Popen:
    """A run in a process of its own, with a marker in the environment of it and its children."""
    name, _, value = marker.partition("=")
    return subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, url, str(out), tool],
        env=os.environ | {name: value, "PYTHONPATH": python_path()},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def controller(tmp_path: Path):
    """A run whose turns are held up by the server until it is killed."""
    marker = f"TRUNKLINE_TEST_MARK={tmp_path.name}-{os.getpid()}"
    with serving(capital_cities, delay=0.4) as server:
        process = started(marker, server.url, tmp_path / "r", "lookup")
        deadline = time.monotonic() + 30
        while len(server.bodies) < 6:
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield process, marker
        process.kill()
        process.wait()
        process.stderr.close()


def gone_within(marker: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while processes(marker):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_no_orphans_after_kill_9_of_the_controller(controller, tmp_path: Path):
    process, marker = controller
    assert len(processes(marker)) == 3
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert gone_within(marker, 2)
    with RunReader.open(tmp_path / "r") as reader:
        assert reader.check() == []


def test_what_tools_have_started_does_not_outlive_the_controller(tmp_path: Path):
    marker = f"TRUNKLINE_TEST_MARK={tmp_path.name}-{os.getpid()}"
    with serving(capital_cities) as server:
        process = started(marker, server.url, tmp_path / "r", "starter")
        deadline = time.monotonic() + 30
        while len(processes(marker)) < 4:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.kill()
        process.wait()
        process.stderr.close()
    left = [] if gone_within(marker, 5) else [Path(f"/proc/{pid}/cmdline").read_text() for pid in processes(marker)]
    assert not left


def test_a_signal_stops_the_run_and_keeps_what_has_grown(controller, tmp_path: Path):
    process, marker = controller
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) != 0
    said = process.stderr.read()
    assert "stopped by SIGTERM" in said
    assert f"go on with: trunkline resume {tmp_path / 'r'}\n" in said
    assert gone_within(marker, 2)
    with RunReader.open(tmp_path / "r") as reader:
        assert reader.check() == []
        assert sum(len(reader.tree(task.id)) for task in reader.tasks()) > len(reader.tasks())
