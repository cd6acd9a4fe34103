"""Programs in worker processes: they cross, they are killed, and go on elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from foreign import message, serving
from places import python_path

from programs import mortal, panel
from trunkline.agent import Agent
from trunkline.llm.config import LLM
from trunkline.runner.run import run
from trunkline.store.reader import RunReader
from trunkline.strategies.chain import Chain
from trunkline.types import Task


def by_seed(body: dict) -> dict:
    """Says what it was asked and with which seed: the same to the same request."""
    return message(f"{len(body['messages'])} messages, seed {body['seed']}")


def questions(folder: Path | None) -> list[Task]:
    """Four questions; the processes that work on three of them die, each in another round."""
    tasks = [Task.ask(f"what is {n}?", id=f"q{n}") for n in range(4)]
    if folder is None:
        return tasks
    return [msgspec.structs.replace(task, metadata={str(n): f"{folder}/q{n}"}) for n, task in enumerate(tasks)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_program_plays_in_every_pool(workers: int, tmp_path: Path):
    with serving(by_seed) as server:
        llm = LLM(server.url, max_concurrency=4)
        options = {"llm": llm, "program": panel, "seed": 5, "strategy": Chain(2)}
        result = run(Agent(model="m"), questions(None), workers=workers, out=tmp_path / "r", **options)
        assert [tree.rollouts[0].termination for tree in result] == ["answer"] * 4
        assert len(server.bodies) == 4 * 2 * 7
    with RunReader.open(tmp_path / "r") as reader:
        assert reader.check() == []


def test_workers_that_are_killed_change_nothing(tmp_path: Path):
    digests, asked = [], []
    for folder in (None, tmp_path / "marks"):
        if folder is not None:
            folder.mkdir()
        with serving(by_seed) as server:
            llm = LLM(server.url, max_concurrency=4)
            result = run(
                Agent(model="m"), questions(folder), llm=llm, program=mortal, seed=5, workers=2,
                out=tmp_path / f"r{len(digests)}",
            )  # fmt: skip
            assert [tree.rollouts[0].termination for tree in result] == ["answer"] * 4
            digests.append({tree.task.id: tree.digest() for tree in result})
            asked.append(len(server.bodies))
    assert sorted(path.name for path in (tmp_path / "marks").iterdir()) == ["q0", "q1", "q2"]
    assert digests[0] == digests[1]
    assert asked[0] == 4 * 10
    # A kill loses what is not acknowledged: of each tree that the worker had at most what came since the last one.
    assert asked[0] <= asked[1] <= asked[0] + 3 * 4 * 6


def command(*given: str) -> subprocess.Popen[str]:
    path = python_path()
    words = [sys.executable, "-m", "trunkline.cli", *given]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, env=os.environ | {"PYTHONPATH": path}, stdout=pipe, stderr=pipe, text=True)


def trunkline(*given: str) -> subprocess.CompletedProcess[str]:
    with command(*given) as running:
        out, problems = running.communicate(timeout=60)
    return subprocess.CompletedProcess(running.args, running.returncode, out, problems)


def test_a_program_is_named_on_the_command_line(tmp_path: Path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "what?"}\n')
    with serving(by_seed) as server:
        given = ["run", str(path), "--model", "m", "--base-url", server.url, "--out", str(tmp_path / "r")]
        outcome = trunkline(*given, "--workers", "1", "--program", "programs:panel")
        assert outcome.returncode == 0, outcome.stderr
        assert len(server.bodies) == 7
        outcome = trunkline(*given, "--program", "programs:die_once", "--dry-run")
    assert outcome.returncode == 2
    assert "program must be a function, async def program(rollout)" in outcome.stderr


def test_a_run_of_a_program_that_was_killed_is_resumed(tmp_path: Path):
    path = tmp_path / "q.jsonl"
    path.write_text("".join(f'{{"question": "what is {n}?"}}\n' for n in range(4)))
    digests, asked = [], []
    for name, kill_at in (("whole", None), ("killed", 17)):
        reached = threading.Event()

        def slowly(body: dict, reached: threading.Event = reached, kill_at: int | None = kill_at) -> dict:
            time.sleep(0.03)
            if kill_at is not None and len(server.bodies) >= kill_at:
                reached.set()
            return by_seed(body)

        out = str(tmp_path / name)
        with serving(slowly) as server:
            given = ["run", str(path), "--model", "m", "--base-url", server.url, "--out", out, "--workers", "1"]
            with command(*given, "--program", "programs:panel", "-c", "2", "--seed", "5") as running:
                if kill_at is not None:
                    assert reached.wait(30)
                    running.kill()
                _, problems = running.communicate(timeout=30)
            assert (running.returncode == 0) == (kill_at is None), problems
            if kill_at is not None:
                outcome = trunkline("resume", out)
                assert outcome.returncode == 0, outcome.stderr
            asked.append(len(server.bodies))
        with RunReader.open(Path(out)) as reader:
            assert reader.check() == []
            digests.append([tree.digest() for tree in reader.trees()])
    assert digests[0] == digests[1]
    assert asked[0] == 4 * 7
    assert asked[0] <= asked[1] < asked[0] + 17, "what was on record is not asked again"
