"""Tools that misbehave, within whole runs: the other rollouts, their workers and the run go on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from atlas import CAPITALS, agent, tasks
from descriptors import open_descriptors
from foreign import message, serving
from perils import BAD, calm_lookup, gone_within, pay, pay_slowly, perilous_lookup, retry
from resuming import environment, wait_for

from trunkline.llm.config import LLM
from trunkline.rollout.budget import Budget
from trunkline.runner.run import arun, run
from trunkline.store.reader import RunReader
from trunkline.types import Termination

SAID = {
    "segfault": "was killed by SIGSEGV",
    "sleep": "took longer than 2 s and was killed",
    "one gigabyte": "used more than 256 MB",
    "daemon": "worker",
}


def call_then_quote(body: dict) -> dict:
    """Calls every tool there is once, then answers with what they said."""
    seen = [m["content"] for m in body["messages"] if m["role"] == "tool"]
    if seen:
        return message(f"<answer>{' | '.join(seen)}</answer>")
    country = body["messages"][0]["content"].removeprefix("Capital of ").rstrip("?")
    return message(None, [(t["function"]["name"], json.dumps({"country": country})) for t in body["tools"]])


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where tools write down that they ran."""
    path = tmp_path / "notes"
    path.touch()
    monkeypatch.setenv("PERILS_NOTES", str(path))
    return path


@pytest.mark.parametrize("workers", [0, 2])
def test_isolated_tools_cost_their_own_calls_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int):
    mark = f"{tmp_path.name}-{os.getpid()}"
    monkeypatch.setenv("TRUNKLINE_TEST_MARK", mark)
    with serving(call_then_quote) as server:
        llm = LLM(server.url, max_concurrency=8)
        used = agent(tools=[perilous_lookup, calm_lookup])
        result = run(used, tasks(), llm=llm, workers=workers, out=tmp_path / "r")
        assert len(server.bodies) == 2 * len(CAPITALS), "nothing was asked twice"
    hosts = Counter()
    for country in CAPITALS:
        (rollout,) = result[country].rollouts
        assert rollout.termination == Termination.ANSWER
        perilous, calm = rollout.answer.split(" | ")
        if country in BAD:
            assert SAID[BAD[country]] in perilous
        else:
            assert perilous == calm, "its process is a child of the worker"
        hosts[calm] += 1
    assert len(hosts) <= max(1, workers), "no worker was replaced"
    assert gone_within(f"TRUNKLINE_TEST_MARK={mark}", 5)
    with RunReader.open(result.path) as reader:
        assert reader.check() == []


def test_a_call_that_runs_again_after_a_crash_has_the_same_id(tmp_path: Path, notes: Path):
    with serving(call_then_quote) as server:
        llm = LLM(server.url, max_concurrency=8)
        result = run(agent(tools=[retry]), tasks(), llm=llm, workers=2, out=tmp_path / "r")
    assert {tree.answer for tree in result} == {"done"}
    lines = notes.read_text().splitlines()
    assert sum(line.startswith("Brazil") for line in lines) == 2
    assert len(set(lines)) == len(CAPITALS), "one for each call, however often it ran"


@pytest.mark.breaks_rollouts
def test_a_call_with_side_effects_in_doubt_is_not_run_again(tmp_path: Path, notes: Path):
    with serving(call_then_quote) as server:
        llm = LLM(server.url, max_concurrency=8)
        result = run(agent(tools=[pay]), tasks(), llm=llm, workers=2, out=tmp_path / "r")
    ran = Counter(line.split()[0] for line in notes.read_text().splitlines())
    (brazil,) = result["Brazil"].rollouts
    assert brazil.termination == Termination.UNKNOWN_EFFECT
    assert brazil.error.kind == "UnknownEffect"
    (line,) = [line for line in notes.read_text().splitlines() if line.startswith("Brazil")]
    assert f"pay had begun when its worker or its run ended (call id {line.split()[1]})" in brazil.error.message
    for country in CAPITALS:
        (rollout,) = result[country].rollouts
        # Those that were about to begin beside it are in doubt too, if nothing came of them.
        if rollout.termination == Termination.UNKNOWN_EFFECT:
            assert ran[country] <= 1
        else:
            assert (rollout.answer, ran[country]) == ("paid", 1)
    assert any(tree.answer == "paid" for tree in result)
    with RunReader.open(result.path) as reader:
        assert reader.check() == []


@pytest.mark.breaks_rollouts
def test_a_rollout_that_is_cut_while_a_tool_with_side_effects_runs_ends_in_doubt(tmp_path: Path, notes: Path):
    with serving(call_then_quote) as server:
        llm = LLM(server.url, max_concurrency=8)
        limit = Budget(seconds=1.0)
        result = run(agent(tools=[pay_slowly]), tasks()[:1], llm=llm, workers=0, task_budget=limit, out=tmp_path / "r")
    (rollout,) = result["France"].rollouts
    assert notes.read_text() == "France\n"
    assert rollout.termination == Termination.UNKNOWN_EFFECT
    assert "was ended while pay_slowly ran" in rollout.error.message


PAYING = """
import sys
from atlas import agent, tasks
from perils import pay_slowly
from trunkline.llm.config import LLM
from trunkline.runner.run import run
if __name__ == "__main__":
    _, url, out, workers = sys.argv
    llm = LLM(url, max_concurrency=8)
    run(agent(tools=[pay_slowly]), tasks()[:1], llm=llm, workers=int(workers), grace=0.1, out=out)
"""


@pytest.mark.breaks_rollouts
@pytest.mark.parametrize(("end", "workers"), [(signal.SIGKILL, "1"), (signal.SIGINT, "0")])
def test_a_call_in_doubt_is_not_run_again_when_its_run_is_resumed(
    tmp_path: Path, notes: Path, end: signal.Signals, workers: str
):
    with serving(call_then_quote) as server:
        begun = subprocess.Popen(
            [sys.executable, "-c", PAYING, server.url, tmp_path / "r", workers],
            env=environment(),
            stderr=subprocess.DEVNULL,
        )
        wait_for(notes.read_text)
        begun.send_signal(end)
        begun.wait(20)
        llm = LLM(server.url, max_concurrency=8)
        used = agent(tools=[pay_slowly])
        result = run(used, tasks()[:1], llm=llm, workers=0, grace=0.1, out=tmp_path / "r", resume=True)
        assert len(server.bodies) == 1
    (rollout,) = result["France"].rollouts
    assert rollout.termination == Termination.UNKNOWN_EFFECT
    assert "pay_slowly had begun when its worker or its run ended" in rollout.error.message
    assert notes.read_text() == "France\n"


SCRIPT = """
import sys
import trunkline as tl

@tl.tool(isolated=True)
def where(country: str) -> str:
    return f"{country} in {__name__}"

if __name__ == "__main__":
    agent = tl.Agent(model="m", tools=[where])
    _, url, workers, out = sys.argv
    task = tl.Task.ask("Capital of Chile?", id="q")
    print(tl.run(agent, [task], llm=tl.LLM(url), workers=int(workers), out=out)["q"].answer)
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_isolated_tools_of_a_script_are_found_by_its_path(tmp_path: Path, workers: str):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with serving(call_then_quote) as server:
        done = subprocess.run(
            [sys.executable, script, server.url, workers, tmp_path / "r"], capture_output=True, text=True, timeout=60
        )
    assert done.stdout == "Chile in __trunkline_main__\n", done.stderr


async def test_runs_leave_no_descriptor_and_no_task(tmp_path: Path):
    with serving(call_then_quote) as server:
        llm = LLM(server.url, max_concurrency=8)
        before = open_descriptors()
        await arun(agent(tools=[perilous_lookup]), tasks()[-1:], llm=llm, workers=0, out=tmp_path / "r")
        deadline = time.monotonic() + 5
        while open_descriptors() - before and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        assert not open_descriptors() - before
        assert len(asyncio.all_tasks()) == 1
