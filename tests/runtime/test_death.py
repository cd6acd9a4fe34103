"""Workers and controllers that are killed."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from atlas import CAPITALS, agent, suicide, tasks
from foreign import capital_cities, message, serving

from trunkline.errors import WorkerError
from trunkline.llm.spec import EndpointSpec
from trunkline.runtime.run import run
from trunkline.score.rewards import exact_match
from trunkline.store.reader import RunReader
from trunkline.types import Termination

CONTROLLER = """
import sys
from atlas import agent, tasks
from trunkline.llm.spec import EndpointSpec
from trunkline.runtime.run import run
run(agent(), tasks(), llm=EndpointSpec(sys.argv[1], max_concurrency=8), workers=2, out=sys.argv[2])
"""


def call_the_tool(body: dict) -> dict:
    """Calls whatever tool there is, then answers."""
    if any(m["role"] == "tool" for m in body["messages"]):
        return capital_cities(body)
    country = body["messages"][0]["content"].removeprefix("Capital of ").rstrip("?")
    name = body["tools"][0]["function"]["name"]
    return message(None, [(name, json.dumps({"country": country}))])


def test_a_dead_worker_ends_its_tasks_and_no_others(tmp_path: Path):
    with serving(call_the_tool) as server:
        llm = EndpointSpec(server.url, max_concurrency=2)
        many = [t for t in tasks() if t.id != "Brazil"]
        brazil = next(t for t in tasks() if t.id == "Brazil")
        result = run(
            agent(tools=[suicide]), [brazil, *many], llm=llm, reward=exact_match, workers=2, out=tmp_path / "r"
        )
    lost = result["Brazil"].rollouts
    assert [r.termination for r in lost] == [Termination.LOST]
    assert "SIGKILL" in lost[0].error.message
    assert (lost[0].error.kind, lost[0].error.retryable) == ("WorkerError", True)
    assert math.isnan(lost[0].reward)
    done = {tree.task.id: tree.answer for tree in result if tree.rollouts[0].termination == Termination.ANSWER}
    assert done.items() <= CAPITALS.items()
    assert done, "the other worker went on"
    with RunReader.open(result.path) as reader:
        assert reader.check() == []
        summary = reader.summary()
    assert summary.failed >= 1


def test_when_no_worker_is_left_the_run_says_so(tmp_path: Path):
    with serving(call_the_tool) as server:
        llm = EndpointSpec(server.url, max_concurrency=1)
        many = [t for t in tasks() if t.id == "Brazil"] + [t for t in tasks() if t.id != "Brazil"]
        with pytest.raises(WorkerError, match="no worker is left"):
            run(agent(tools=[suicide]), many, llm=llm, workers=1, out=tmp_path / "r")
    with RunReader.open(tmp_path / "r") as reader:
        assert reader.check() == []


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


@pytest.fixture
def controller(tmp_path: Path):
    """A run in a process of its own, its turns held up by the server until it is killed."""
    marker = f"TRUNKLINE_TEST_MARK={tmp_path.name}-{os.getpid()}"
    name, _, value = marker.partition("=")
    support = str(Path(__file__).parent.parent / "support")
    with serving(capital_cities, delay=0.4) as server:
        process = subprocess.Popen(
            [sys.executable, "-c", CONTROLLER, server.url, str(tmp_path / "r")],
            env=os.environ | {name: value, "PYTHONPATH": os.pathsep.join([support, os.environ.get("PYTHONPATH", "")])},
            stderr=subprocess.PIPE,
            text=True,
        )
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


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_run_and_keeps_what_has_grown(controller, tmp_path: Path, signum: int):
    process, marker = controller
    process.send_signal(signum)
    assert process.wait(10) != 0
    said = process.stderr.read()
    assert f"stopped by {signal.Signals(signum).name}" in said
    assert str(tmp_path / "r") in said
    assert gone_within(marker, 2)
    with RunReader.open(tmp_path / "r") as reader:
        assert reader.check() == []
        assert sum(len(reader.tree(task.id)) for task in reader.tasks()) > len(reader.tasks())


def test_two_signals_do_not_wait(controller):
    process, marker = controller
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert process.wait(10) != 0
    assert time.monotonic() - began < 4
    assert gone_within(marker, 2)
