"""Programs and teams that work on an environment, in worker processes: any number of them, killed and resumed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from foreign import serving
from havoc import MARK, marked
from ledgers import check, reply, run_here
from resuming import digests, environment, kill, wait_for

SCRIPT = """
import sys
from ledgers import run_here

if __name__ == "__main__":
    url, out, name = sys.argv[1:]
    run_here(url, out, name, workers=2, resume=True)
"""


@pytest.mark.parametrize("name", ["panel", "desk"])
def test_trees_are_the_same_for_any_number_of_workers_and_after_a_kill(name: str, tmp_path: Path) -> None:
    with serving(reply, delay=0.01) as server:
        calm = run_here(server.url, tmp_path / "0", name, 0)
        for tree in calm:
            assert any(len(rollout.path) > 2 and rollout.turns > 2 for rollout in tree.rollouts), "forked in the middle"
            for rollout in tree.rollouts:
                check(rollout, tree.task.id)
        usual = len(server.bodies)
        run_here(server.url, tmp_path / "4", name, 4)  # two are those of the killed run
        assert digests(tmp_path / "4") == digests(tmp_path / "0")
        out, before = tmp_path / "killed", len(server.bodies)
        command = [sys.executable, "-c", SCRIPT, server.url, str(out), name]
        process = subprocess.Popen(command, env=environment() | {MARK: str(out)}, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: len(server.bodies) > before + usual // 3 or process.poll() is not None)
        assert process.poll() is None
        kill(process)
        wait_for(lambda: not marked(str(out)))
        resumed = run_here(server.url, out, name, 2, resume=True)
    assert digests(out) == digests(tmp_path / "0")
    for tree in resumed:
        for rollout in tree.rollouts:
            check(rollout, tree.task.id)
