"""Runs of teams in processes of their own, whose controllers and workers are killed at random: the same trees and rows.

In CI one team and one controller; ``--full-faults`` has two, and both are killed. With more of everything:
``pytest tests/chaos/test_team_kills.py --full-faults --chaos-kills 20 --chaos-tasks 100 --chaos-seed 3``.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from foreign import Server, serving
from havoc import MARK, marked
from resuming import digests, environment, kill, wait_for
from small_teams import Act, reply, rows, run_here

from trunkline.store.lock import is_written
from trunkline.store.reader import RunReader

FULL = bool(os.environ.get("TRUNKLINE_FULL_FAULTS"))
SCRIPT = """
import sys
from small_teams import run_here

if __name__ == "__main__":
    url, out, name, tasks = sys.argv[1:]
    run_here(url, out, name, int(tasks), workers=2, resume=True)
"""


def start(url: str, out: Path, name: str, tasks: int) -> subprocess.Popen[str]:
    """Begin the run, or go on with it."""
    command = [sys.executable, "-c", SCRIPT, url, str(out), name, str(tasks)]
    env = environment() | {MARK: str(out)}
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    """Wait until a run is done."""
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said


def made(out: Path) -> dict[str, list[list[tuple[Act, list[bytes]]]]]:
    """The rows of every rollout of a run."""
    with RunReader.open(out) as reader:
        assert reader.check() == []
        found = {}
        for task in reader.task_ids():
            core = reader.tree(task).core
            found[task] = [rows(core, number) for number in range(core.rollouts)]
        return found


def strike(process: subprocess.Popen[str], out: Path, chance: random.Random, *, spare: bool) -> bool:
    """Kill a worker, or the controller if it is not to be spared; returns whether the run has to be started again."""
    workers = [pid for pid, parent in marked(str(out)).items() if parent == process.pid]
    if spare and workers:
        os.kill(chance.choice(workers), 9)
        return False
    kill(process)
    wait_for(lambda: not marked(str(out)))
    wait_for(lambda: not out.exists() or not is_written(out))
    return True


def storm(server: Server, out: Path, name: str, tasks: int, kills: int, chance: random.Random) -> int:
    """Run with somebody killed so many times; returns how many were."""
    process, struck = start(server.url, out, name, tasks), 0
    while struck < kills:
        due, deadline = len(server.bodies) + chance.randint(3, 20), time.monotonic() + 60
        while len(server.bodies) < due and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        if process.poll() is not None:
            break
        struck += 1
        if strike(process, out, chance, spare=struck > 1 and chance.random() < 0.5):
            process = start(server.url, out, name, tasks)
    finish(process)
    return struck


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["council", "search"] if FULL else ["council"])
def test_a_team_whose_processes_are_killed_ends_as_if_nothing_had_been(
    name: str, tmp_path: Path, pytestconfig: Any
) -> None:
    tasks, kills, seed = (pytestconfig.getoption(f"--chaos-{what}") for what in ("tasks", "kills", "seed"))
    tasks, kills = tasks // 10, kills if FULL else 1
    with serving(reply, delay=0.02) as server:
        run_here(server.url, tmp_path / "calm", name, tasks)
        usual = len(server.bodies)
        struck = storm(server, tmp_path / "storm", name, tasks, kills, random.Random(f"{seed} {name}"))
        cost = len(server.bodies) - usual
    told = f"seed {seed}: {struck} kills, {usual} requests and {cost - usual} again"
    assert struck, told
    assert digests(tmp_path / "storm") == digests(tmp_path / "calm"), told
    assert made(tmp_path / "storm") == made(tmp_path / "calm"), told
    # Turns of a worker that are not in the file yet: those in flight, and those that wait to be written.
    assert usual <= cost <= usual + struck * (8 + 2 * 64), told
