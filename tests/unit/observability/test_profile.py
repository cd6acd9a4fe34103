"""Where the time of a run went, by its rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from atlas import CAPITALS, agent, tasks
from foreign import capital_cities, serving
from hypothesis import given
from hypothesis import strategies as st
from places import python_path

from trunkline.llm.config import LLM
from trunkline.observability.observers import Progress
from trunkline.runner.run import run
from trunkline.store.schema import ToolRow
from trunkline.store.stats.profile import profile


@pytest.mark.parametrize("workers", [0, 2])
def test_a_profile_is_what_the_trees_and_calls_say(workers: int, tmp_path: Path):
    shots: list[Progress] = []
    with serving(capital_cities, delay=0.02) as server:
        llm = LLM(server.url, max_concurrency=4)
        result = run(agent(name="scout"), tasks(), llm=llm, workers=workers, watch=shots.append, out=tmp_path / "r")
    found, summary = result.profile(), result.summary()
    (scout,) = found.agents
    assert (scout.name, scout.calls, scout.failed) == ("scout", summary.usage.calls, 0)
    assert scout.seconds == pytest.approx(sum(call.micros for _, call in result.calls()) / 1e6)
    assert 0.02 <= scout.times.p50 <= scout.times.p95 <= scout.times.max
    assert {tool.name for tool in found.tools} == {"lookup", "(unknown)"}
    assert sum(tool.calls for tool in found.tools) == summary.usage.tools
    assert sum(tool.failed for tool in found.tools) == summary.usage.tool_errors
    assert sum(tool.seconds for tool in found.tools) == pytest.approx(summary.tool_seconds)
    assert scout.share + sum(tool.share for tool in found.tools) == pytest.approx(1)
    assert [slow.seconds for slow in found.slowest] == sorted((s.seconds for s in found.slowest), reverse=True)
    assert {slow.task for slow in found.slowest} == set(CAPITALS)
    assert shots[-1].tool_seconds == pytest.approx({tool.name: tool.seconds for tool in found.tools})
    assert shots[-1].llm_seconds == pytest.approx(scout.seconds)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 10**9), st.booleans()), max_size=40))
def test_tools_add_up_as_a_naive_sum_does(calls: list[tuple[str, int, bool]]):
    uses = [(0, ToolRow(0, name, failed, micros, 0)) for name, micros, failed in calls]
    found = {tool.name: tool for tool in profile("x", 2.0, [], uses, [], ["t"]).tools}
    for name in "ab":
        own = sorted(micros for which, micros, _ in calls if which == name)
        if not own:
            assert name not in found
            continue
        tool = found[name]
        assert tool.calls == len(own)
        assert tool.failed == sum(failed for which, _, failed in calls if which == name)
        assert tool.seconds == pytest.approx(sum(own) / 1e6)
        assert tool.at_once == pytest.approx(sum(own) / 2e6)
        assert tool.times.max == own[-1] / 1e6
        assert sum(micros / 1e6 <= tool.times.p50 for micros in own) >= len(own) / 2


def test_show_time_names_agents_tools_and_the_slowest(tmp_path: Path):
    with serving(capital_cities) as server:
        llm = LLM(server.url, max_concurrency=4)
        run(agent(name="scout\x1b[31m"), tasks(), llm=llm, workers=0, out=tmp_path / "r")
    command = [sys.executable, "-m", "trunkline.cli", "show", str(tmp_path / "r"), "--time"]
    path = python_path()
    done, data = (
        subprocess.run(each, capture_output=True, text=True, timeout=60, env=os.environ | {"PYTHONPATH": path})
        for each in (command, [*command, "--json"])
    )
    assert "agent scout\\x1b[31m\n  calls     12\n" in done.stdout
    assert "tool lookup\n" in done.stdout
    assert done.stdout.count("\nslow  ") == 5
    assert json.loads(data.stdout)["time"]["tools"][0]["calls"] > 0
