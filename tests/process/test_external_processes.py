"""Agents of other frameworks as processes: any number of workers, killed, resumed, with tools that say the time."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from external_agents import run_changing, run_plain, search_reply
from foreign import serving
from havoc import MARK, marked
from places import ROOT
from resuming import digests, environment, kill, wait_for

from trunkline.errors import UsageError
from trunkline.store.export.export import export
from trunkline.store.reader import RunReader
from trunkline.strategies.chain import Chain
from trunkline.strategies.tree_grpo import TreeGRPO

SCRIPT = """
import sys
from pathlib import Path
from external_agents import run_changing, run_plain
from trunkline.strategies.chain import Chain

if __name__ == "__main__":
    url, out, folder, effects = sys.argv[1:]
    if effects == "branch":
        run_changing(url, out, 1, Path(folder), resume=True)
    else:
        more = {} if effects == "folder" else {"strategy": Chain(2)}
        run_plain(url, out, 2, Path(folder), effects=effects, resume=True, **more)
"""


def killed(server, out: Path, folder: Path, effects: str, due: int) -> None:
    """Begin or resume a run in processes of its own, and kill all of them once so many requests came."""
    command = [sys.executable, "-c", SCRIPT, server.url, str(out), str(folder), effects]
    process = subprocess.Popen(command, env=environment() | {MARK: str(out)}, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(server.bodies) > due or process.poll() is not None)
    assert process.poll() is None
    kill(process)
    wait_for(lambda: not marked(str(out)))


def test_trees_are_the_same_for_any_number_of_workers_and_after_kills(tmp_path: Path) -> None:
    with serving(search_reply, delay=0.01) as server:
        calm = run_plain(server.url, tmp_path / "0", 0, tmp_path)
        assert calm.summary().terminations == {"answer": calm.summary().rollouts}
        assert calm.summary().agent_calls.replayed > 0, "a fork is the agent started again"
        usual = len(server.bodies)
        out = tmp_path / "killed"
        killed(server, out, tmp_path, "folder", usual + usual // 2)
        resumed = run_plain(server.url, out, 2, tmp_path, resume=True)
    assert digests(out) == digests(tmp_path / "0")
    assert resumed.summary().agent_calls.diverged == 0
    with RunReader.open(out) as reader:
        assert reader.check() == []
    export(out, tmp_path / "said.jsonl")
    for line in (tmp_path / "said.jsonl").read_text("utf-8").splitlines():
        roles = [message["role"] for message in json.loads(line)["messages"]]
        assert roles == ["system", "user", *["assistant", "tool"] * (len(roles) // 2 - 1), "assistant"][: len(roles)]
    with pytest.raises(UsageError, match="by its id"):
        resumed[0]


@pytest.mark.breaks_rollouts
def test_branches_are_the_same_after_a_kill(tmp_path: Path) -> None:
    with serving(search_reply, delay=0.05) as server:
        calm = run_changing(server.url, tmp_path / "calm", 0, tmp_path)
        calls, usual = calm.summary().agent_calls, len(server.bodies)
        assert calls.branched == calls.diverged > 1
        killed(server, tmp_path / "killed", tmp_path, "branch", 2 * usual - 2)
        resumed = run_changing(server.url, tmp_path / "killed", 1, tmp_path, resume=True)
    assert digests(tmp_path / "killed") == digests(tmp_path / "calm")
    assert resumed.summary().agent_calls.branched == calls.branched


@pytest.mark.breaks_rollouts
def test_an_agent_with_effects_elsewhere_is_not_started_again(tmp_path: Path) -> None:
    with serving(search_reply, delay=0.05) as server:
        killed(server, tmp_path / "run", tmp_path, "external", 6)
        run = run_plain(server.url, tmp_path / "run", 2, tmp_path, effects="external", strategy=Chain(2), resume=True)
    endings = run.summary().terminations
    assert endings["unknown_effect"] > 0
    assert sum(endings.values()) == 8
    assert set(endings) <= {"answer", "unknown_effect"}


@pytest.mark.breaks_rollouts
def test_a_tool_that_says_the_time_diverges_and_can_be_masked(tmp_path: Path) -> None:
    with serving(search_reply) as server:
        open_ = run_plain(server.url, tmp_path / "open", 0, tmp_path, env=["STAMP=1"])
        masks = [r"\(at \d+\.\d+ by \d+\)"]
        covered = run_plain(server.url, tmp_path / "covered", 0, tmp_path, env=["STAMP=1"], masks=masks)
    calls = open_.summary().agent_calls
    assert calls.diverged == calls.again > 0
    assert open_.summary().terminations["lost"] == calls.diverged
    calls = covered.summary().agent_calls
    assert calls.diverged == 0
    assert calls.masked > 0
    assert set(covered.summary().terminations) == {"answer"}


def test_an_agent_of_the_openai_agents_sdk_has_trees(tmp_path: Path) -> None:
    command = shlex.join([sys.executable, str(ROOT / "examples" / "agents" / "openai_agents.py")])
    with serving(search_reply) as server:
        few = {"strategy": TreeGRPO(trees=1, forks=3, rounds=1), "limit": 1}  # a start takes seconds of imports
        summary = run_plain(server.url, tmp_path / "run", 1, tmp_path, command=command, **few).summary()
    assert summary.terminations == {"answer": summary.rollouts}, summary.failures
    assert summary.agent_calls.again > 0
    assert summary.agent_calls.diverged == summary.agent_calls.rewritten == summary.agent_calls.refused == 0
