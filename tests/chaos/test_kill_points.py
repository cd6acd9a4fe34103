"""The controller killed right before, or right after, a commit that is chosen: nothing acknowledged is lost.

In CI a few commits of a run; ``--full-faults`` kills it at twenty of them, before and after.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from foreign import capital_cities, serving
from havoc import MARK, marked
from resuming import digests, environment

from trunkline.store.reader import RunReader

POINTS = range(1, 21) if os.environ.get("TRUNKLINE_FULL_FAULTS") else (1, 9)
TASKS, EACH = 30, 2
SCRIPT = f"""
import os, signal, sys
from atlas import CAPITALS, agent
from trunkline.llm.config import LLM
from trunkline.strategies.chain import Chain
from trunkline.runner.run import run
from trunkline.store.writer import RunWriter
from trunkline.types import Task

url, out, point, when = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
commit, seen = RunWriter.commit, 0

def deadly(self, *rows):
    global seen
    seen += 1
    if seen == point and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    found = commit(self, *rows)
    if seen == point and when == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    return found

if __name__ == "__main__":
    RunWriter.commit = deadly
    names = list(CAPITALS)
    many = [Task.ask(f"Capital of {{names[n % 5]}}?", id=str(n)) for n in range({TASKS})]
    run(agent(), many, llm=LLM(url, max_concurrency=12), strategy=Chain({EACH}), seed=7, out=out,
        resume=True, workers=2)
"""


def script(url: str, out: Path, point: int = 0, when: str = "never") -> int:
    """Run the script in a process of its own, until it ends or kills itself; returns how it ended."""
    command = [sys.executable, "-c", SCRIPT, url, str(out), str(point), when]
    return subprocess.run(
        command, env=environment() | {MARK: str(out)}, timeout=60, check=False, stderr=subprocess.DEVNULL
    ).returncode


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], int]:
    """The digests of an undisturbed run, and the calls it made."""
    path = tmp_path_factory.mktemp("calm") / "r"
    with serving(capital_cities, delay=0.02) as server:
        assert script(server.url, path) == 0
        return digests(path), len(server.bodies)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("point", POINTS)
def test_a_controller_that_dies_at_a_commit_loses_no_more_than_what_is_in_flight(
    undisturbed: tuple[dict[str, str], int], point: int, when: str, tmp_path: Path
):
    path = tmp_path / "r"
    with serving(capital_cities, delay=0.02) as server:
        assert script(server.url, path, point, when) == -signal.SIGKILL
        deadline = time.monotonic() + 5
        while marked(str(path)):
            assert time.monotonic() < deadline, "workers outlive their controller"
            time.sleep(0.02)
        with RunReader.open(path) as reader:
            assert reader.check() == []
            rows = sum(1 for _ in reader.calls())
            grown = any(True for index in range(TASKS) for _ in reader.deltas(index))
        before = len(server.bodies)
        assert grown == ((point, when) != (1, "before"))
        assert rows > 0 or point == 1, "a first batch may hold prompts alone"
        assert before - rows <= 12 + 2 * 64, "more was in flight than may be"
        assert script(server.url, path) == 0
        again = len(server.bodies) - before
    assert digests(path) == undisturbed[0]
    assert again <= undisturbed[1] - rows, "what is in the file is not paid again"
