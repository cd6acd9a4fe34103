"""Runs with the tools of MCP servers: forks, worker processes, kills and resumes, with a process for each rollout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from foreign import serving
from havoc import MARK, marked
from resuming import digests, environment, kill, wait_for

pytest.importorskip("mcp", reason="mcp is not installed")

from mcp_http import sums
from mcp_runs import check, even, loop, played, raw, reply

import trunkline as tl
from trunkline.errors import ConfigError

SCRIPT = """
import sys
import trunkline as tl
from mcp_runs import played, raw

if __name__ == "__main__":
    url, out, log, effects = sys.argv[1:]
    more = {} if effects == "none" else {"strategy": tl.strategies.Chain(3)}
    played(url, tl.MCP(raw(RAW_LOG=log), effects=effects), 2 if effects == "none" else 1, out, resume=True, **more)
"""


def killed(server, out: Path, effects: str, due: int) -> None:
    """Begin a run in processes of its own, and kill all of them once so many requests came."""
    command = [sys.executable, "-c", SCRIPT, server.url, str(out), str(out) + ".log", effects]
    process = subprocess.Popen(command, env=environment() | {MARK: str(out)}, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(server.bodies) > due or process.poll() is not None)
    assert process.poll() is None
    kill(process)
    wait_for(lambda: not marked(str(out)))


def test_forks_workers_and_kills_change_nothing_and_each_rollout_has_a_process(tmp_path: Path):
    log = tmp_path / "killed.log"
    servers = tl.MCP(raw(RAW_LOG=str(log)), effects="none")
    with serving(reply, delay=0.02) as server:
        calm = played(server.url, servers, 0, tmp_path / "0")
        usual = len(server.bodies)
        killed(server, tmp_path / "killed", "none", usual + usual // 2)
        resumed = played(server.url, servers, 1, tmp_path / "killed", resume=True)
        program = played(server.url, servers, 0, tmp_path / "program", 1, program=loop)
        hooked = played(server.url, servers, 0, tmp_path / "hooked", hook=even)
    assert calm.summary().replayed > 0, "forks ran calls again"
    assert any(len(rollout.path) > 2 and rollout.turns > 2 for tree in calm for rollout in tree.rollouts)
    decided = [one.refusal for tree in hooked for rollout in tree.rollouts for one in rollout.tool_decisions]
    assert "no" in decided
    assert None in decided
    for run in (calm, resumed, program, hooked):
        assert set(run.summary().terminations) <= {"answer", "max_turns"}
        for tree in run:
            check(tree)
    assert digests(tmp_path / "killed") == digests(tmp_path / "0")
    processes = {line.split()[0] for line in log.read_text("utf-8").splitlines()}
    assert len(processes) >= calm.summary().rollouts - calm.summary().terminations.get("answer", 0)
    wait_for(lambda: not any(Path(f"/proc/{number}").exists() for number in processes))


@pytest.mark.breaks_rollouts
def test_servers_with_effects_elsewhere_are_called_once_and_never_forked(tmp_path: Path):
    servers = tl.MCP(raw(RAW_LOG=str(tmp_path / "run.log")))
    with serving(reply, delay=0.05) as server:
        with pytest.raises(ConfigError, match=r"TreeGRPO forks rollouts, and the MCP server raw .*--effects"):
            played(server.url, servers, 0, tmp_path / "forked")
        killed(server, tmp_path / "run", "external", 8)
        run = played(server.url, servers, 0, tmp_path / "run", strategy=tl.strategies.Chain(3), resume=True)
    endings = run.summary().terminations
    assert endings["unknown_effect"] > 0
    assert set(endings) <= {"answer", "max_turns", "unknown_effect"}
    for tree in run:
        check(tree)


@pytest.mark.breaks_rollouts
def test_results_that_differ_refuse_a_fork_unless_the_server_is_stateless(tmp_path: Path):
    with serving(reply) as server:
        clock = raw(RAW_CLOCK="1")
        fixed = played(server.url, tl.MCP(clock, effects="none"), 0, tmp_path / "0", 1)
        free = played(server.url, tl.MCP(clock, stateless=True), 0, tmp_path / "1", 1)
    assert fixed.summary().terminations["cancelled"] > 0
    assert fixed.summary().refusals
    assert set(free.summary().terminations) <= {"answer", "max_turns"}
    assert free.summary().replayed == 0


def test_sessions_of_a_server_by_its_address_are_played_again_for_forks(tmp_path: Path):
    with serving(reply) as server, sums() as served:
        run = played(server.url, tl.MCP(served.url, effects="none"), 0, tmp_path / "0", 1)
    assert run.summary().replayed > 0
    assert set(run.summary().terminations) <= {"answer", "max_turns"}
    for tree in run:
        check(tree)
    assert served.ended == set(served.totals), "each session is ended"
